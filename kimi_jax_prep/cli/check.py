"""`kimi-jax-prep check`: the fast paths against the reference, on this machine."""

import importlib.metadata
import platform
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from kimi_jax_prep.cli.inputs import ConfigOption, JsonOption, VerboseOption, read_config
from kimi_jax_prep.cli.output import print_facts, print_json, progress, show_lines

PACKAGES = ("kimi-jax-prep", "jax", "jaxlib", "numpy", "pillow", "transformers", "av", "torch")
# Sides in pixels: unchanged, enlarged by nothing but padding, reduced a little and a lot, thin, one pixel.
SIZES = ((1, 1), (14, 28), (512, 600), (333, 777), (1920, 1080), (2048, 64), (3000, 2000), (40, 5000))
MODES = ("RGB", "L", "RGBA", "P", "LA")


def check(
    config: ConfigOption = "k2.5",
    cases: Annotated[int, typer.Option(min=1, help="Pictures to compare.")] = 24,
    json: JsonOption = False,
    verbose: VerboseOption = False,  # noqa: ARG001 -- `run_command` reads it
) -> int:
    """Compare the fast paths with the reference, bit by bit; exit status 1 if anything differs."""
    media_proc_cfg = read_config(config)

    from kimi_jax_prep import reference
    from kimi_jax_prep.engine.preprocessor import Preprocessor

    preprocessors = {
        "jax": Preprocessor(media_proc_cfg),
        "numpy": Preprocessor(media_proc_cfg, backend="numpy"),
    }
    differences, count = [], 0
    with progress("checking", cases) as advance:
        for name, medium in _cases(cases):
            expected = reference.preprocess([medium], media_proc_cfg)
            for backend, prep in preprocessors.items():
                count += 1
                for _ in range(2):  # the second call uses the programs that the first one had compiled
                    if found := compare(prep([medium]), expected):
                        differences.append({"case": name, "backend": backend, "difference": found})
                        break
                    prep.wait_until_compiled()
            advance(1)
    result = {"equal": not differences, "cases": count, "differences": differences, "versions": versions()}
    if json:
        print_json(result)
    else:
        for found in differences:
            show_lines([f"{found['case']} ({found['backend']}): {found['difference']}"])
        show_lines([f"{len(differences)} of {count} cases differ" if differences else f"bit-equal on {count} cases"])
        print_facts(result["versions"])
    return 1 if differences else 0


def _cases(count: int) -> Iterator[tuple[str, Any]]:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for k in range(count):
        width, height = SIZES[k % len(SIZES)]
        mode = MODES[k // len(SIZES) % len(MODES)]
        noise = rng.integers(0, 256, (height, width, 4), np.uint8)
        image = Image.fromarray(noise)
        if mode != "RGBA":
            image = image.convert("RGB").convert(mode) if mode in ("P", "RGB", "L") else image.convert(mode)
        if k % 12 == 11:
            frames = [Image.fromarray(np.roll(noise[..., :3], n, 0).copy()) for n in range(3)]
            yield f"chunk of 3 frames {width}x{height}", {"type": "video_chunk", "video_chunk": frames}
        else:
            yield f"{mode} {width}x{height}", image


def compare(ours: Any, expected: Any) -> str:
    """What differs between two batches, or an empty text. Compares bits, so that -0.0 is not 0.0."""
    import numpy as np

    a, b = np.asarray(ours.pixel_values), np.asarray(expected.pixel_values)
    if not np.array_equal(ours.grid_thws, expected.grid_thws):
        return f"grid_thws are {np.asarray(ours.grid_thws).tolist()}, expected {expected.grid_thws.tolist()}"
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"pixel_values are {a.dtype} {a.shape}, expected {b.dtype} {b.shape}"
    differ = a.view(np.uint32) != b.view(np.uint32)
    if not differ.any():
        return ""
    at = tuple(int(k[0]) for k in np.nonzero(differ))
    return (
        f"{int(differ.sum())} of {differ.size} values in {int(differ.any((1, 2, 3)).sum())} patches; the first, "
        f"at [{', '.join(map(str, at))}], is {a[at]!r}, expected {b[at]!r}"
    )


def versions() -> dict[str, str]:
    """What a bug report needs."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    import jax

    found["devices"] = ", ".join(sorted({d.device_kind for d in jax.devices()}))
    return found
