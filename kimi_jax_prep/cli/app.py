"""`kimi-jax-prep`: patches of a picture from the command line. Needs the extra `cli` (typer, rich, safetensors)."""

import enum
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from kimi_jax_prep.config import PRESETS, MediaProcConfig
from kimi_jax_prep.errors import PrepError

try:
    import typer
    from rich.console import Console
    from rich.table import Table
except ImportError as err:
    raise SystemExit(f"kimi-jax-prep needs the extra `cli`: pip install 'kimi-jax-prep[cli]' ({err})") from err

if TYPE_CHECKING:
    from kimi_jax_prep.batch import PatchBatch
    from kimi_jax_prep.plan import MediaPlan

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)


class Dtype(enum.StrEnum):
    """Names of `--dtype`."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    uint8 = "uint8"


ConfigOption = Annotated[
    str, typer.Option("--config", help=f"{', '.join(PRESETS)}, or a checkpoint's folder or preprocessor_config.json.")
]


@app.command()
def run(
    image: Annotated[Path, typer.Argument(help="The picture: any format that Pillow reads.")],
    config: ConfigOption = "k2.5",
    dtype: Annotated[Dtype, typer.Option(help="Of the patches; uint8 leaves the normalizing to the device.")] = (
        Dtype.float32
    ),
    out: Annotated[Path | None, typer.Option(help="Write the patches: .npz or .safetensors.")] = None,
) -> None:
    """Preprocess one picture; print its plan and what came out."""
    media_proc_cfg = _read_config(config)
    if out is not None and out.suffix not in (".npz", ".safetensors"):
        raise PrepError(f"--out is {str(out)!r}; expected a name that ends in .npz or .safetensors.")
    if out is not None and out.suffix == ".npz" and dtype is Dtype.bfloat16:
        raise PrepError("an .npz file cannot hold bfloat16; write .safetensors, or ask for another --dtype.")

    from kimi_jax_prep.engine.preprocessor import Preprocessor
    from kimi_jax_prep.media.image import open_image
    from kimi_jax_prep.media.options import MediaOptions

    width, height = open_image(image, MediaOptions()).size
    prep = Preprocessor(media_proc_cfg, dtype=dtype.value)
    start = time.perf_counter()
    prep([image])
    cold = time.perf_counter() - start
    prep.wait_until_compiled()
    prep([image])  # brings the memory that the next one uses
    start = time.perf_counter()
    batch = prep([image])
    warm = time.perf_counter() - start

    table = _plan_table(width, height, batch.plans[0])
    table.add_row("pixel_values", f"{batch.pixel_values.shape} {batch.pixel_values.dtype}")
    table.add_row("time", f"{1e3 * warm:.1f} ms (first call, while programs compile: {1e3 * cold:.0f} ms)")
    if out is not None:
        _write(batch, out)
        table.add_row("written", str(out))
    Console().print(table)


@app.command()
def plan(
    width: Annotated[int, typer.Argument(help="Pixels.")],
    height: Annotated[int, typer.Argument(help="Pixels.")],
    config: ConfigOption = "k2.5",
) -> None:
    """Size, grid and tokens of a picture of this size, without a picture."""
    from kimi_jax_prep.plan import plan_image

    Console().print(_plan_table(width, height, plan_image(width=width, height=height, config=_read_config(config))))


def _read_config(name: str) -> MediaProcConfig:
    if name.lower() in PRESETS:
        return PRESETS[name.lower()]
    if not Path(name).exists():
        raise PrepError(f"--config is {name!r}; expected one of {', '.join(PRESETS)}, or a folder or file that exists.")
    return MediaProcConfig.from_json_file(name)


def _plan_table(width: int, height: int, plan: "MediaPlan") -> "Table":
    table = Table(show_header=False, box=None)
    frames, rows, columns = plan.grid_thw
    table.add_row("size", f"{width} x {height}")
    table.add_row("resized", f"{plan.width} x {plan.height}")
    table.add_row("padded", f"{plan.width + plan.pad_right} x {plan.height + plan.pad_bottom}")
    table.add_row("grid_thw", f"{frames} x {rows} x {columns} = {plan.num_patches} patches")
    table.add_row("tokens", str(plan.num_tokens))
    return table


def _write(batch: "PatchBatch", out: Path) -> None:
    arrays = {"pixel_values": batch.pixel_values, "grid_thws": batch.grid_thws}
    if out.suffix == ".npz":
        import numpy as np

        np.savez(out, **arrays)
    else:
        from safetensors.numpy import save_file

        save_file(arrays, out)


def main() -> None:
    """Entry point: errors about the input are one line, without a traceback."""
    try:
        app()
    except (PrepError, OSError) as err:
        print(f"error: {err}", file=sys.stderr)
        raise SystemExit(1) from err


if __name__ == "__main__":
    main()
