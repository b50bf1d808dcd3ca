"""`kimi-jax-prep run`: patches of images and videos, into a file."""

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from kimi_jax_prep.cli.inputs import ConfigOption, JsonOption, VerboseOption, failure_text, medium, naming, read_config
from kimi_jax_prep.cli.output import note, print_facts, print_json, print_table, progress, whole_file
from kimi_jax_prep.errors import PrepError

SUFFIXES = (".npz", ".npy", ".safetensors")
_TOGETHER = 16  # files in one call: enough to keep all threads busy, few enough for a moving bar


class Dtype(enum.StrEnum):
    """Names of `--dtype`."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    uint8 = "uint8"


class Backend(enum.StrEnum):
    """Names of `--backend`."""

    jax = "jax"
    numpy = "numpy"


class OnError(enum.StrEnum):
    """Names of `--on-error`."""

    stop = "stop"
    skip = "skip"


def run(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Images and videos.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the patches: .npz, .safetensors, or .npy (patches only).")
    ] = None,
    config: ConfigOption = "k2.5",
    dtype: Annotated[
        Dtype, typer.Option(help="Of pixel_values; uint8 leaves the normalization to the device.")
    ] = Dtype.float32,
    backend: Annotated[Backend, typer.Option(help="The bits are the same.")] = Backend.jax,
    on_error: Annotated[OnError, typer.Option(help="skip: leave out files that cannot be read.")] = OnError.stop,
    json: JsonOption = False,
    verbose: VerboseOption = False,  # noqa: ARG001 -- `run_command` reads it
) -> int:
    """Preprocess images and videos and write pixel_values and grid_thws."""
    media_proc_cfg = read_config(config)
    _check_out(out, dtype)
    rows, failures = [], []
    parts: list[Any] = []

    from kimi_jax_prep.engine.preprocessor import Preprocessor

    prep = Preprocessor(media_proc_cfg, dtype=dtype.value, backend=backend.value)
    with progress("preprocessing", len(files)) as advance:
        for start in range(0, len(files), _TOGETHER):
            part = files[start : start + _TOGETHER]
            with naming(part):
                batch = prep([medium(name) for name in part], on_error="skip" if on_error is OnError.skip else "raise")
            failures += [(part[f.index], failure_text(f, part)) for f in batch.failures]
            parts.append(batch)
            rows += [(part[source], batch, i) for i, source in enumerate(batch.sources)]
            advance(len(part))

    import numpy as np

    pixel_values = parts[0].pixel_values if len(parts) == 1 else np.concatenate([b.pixel_values for b in parts])
    grid_thws = np.concatenate([b.grid_thws for b in parts])
    if out is not None:
        write(out, pixel_values, grid_thws)
    shape = tuple(pixel_values.shape)
    tokens = sum(sum(batch.num_tokens) for batch in parts)
    if json:
        media = [_facts(name, batch, i) for name, batch, i in rows]
        errors = [{"file": name, "error": message} for name, message in failures]
        summary = {"pixel_values": list(shape), "dtype": dtype.value, "tokens": tokens, "out": out and str(out)}
        print_json({"media": media, "total": summary, "errors": errors})
    else:
        table = []
        for name, batch, i in rows:
            facts = _facts(name, batch, i)
            sizes = ["x".join(map(str, facts[key])) for key in ("size", "resized", "padded", "grid_thw")]
            table.append([*sizes, facts["patches"], facts["tokens"], facts["time"] or "", name])
        has_time = any(row[6] for row in table)
        header = ["size", "resized", "padded", "grid_thw", "patches", "tokens", "time", "file"]
        columns = [k for k in range(8) if k != 6 or has_time]
        print_table(
            [header[k] for k in columns], [[row[k] for k in columns] for row in table], left=(0, len(columns) - 1)
        )
        print_facts(
            {"pixel_values": f"{shape} {dtype.value}", "tokens": tokens, **({"written": str(out)} if out else {})}
        )
        for _, message in failures:
            note(f"error: {message}")
    return 2 if failures else 0


def _check_out(out: Path | None, dtype: Dtype) -> None:
    """Refuse before the work what could not be written after it."""
    if out is None:
        return
    if out.suffix not in SUFFIXES:
        raise PrepError(f"--out is {str(out)!r}; expected a name that ends in {', '.join(SUFFIXES)}.")
    if out.suffix != ".safetensors" and dtype is Dtype.bfloat16:
        raise PrepError(f"{out.suffix} files cannot hold bfloat16; write .safetensors or choose another --dtype.")
    if out.suffix == ".safetensors":
        import safetensors.numpy as safetensors  # noqa: F401 -- its absence is an error before the work
    if not out.parent.is_dir():
        raise PrepError(f"--out is {str(out)!r}, but the folder {str(out.parent)!r} does not exist.")


def write(out: Path, pixel_values: Any, grid_thws: Any) -> None:
    """Write the arrays; `out` is complete or as before."""
    import numpy as np

    with whole_file(out) as beside:
        if out.suffix == ".npz":
            np.savez(beside, pixel_values=pixel_values, grid_thws=grid_thws)
        elif out.suffix == ".npy":
            np.save(beside, pixel_values)
        else:
            from safetensors.numpy import save_file

            save_file({"pixel_values": pixel_values, "grid_thws": grid_thws}, beside)


def _facts(name: str, batch: Any, i: int) -> dict[str, Any]:
    plan = batch.plans[i]
    prompt = batch.prompts[i]
    return {
        "file": name,
        "size": list(batch.sizes[i]),
        "resized": [plan.width, plan.height],
        "padded": [plan.width + plan.pad_right, plan.height + plan.pad_bottom],
        "grid_thw": list(plan.grid_thw),
        "patches": plan.num_patches,
        "tokens": plan.num_tokens,
        "time": prompt.partition("<|")[0] if prompt else None,
        "prompt": prompt,
    }
