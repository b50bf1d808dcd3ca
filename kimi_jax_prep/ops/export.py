"""`export_preprocess`: the compiled function for one size as bytes, for processes and runtimes without this package."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

from kimi_jax_prep.checks import one_of, positive_int, shown
from kimi_jax_prep.config import ConfigLike, as_config
from kimi_jax_prep.errors import PlanError
from kimi_jax_prep.fork import require_jax
from kimi_jax_prep.ops.patchify import preprocess_frames
from kimi_jax_prep.tables.lut import dtype_name

FORMATS = ("jax", "stablehlo")
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def export_preprocess(
    *,
    height: int,
    width: int,
    config: ConfigLike,
    dtype: Any = "float32",
    num_frames: int | None = None,
    batch: int | None = None,
    platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
    format: str = "jax",
) -> bytes:
    """Export `preprocess_frames` for one size with `jax.export`.

    The exported function takes uint8 frames (height, width, 3), with the axes `batch` and `num_frames` in front if they
    are given, and returns patches (n, 3, p, p), with the axis `batch` in front. It contains plain StableHLO operations,
    no custom calls. The order of the resize passes is that of the Pillow installed now.

    Args:
      height, width: pixels of the frames.
      config: sizes, mean and std.
      dtype: of the patches: "float32", "bfloat16", "float16" or "uint8".
      num_frames: of a video chunk; None exports an image.
      batch: number of images or chunks per call; None exports a function of one, without a batch axis.
      platforms: to lower for, of "cpu", "cuda", "rocm" and "tpu". The devices need not be present.
      format: "jax" for `jax.export.deserialize`, or "stablehlo" for a StableHLO portable artifact, which other
        compilers read and which has one platform.

    Returns:
      The bytes, for a file. JAX guarantees that its later versions read them for six months.

    Raises:
      PlanError: a wrong number, dtype, platform or format.
      TypeError: `config` is not a config.
      ImportError: flatbuffers is not installed, for the format "jax".
      RuntimeError: the process was forked after JAX had started.
    """
    require_jax("`export_preprocess`")
    config, dtype = as_config(config), dtype_name(dtype)
    one_of("format", format, FORMATS)
    platforms = (platforms,) if isinstance(platforms, str) else tuple(platforms)
    for platform in platforms:
        one_of("platforms", platform, PLATFORMS)
    if not platforms or (format == "stablehlo" and len(platforms) > 1):
        raise PlanError(
            f"`platforms` is {shown(platforms)}; expected {'one' if platforms else 'at least one'} platform."
        )
    shape: tuple[int, ...] = (positive_int("height", height), positive_int("width", width), 3)
    if num_frames is not None:
        shape = (positive_int("num_frames", num_frames, optional=True), *shape)
    function: Any = functools.partial(preprocess_frames, config=config, dtype=dtype)
    if batch is not None:
        shape, function = (positive_int("batch", batch, optional=True), *shape), jax.vmap(function)
    frames = jax.ShapeDtypeStruct(shape, jnp.uint8)
    exported = jax.export.export(jax.jit(function), platforms=platforms)(frames)
    if format == "stablehlo":
        return bytes(exported.mlir_module_serialized)
    try:
        return bytes(exported.serialize())
    except ImportError as err:
        raise ImportError('`jax.export` needs flatbuffers: pip install "kimi-jax-prep[export]"') from err
