"""`kimi-jax-prep bench` and `warmup`: times on this machine, and compilation ahead of use."""

import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from kimi_jax_prep.cli.inputs import ConfigOption, JsonOption, VerboseOption, medium, naming, read_config
from kimi_jax_prep.cli.output import print_json, print_table, progress, show_lines

_DEFAULT_SIZES = ((640, 480), (1920, 1080))


def bench(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE...", help="Images and videos; by default two made-up pictures.")
    ] = None,
    config: ConfigOption = "k2.5",
    rounds: Annotated[int, typer.Option("--rounds", "-n", min=1, help="Timed calls of each.")] = 20,
    warmup: Annotated[int, typer.Option("--warmup", min=1, help="Calls before, which are not counted.")] = 3,
    json: JsonOption = False,
    verbose: VerboseOption = False,  # noqa: ARG001 -- `run_command` reads it
) -> None:
    """Time both backends and the reference on the same media, in milliseconds per call."""
    media_proc_cfg = read_config(config)

    from kimi_jax_prep import reference
    from kimi_jax_prep.engine.preprocessor import Preprocessor

    with_jax = Preprocessor(media_proc_cfg)
    with_numpy = Preprocessor(media_proc_cfg, backend="numpy")
    results = []
    cases = _cases(files or [])
    with progress("timing", 3 * len(cases)) as advance:
        for name, media in cases:
            ways: dict[str, Callable[[], Any]] = {
                "jax": lambda media=media: with_jax(media),
                "numpy": lambda media=media: with_numpy(media),
            }
            if not (isinstance(media[0], dict) and media[0]["type"] == "video"):  # the reference reads no video files
                ways["reference"] = lambda media=media: reference.preprocess(media, media_proc_cfg)
            for way, call in ways.items():
                with naming([name]):
                    for _ in range(warmup):
                        call()
                        with_jax.wait_until_compiled()
                results.append({"media": name, "way": way, **summary([_timed(call) for _ in range(rounds)])})
                advance(1)
    if json:
        print_json({"unit": "ms", "rounds": rounds, "warmup": warmup, "results": results})
        return
    names = ("way", "mean", "p50", "p90", "p99", "media")
    print_table(names, [[r[n] for n in names] for r in results], left=(0, 5))
    show_lines([f"ms per call, {rounds} calls after {warmup} warm-up calls"])


def warmup(
    config: ConfigOption = "k2.5",
    max_patches: Annotated[int | None, typer.Option(min=1, help="Of one call's batch; by default one image's.")] = None,
    json: JsonOption = False,
    verbose: VerboseOption = False,  # noqa: ARG001 -- `run_command` reads it
) -> None:
    """Compile every program into JAX's persistent cache (JAX_COMPILATION_CACHE_DIR), for later processes."""
    media_proc_cfg = read_config(config)

    import jax

    from kimi_jax_prep.engine.preprocessor import Preprocessor

    folder = jax.config.values.get("jax_compilation_cache_dir")
    prep = Preprocessor(media_proc_cfg)
    start = time.perf_counter()
    prep.warmup(max_patches=max_patches)
    seconds = time.perf_counter() - start
    count = len(prep.compiled_programs)
    if json:
        print_json({"programs": count, "seconds": seconds, "cache": folder})
        return
    show_lines([f"compiled {count} programs in {seconds:.1f} s"])
    show_lines(
        [f"cached in {folder}" if folder else "not cached: set JAX_COMPILATION_CACHE_DIR so that later processes gain"]
    )


def summary(milliseconds: list[float]) -> dict[str, float]:
    """Mean and percentiles; a percentile is the smallest time that so many percent of the calls do not exceed."""
    ordered = sorted(milliseconds)
    at = {f"p{p}": ordered[max(0, -(-p * len(ordered) // 100) - 1)] for p in (50, 90, 99)}
    return {"mean": sum(ordered) / len(ordered), **at}


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def _cases(files: list[str]) -> list[tuple[str, list[Any]]]:
    if files:
        return [(name, [medium(name)]) for name in files]
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    made = [Image.fromarray(rng.integers(0, 256, (h, w, 3), np.uint8)) for w, h in _DEFAULT_SIZES]
    return [(f"{image.width}x{image.height}, RGB noise", [image]) for image in made]
