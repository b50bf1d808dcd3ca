"""Pad, normalize and patchify in one fused function, in pure JAX: bytes to normalized patches.

All functions work eagerly and under `jit`, `vmap`, `shard_map` and `jax.export`. Shapes are static; x64 is not needed.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Shaped, UInt8

from kimi_jax_prep.checks import positive_int, shown
from kimi_jax_prep.config import ConfigLike, as_config
from kimi_jax_prep.errors import PlanError
from kimi_jax_prep.fork import require_jax
from kimi_jax_prep.ops.arguments import (
    Constant,
    check_lut,
    check_pixels,
    check_size,
    described,
    on_device,
    table_arguments,
)
from kimi_jax_prep.ops.axes import over_auto_axes
from kimi_jax_prep.ops.resize import resize_bicubic
from kimi_jax_prep.plan import MediaPlan, plan_chunk, plan_image
from kimi_jax_prep.tables.lut import normalize_lut, output_dtype


def patchify(
    frames: UInt8[Array | np.ndarray, "*t h w 3"],
    lut: Shaped[Array | np.ndarray, "256 3"] | None,
    *,
    patch_size: int = 14,
    merge_kernel_size: int = 2,
) -> Shaped[Array, "n 3 p p"]:
    """Pad frames right and bottom with byte 0, look up every byte and split the frames into patches.

    Args:
      frames: RGB bytes. All leading axes are flattened into one axis of frames.
      lut: normalized value of byte `v` in channel `c`, from `normalize_lut`; None returns the bytes themselves.
      patch_size: pixels along a patch's side.
      merge_kernel_size: both padded sides become multiples of `patch_size * merge_kernel_size`.

    Returns:
      One row per patch in the dtype of `lut`, channels first. The order is frames, then patch rows, then patch
      columns (not grouped by 2x2 as in Qwen). On a mesh, rows are sharded as the first leading axis of `frames`.

    Raises:
      PlanError: a wrong dtype, shape or size (at trace time).
      RuntimeError: the process was forked after JAX had started.
    """
    require_jax("`patchify`")
    check_pixels("frames", frames, channels=(3,), layout="(..., h, w, 3)")
    if lut is not None:
        check_lut(lut)
    patch_size = positive_int("patch_size", patch_size)
    merge_kernel_size = positive_int("merge_kernel_size", merge_kernel_size)
    height, width = (side + -side % (patch_size * merge_kernel_size) for side in frames.shape[-3:-1])
    check_size("the padded frames", (math.prod(frames.shape[:-3]), height, width, 3))
    table, constant = table_arguments(lut)
    run = functools.partial(_patchify, constant=constant, patch_size=patch_size, merge_kernel_size=merge_kernel_size)
    return over_auto_axes(run, on_device(frames), table, out_spec=_spec_of_first_leading_axis)


def _spec_of_first_leading_axis(spec: Sequence[Any]) -> PartitionSpec:
    return PartitionSpec(spec[0] if len(spec) > 3 else None, None, None, None)


@functools.partial(jax.jit, static_argnames=("constant", "patch_size", "merge_kernel_size"))
def _patchify(
    frames: Array, lut: Array | None, *, constant: Constant | None, patch_size: int, merge_kernel_size: int
) -> Array:
    height, width = frames.shape[-3:-1]
    token = patch_size * merge_kernel_size
    t, p = math.prod(frames.shape[:-3]), patch_size
    frames = frames.reshape(t, height, width, 3)
    frames = jnp.pad(frames, ((0, 0), (0, -height % token), (0, -width % token), (0, 0)))
    rows, columns = frames.shape[1] // p, frames.shape[2] // p
    x = frames.reshape(t, rows, p, columns, p, 3).transpose(0, 1, 3, 5, 2, 4)  # t (r p) (k q) c -> t r k c p q
    return look_up(x.reshape(t * rows * columns, 3, p, p), lut if constant is None else constant.value)


def look_up(
    patches: UInt8[Array, "*n 3 p q"], lut: Shaped[Array | np.ndarray, "..."] | None
) -> Shaped[Array, "*n 3 p q"]:
    """Replace every byte by its value in the table of its channel, (256, 3), or of all channels, (256,)."""
    if lut is None:
        return patches
    lut = jnp.asarray(lut)
    index = patches.astype(jnp.int32)
    if lut.ndim == 2:
        channel = (*[1] * (patches.ndim - 3), 3, 1, 1)
        index = index * 3 + jax.lax.broadcasted_iota(jnp.int32, channel, patches.ndim - 3)
    if lut.dtype.itemsize == 2:
        # XLA's CPU compiler vectorizes look-ups of 4-byte entries but not of 2-byte ones: look up the bit
        # patterns as 32-bit integers, then narrow them.
        bits = jax.lax.bitcast_convert_type(lut, jnp.uint16).astype(jnp.uint32)
        found = jnp.take(bits.reshape(-1), index, mode="clip").astype(jnp.uint16)
        return jax.lax.bitcast_convert_type(found, lut.dtype)
    return jnp.take(lut.reshape(-1), index, mode="clip")


def normalize(
    patches: UInt8[Array | np.ndarray, "*n 3 p p"],
    lut: Shaped[Array | np.ndarray, "256 3"],
    *,
    dtype: Any = None,
) -> Shaped[Array, "*n 3 p p"]:
    """Look up uint8 patches in a byte table, on the device: the same bits as normalizing on the host.

    Send batches of `dtype="uint8"` to the device and normalize there, and the transfer has a quarter of the bytes.

    Args:
      patches: bytes, channels first: `pixel_values` of a uint8 batch, with any leading axes. All axes keep their
        sharding. Padding rows of a `PackedPatches` are zeros and become the values of byte 0; mask them by
        `segment_ids`.
      lut: normalized value of byte `v` in channel `c`, float32, from `normalize_lut`.
      dtype: "float32", "bfloat16" or "float16", to which the table is rounded (to nearest even); None keeps the
        table's dtype.

    Returns:
      An array of the shape of `patches`.

    Raises:
      PlanError: a wrong dtype or shape (at trace time).
      RuntimeError: the process was forked after JAX had started.
    """
    require_jax("`normalize`")
    is_array = hasattr(patches, "dtype") and hasattr(patches, "shape")
    if not is_array or patches.dtype != np.uint8 or len(patches.shape) < 3 or patches.shape[-3] != 3:
        raise PlanError(f"`patches` must be a uint8 array (..., 3, p, p); got {described(patches)}.")
    check_lut(lut)
    if dtype is not None:
        lut = lut.astype(output_dtype(dtype))
    table, constant = table_arguments(lut)
    run = functools.partial(_normalize, constant=constant)
    return over_auto_axes(run, on_device(patches), table, out_spec=lambda spec: PartitionSpec(*spec))


@functools.partial(jax.jit, static_argnames="constant")
def _normalize(patches: Array, lut: Array | None, *, constant: Constant | None) -> Array:
    return look_up(patches, lut if constant is None else constant.value)


def preprocess_frames(
    frames: UInt8[Array | np.ndarray, "*t h w 3"], *, config: ConfigLike, dtype: Any = "float32"
) -> Shaped[Array, "n 3 p p"]:
    """Resize, pad, normalize and patchify one image or video chunk of RGB bytes.

    Args:
      frames: (h, w, 3) is an image; (t, h, w, 3) is one video chunk, which has its own patch budget. Under `jit`
        each size compiles anew; for many sizes use `Preprocessor`.
      config: sizes, mean and std.
      dtype: "float32", "bfloat16", "float16" or "uint8" (the bytes, not normalized); also as a dtype of NumPy, JAX or
        torch.

    Returns:
      Patches in the order of `patchify`.

    Raises:
      PlanError: a wrong dtype, shape or frame count (at trace time).
      TypeError: `config` is not a config.
      RuntimeError: the process was forked after JAX had started.
    """
    require_jax("`preprocess_frames`")
    config = as_config(config)
    check_pixels("frames", frames, channels=(3,), layout="(h, w, 3) or (t, h, w, 3)")
    to_bytes = output_dtype(dtype) == np.uint8
    plan = plan_frames(frames.shape, config=config)
    resized = resize_bicubic(frames, height=plan.height, width=plan.width)
    lut = None if to_bytes else normalize_lut(config, dtype=dtype)
    return patchify(resized, lut, patch_size=config.patch_size, merge_kernel_size=config.merge_kernel_size)


def plan_frames(shape: tuple[int, ...], *, config: ConfigLike) -> MediaPlan:
    """Plan an array of frames: (h, w, 3) is an image, (t, h, w, 3) one video chunk."""
    if len(shape) == 3:
        return plan_image(width=shape[1], height=shape[0], config=config)
    if len(shape) == 4:
        return plan_chunk(width=shape[2], height=shape[1], num_frames=shape[0], config=config)
    raise PlanError(
        f"`frames` must be (h, w, 3) for an image or (t, h, w, 3) for a video chunk; got shape {tuple(shape)}."
    )


def unpatchify(
    patches: Shaped[Array | np.ndarray, "n 3 p p"],
    grid_thw: Sequence[int] | np.ndarray,
    lut: Shaped[Array | np.ndarray, "256 3"] | None,
) -> UInt8[Array, "t h w 3"]:
    """Reassemble the frames of one medium from its patches, padding included, for visual inspection.

    Args:
      patches: from `patchify`, or one medium's part of a batch.
      grid_thw: frames, patch rows and patch columns, as plain numbers or as a row of `grid_thws`.
      lut: the table that normalized the patches, with entries that rise with the byte; each value becomes the byte of
        the nearest entry. None if the patches are bytes.

    Returns:
      Bytes; on a mesh, replicated.

    Raises:
      PlanError: the grid does not match the number of patches, or the dtypes do not fit the table.
      RuntimeError: the process was forked after JAX had started.
    """
    require_jax("`unpatchify`")
    if isinstance(grid_thw, str) or not hasattr(grid_thw, "__len__") or len(grid_thw) != 3:
        raise PlanError(
            f"`grid_thw` is {shown(grid_thw)}; expected three whole numbers: frames, patch rows, patch columns."
        )
    t, rows, columns = (positive_int("grid_thw", n) for n in grid_thw)
    n = t * rows * columns
    if not hasattr(patches, "dtype") or len(np.shape(patches)) != 4 or tuple(patches.shape[:2]) != (n, 3):
        raise PlanError(
            f"the grid {shown((t, rows, columns))} needs an array of patches ({shown(n)}, 3, p, p); got "
            f"{described(patches)}."
        )
    if lut is not None:
        check_lut(lut)
    is_bytes = lut is None or lut.dtype == np.uint8
    if (patches.dtype == np.uint8) != is_bytes or not jnp.issubdtype(patches.dtype, jnp.number):
        expected = "uint8 patches where `lut` is None or uint8" if lut is None or is_bytes else f"{lut.dtype} patches"
        raise PlanError(f"`unpatchify` needs {expected}; got {patches.dtype} patches.")
    run = functools.partial(_unpatchify, grid_thw=(t, rows, columns))
    # A table of bytes holds each byte at its own place.
    table = None if lut is None or is_bytes else on_device(lut)
    return over_auto_axes(run, on_device(patches), table, out_spec=lambda _: PartitionSpec(None, None, None, None))


@functools.partial(jax.jit, static_argnames="grid_thw")
def _unpatchify(patches: Array, lut: Array | None, *, grid_thw: tuple[int, int, int]) -> Array:
    t, rows, columns = grid_thw
    p = patches.shape[-1]
    if lut is not None:
        # Entries rise with the byte in every channel, so a value's byte is the number of midpoints below it.
        entries = lut.astype(jnp.float32)
        midpoints = (entries[1:] + entries[:-1]) / 2
        values = patches.astype(jnp.float32).transpose(1, 0, 2, 3).reshape(3, -1)
        found = jax.vmap(lambda m, v: jnp.searchsorted(m, v, side="left"))(midpoints.T, values)
        patches = found.astype(jnp.uint8).reshape(3, -1, p, p).transpose(1, 0, 2, 3)
    x = patches.reshape(t, rows, columns, 3, p, p).transpose(0, 1, 4, 2, 5, 3)  # t r k c p q -> t r p k q c
    return x.reshape(t, rows * p, columns * p, 3)
