"""Pad, normalize, patchify: one fused function, pure JAX. Bytes 0..255 in, normalized patches out.

Everything here works eagerly, under `jit`, `vmap` and `jax.export`; shapes are static, nothing needs x64.
"""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped, UInt8

from kimi_jax_prep.checks import positive_int
from kimi_jax_prep.config import MediaProcConfig
from kimi_jax_prep.errors import PlanError
from kimi_jax_prep.ops.resize import resize_bicubic
from kimi_jax_prep.plan import MediaPlan, plan_chunk, plan_image
from kimi_jax_prep.tables.lut import normalize_lut


def patchify(
    frames: UInt8[Array | np.ndarray, "*t h w 3"],
    lut: Shaped[Array | np.ndarray, "256 3"] | None,
    *,
    patch_size: int = 14,
    merge_kernel_size: int = 2,
) -> Shaped[Array, "n 3 p p"]:
    """Pad frames right and bottom with byte 0, look every byte up and cut the frames into patches.

    Args:
      frames: RGB bytes. All leading axes together count as frames.
      lut: normalized value of byte `v` in channel `c`, from `normalize_lut`; None gives the bytes themselves.
      patch_size: pixels along a patch's side.
      merge_kernel_size: both padded sides become multiples of `patch_size * merge_kernel_size`.

    Returns:
      One row per patch in the dtype of `lut`, channels first: frames, then patch rows, then patch columns
      (not grouped by 2x2 as in Qwen).

    Raises:
      PlanError: another dtype or shape (at trace time).
    """
    _check_frames(frames)
    _check_lut(lut)
    patch_size = positive_int("patch_size", patch_size)
    merge_kernel_size = positive_int("merge_kernel_size", merge_kernel_size)
    if isinstance(lut, np.ndarray) and (lut == lut[:, :1]).all():
        lut = np.ascontiguousarray(lut[:, 0])  # one table for all channels is faster to look up
    return _patchify(frames, lut, patch_size=patch_size, merge_kernel_size=merge_kernel_size)


@functools.partial(jax.jit, static_argnames=("patch_size", "merge_kernel_size"))
def _patchify(frames: Array, lut: Array | None, *, patch_size: int, merge_kernel_size: int) -> Array:
    height, width = frames.shape[-3:-1]
    token = patch_size * merge_kernel_size
    t, p = math.prod(frames.shape[:-3]), patch_size
    frames = frames.reshape(t, height, width, 3)
    frames = jnp.pad(frames, ((0, 0), (0, -height % token), (0, -width % token), (0, 0)))
    rows, columns = frames.shape[1] // p, frames.shape[2] // p
    x = frames.reshape(t, rows, p, columns, p, 3).transpose(0, 1, 3, 5, 2, 4)  # t (r p) (k q) c -> t r k c p q
    return look_up(x.reshape(t * rows * columns, 3, p, p), lut)


def look_up(patches: UInt8[Array, "n 3 p p"], lut: Shaped[Array, "..."] | None) -> Shaped[Array, "n 3 p p"]:
    """Replace every byte of patches by its value in the table of its channel, (256, 3), or of all channels, (256,)."""
    if lut is None:
        return patches
    lut = jnp.asarray(lut)
    index = patches.astype(jnp.int32)
    if lut.ndim == 2:
        index = index * 3 + jax.lax.broadcasted_iota(jnp.int32, (1, 3, 1, 1), 1)
    if lut.dtype.itemsize == 2:
        # XLA's CPU compiler vectorizes look-ups of 4-byte entries but not of 2-byte ones: fetch the bit
        # patterns as 32-bit numbers, then narrow them.
        bits = jax.lax.bitcast_convert_type(lut, jnp.uint16).astype(jnp.uint32)
        found = jnp.take(bits.reshape(-1), index, mode="clip").astype(jnp.uint16)
        return jax.lax.bitcast_convert_type(found, lut.dtype)
    return jnp.take(lut.reshape(-1), index, mode="clip")


def preprocess_frames(
    frames: UInt8[Array | np.ndarray, "*t h w 3"], *, config: MediaProcConfig, dtype: str = "float32"
) -> Shaped[Array, "n 3 p p"]:
    """Resize, pad, look up, patchify one medium of RGB bytes.

    Args:
      frames: (h, w, 3) is an image, (t, h, w, 3) one video chunk, which has a budget of its own. Under
        `jit` each size compiles anew; for many sizes use `Preprocessor`.
      config: sizes, mean and std.
      dtype: "float32", "bfloat16", "float16" or "uint8" (the bytes, not normalized).

    Returns:
      Patches in the order of `patchify`.

    Raises:
      PlanError: another dtype, shape or frame count (at trace time).
    """
    _check_frames(frames)
    plan = plan_frames(frames.shape, config=config)
    resized = resize_bicubic(frames, height=plan.height, width=plan.width)
    lut = None if dtype == "uint8" else normalize_lut(config, dtype=dtype)
    return patchify(resized, lut, patch_size=config.patch_size, merge_kernel_size=config.merge_kernel_size)


def plan_frames(shape: tuple[int, ...], *, config: MediaProcConfig) -> MediaPlan:
    """The plan of an array of frames: (h, w, 3) is an image, (t, h, w, 3) one video chunk."""
    if len(shape) == 3:
        return plan_image(width=shape[1], height=shape[0], config=config)
    if len(shape) == 4:
        return plan_chunk(width=shape[2], height=shape[1], num_frames=shape[0], config=config)
    raise PlanError(f"frames are (h, w, 3) for an image or (t, h, w, 3) for a video chunk; got shape {shape}.")


def unpatchify(
    patches: Shaped[Array | np.ndarray, "n 3 p p"],
    grid_thw: Sequence[int] | np.ndarray,
    lut: Shaped[Array | np.ndarray, "256 3"] | None,
) -> UInt8[Array, "t h w 3"]:
    """Put the patches of one medium together again, back to bytes, padding included: for looking at them.

    Args:
      patches: what `patchify` made, or one medium's part of a batch.
      grid_thw: its frames, patch rows, patch columns, as plain numbers, or its row of `grid_thws`.
      lut: the table it was made with; values between two entries go to the nearer one. None for bytes.

    Raises:
      PlanError: the grid does not fit the number of patches.
    """
    if len(grid_thw) != 3:
        raise PlanError(f"`grid_thw` is (frames, patch rows, patch columns); got {len(grid_thw)} numbers.")
    t, rows, columns = (positive_int("grid_thw", n) for n in grid_thw)
    n = t * rows * columns
    if len(patches.shape) != 4 or tuple(patches.shape[:2]) != (n, 3):
        raise PlanError(f"grid {(t, rows, columns)} needs patches of shape ({n}, 3, p, p); got {tuple(patches.shape)}.")
    _check_lut(lut)
    return _unpatchify(patches, lut, grid_thw=(t, rows, columns))


@functools.partial(jax.jit, static_argnames="grid_thw")
def _unpatchify(patches: Array, lut: Array | None, *, grid_thw: tuple[int, int, int]) -> Array:
    t, rows, columns = grid_thw
    p = patches.shape[-1]
    if lut is not None:
        # Entries rise with the byte in every channel, so a value's byte is the number of midpoints below it.
        entries = jnp.asarray(lut).astype(jnp.float32)
        midpoints = (entries[1:] + entries[:-1]) / 2
        values = patches.astype(jnp.float32).transpose(1, 0, 2, 3).reshape(3, -1)
        found = jax.vmap(lambda m, v: jnp.searchsorted(m, v, side="left"))(midpoints.T, values)
        patches = found.astype(jnp.uint8).reshape(3, -1, p, p).transpose(1, 0, 2, 3)
    x = patches.reshape(t, rows, columns, 3, p, p).transpose(0, 1, 4, 2, 5, 3)  # t r k c p q -> t r p k q c
    return x.reshape(t, rows * p, columns * p, 3)


def _check_frames(frames: Array | np.ndarray) -> None:
    if not hasattr(frames, "dtype") or frames.dtype != np.uint8:
        raise PlanError(f"frames are uint8 arrays; got {getattr(frames, 'dtype', type(frames).__name__)}.")
    if len(frames.shape) < 3 or frames.shape[-1] != 3 or 0 in frames.shape:
        raise PlanError(f"frames are (..., h, w, 3) with at least one pixel; got shape {tuple(frames.shape)}.")


def _check_lut(lut: Array | np.ndarray | None) -> None:
    if lut is not None and tuple(lut.shape) != (256, 3):
        raise PlanError(f"`lut` is (256, 3), from `normalize_lut`; got shape {tuple(lut.shape)}.")
