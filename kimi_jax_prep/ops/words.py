"""Resize arithmetic on words: pixels as 32-bit integers, with the first channel in the lowest byte.

One load of a word serves all channels of a pixel, and whole registers of words are loaded at once.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, UInt8, UInt32

from kimi_jax_prep.ops.axes import varying_axes, varying_like
from kimi_jax_prep.tables.taps import PRECISION_BITS

# Rows that the horizontal pass processes side by side: one AVX-512 register of words.
LANES = 16
# Taps per iteration of the loop over taps.
LOOP_TAPS = 8


def pack(pixels: UInt8[Array, "*s c"]) -> UInt32[Array, "*s"]:
    """Pack pixels with 1 to 4 channels into words."""
    words = pixels[..., 0].astype(jnp.uint32)
    for c in range(1, pixels.shape[-1]):
        words = words | (pixels[..., c].astype(jnp.uint32) << np.uint32(8 * c))
    return words


def unpack(words: UInt32[Array, "*s"], *, channels: int) -> UInt8[Array, "*s c"]:
    """Unpack words into pixels."""
    return jnp.stack([channel(words, c).astype(jnp.uint8) for c in range(channels)], axis=-1)


def channel(words: UInt32[Array, "*s"], c: int) -> Int32[Array, "*s"]:
    """Extract one byte of each word."""
    return ((words >> np.uint32(8 * c)) & np.uint32(255)).astype(jnp.int32)


def kernel(flag: Bool[Array, ""], make: Callable[[], Array]) -> Array:
    """Compute `make()` in a separate kernel. `flag` is always true, but the compiler must not be able to tell.

    XLA's CPU compiler fuses the steps of a resize into one kernel, which then recomputes the earlier steps for every
    sample. It does not fuse across the branches of a condition; `optimization_barrier` does not prevent the fusion.
    """
    made = jax.eval_shape(make)
    return jax.lax.cond(flag, make, lambda: varying_like(jnp.zeros(made.shape, made.dtype), varying_axes(made)))


def interleave(rows: UInt32[Array, "h w"]) -> UInt32[Array, "n w lanes"]:
    """Interleave groups of `LANES` rows, so that the same column of all rows is contiguous.

    `h` is a multiple of `LANES`. Horizontal taps then work on whole registers instead of single words. Rows are split
    4 x 4 because XLA generates better code for that transposition than for 16 at once.
    """
    h, w = rows.shape
    # (n a b) w -> n w (a b)
    return rows.reshape(h // LANES, 4, LANES // 4, w).transpose(0, 3, 1, 2).reshape(h // LANES, w, LANES)


def separate(lanes: UInt32[Array, "n w lanes"]) -> UInt32[Array, "h w"]:
    """Undo `interleave`."""
    n, w, _ = lanes.shape
    return lanes.reshape(n, w, 4, LANES // 4).transpose(0, 2, 3, 1).reshape(n * LANES, w)


def resample(
    words: UInt32[Array, "*s"],
    start: Int32[Array | np.ndarray, "outputs"],
    weights: Int32[Array | np.ndarray, "taps outputs"],
    *,
    axis: int,
    channels: int,
    groups: Int32[Array, ""] | int | None = None,
) -> UInt32[Array, "*z"]:
    """Compute weighted sums along an axis, round and clip them to bytes, and pack them.

    Args:
      words: packed pixels.
      start: first sample of each output.
      weights: 22-bit fixed point; 0 for samples past the edge.
      axis: of `words`, to resample.
      channels: number of bytes in use per word.
      groups: number of groups of `LOOP_TAPS` weights to loop over; None unrolls all weights.
    """
    shape, across = list(words.shape), [1] * words.ndim
    shape[axis] = across[axis] = start.shape[0]

    def add(k: int, start: Array, weights: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        # Positions past the last sample have weight 0, so the clip does not change the sum.
        samples = jnp.take(words, start + np.int32(k), axis=axis, mode="clip")
        return tuple(s + channel(samples, c) * weights[k].reshape(across) for c, s in enumerate(sums))

    sums = (jnp.full(shape, 1 << (PRECISION_BITS - 1), jnp.int32),) * channels
    start, weights = jnp.asarray(start), jnp.asarray(weights)
    if groups is None:
        for k in range(weights.shape[0]):
            sums = add(k, start, weights, sums)
    else:

        def group(i: Array | int, sums: tuple[Array, ...]) -> tuple[Array, ...]:
            first = jnp.asarray(i, jnp.int32) * np.int32(LOOP_TAPS)
            part = jax.lax.dynamic_slice_in_dim(weights, first, LOOP_TAPS)
            for k in range(LOOP_TAPS):
                sums = add(k, start + first, part, sums)
            return sums

        sums = jax.lax.fori_loop(np.int32(0), jnp.asarray(groups, jnp.int32), group, sums)
    out = jnp.zeros(shape, jnp.uint32)
    for c, s in enumerate(sums):
        byte = jnp.clip(s >> PRECISION_BITS, 0, 255).astype(jnp.uint32)
        out = out | (byte << np.uint32(8 * c))
    return out
