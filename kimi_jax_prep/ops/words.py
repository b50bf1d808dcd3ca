"""The arithmetic of the resize on words: pixels as 32-bit numbers, the first channel in the lowest byte.

One fetch of a word serves all channels of its pixel, and whole registers of words are fetched at once.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, UInt8, UInt32

from kimi_jax_prep.tables.taps import PRECISION_BITS

# Rows that the horizontal pass works on side by side: one AVX-512 register of words.
LANES = 16
# Taps that a loop over taps takes at a time.
LOOP_TAPS = 8


def pack(pixels: UInt8[Array, "*s c"]) -> UInt32[Array, "*s"]:
    """Words of pixels with 1 to 4 channels."""
    words = pixels[..., 0].astype(jnp.uint32)
    for c in range(1, pixels.shape[-1]):
        words = words | (pixels[..., c].astype(jnp.uint32) << np.uint32(8 * c))
    return words


def unpack(words: UInt32[Array, "*s"], *, channels: int) -> UInt8[Array, "*s c"]:
    """Pixels of words."""
    return jnp.stack([channel(words, c).astype(jnp.uint8) for c in range(channels)], axis=-1)


def channel(words: UInt32[Array, "*s"], c: int) -> Int32[Array, "*s"]:
    """One byte of each word."""
    return ((words >> np.uint32(8 * c)) & np.uint32(255)).astype(jnp.int32)


def kernel(flag: Bool[Array, ""], make: Callable[[], Array]) -> Array:
    """What `make` computes, in a kernel of its own; `flag` is true, in a way that the compiler cannot know.

    XLA's CPU compiler would fuse the steps of a resize into one, which then fetches every sample of every step on its
    own again. It does not look into the branches of a condition; `optimization_barrier` does not stop it.
    """
    shape = jax.eval_shape(make)
    return jax.lax.cond(flag, make, lambda: jnp.zeros(shape.shape, shape.dtype))


def interleave(rows: UInt32[Array, "h w"]) -> UInt32[Array, "n w lanes"]:
    """Put the same column of `LANES` rows side by side; `h` is a multiple of it.

    Neighbours along a row lie side by side in memory, so that taps along it would be fetched one by one. Rows are split
    4 x 4 because XLA's compiler makes better code for that transposition than for 16 at once.
    """
    h, w = rows.shape
    # (n a b) w -> n w (a b)
    return rows.reshape(h // LANES, 4, LANES // 4, w).transpose(0, 3, 1, 2).reshape(h // LANES, w, LANES)


def separate(lanes: UInt32[Array, "n w lanes"]) -> UInt32[Array, "h w"]:
    """The rows again."""
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
    """Weighted sums of neighbours along an axis, rounded and clipped to bytes, packed again.

    Args:
      start: each output's first sample.
      weights: 22-bit fixed point; 0 for outputs that hang over the edge.
      groups: loop over so many groups of `LOOP_TAPS` weights, instead of all weights written out.
    """
    shape, across = list(words.shape), [1] * words.ndim
    shape[axis] = across[axis] = start.shape[0]

    def add(k: int, start: Array, weights: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        # The clip serves weights beyond the last sample in use, which are 0.
        samples = jnp.take(words, start + np.int32(k), axis=axis, mode="clip")
        return tuple(s + channel(samples, c) * weights[k].reshape(across) for c, s in enumerate(sums))

    sums = (jnp.full(shape, 1 << (PRECISION_BITS - 1), jnp.int32),) * channels
    start, weights = jnp.asarray(start), jnp.asarray(weights)
    if groups is None:
        for k in range(weights.shape[0]):
            sums = add(k, start, weights, sums)
    else:

        def group(i: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
            first = i * np.int32(LOOP_TAPS)
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
