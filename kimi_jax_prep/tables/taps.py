"""The fixed-point taps of a bicubic resize, computed in float64 with the operation order of Pillow's `Resample.c`."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int32, Int64

# Taps overshoot [0, 1], so a sum of bytes times taps needs 8 + 2 bits above the fraction, which leaves 22 of 32.
PRECISION_BITS = 32 - 8 - 2


class ResizeTaps(NamedTuple):
    """Taps of one axis of a bicubic resize from n_in to n_out samples."""

    start: Int32[np.ndarray, "n_out"]
    """First input sample of each output."""
    weights: Int32[np.ndarray, "n_out k"]
    """Weights of the samples from `start` on, in 22-bit fixed point; 0 for samples that are not used."""


def bicubic_taps(n_in: int, n_out: int) -> ResizeTaps:
    """Compute the taps of one axis, in float64 and in Pillow's operation order; another order rounds differently.

    Returns:
      Read-only arrays; `k` is the largest number of samples that any output uses, and
      `start + k <= n_in` holds wherever `k <= n_in`.
    """
    center, low, high = _windows(n_in, n_out)
    stretch = max(n_in / n_out, 1.0)
    k = int((high - low).max())
    # Near the end of the axis, move the window back and put zeros in front, so that k samples from `start` on always
    # exist.
    start = np.minimum(low, max(n_in - k, 0))
    sample = start[:, None] + np.arange(k)
    used = (sample >= low[:, None]) & (sample < high[:, None])
    x = (sample - center[:, None] + 0.5) * (1.0 / stretch)
    weights = np.where(used, _cubic(x), 0.0)
    # Pillow sums from left to right; a pairwise sum differs in the last bit. The zeros do not change the sum.
    total = np.cumsum(weights, axis=1)[:, -1:]
    # Pillow divides by the sum only where it is not 0; it never is for a cubic.
    unit = weights / total * (1 << PRECISION_BITS)
    fixed = np.where(unit < 0, unit - 0.5, unit + 0.5).astype(np.int32)
    taps = ResizeTaps(start.astype(np.int32), fixed)
    for array in taps:
        array.flags.writeable = False
    return taps


def num_taps(n_in: int, n_out: int) -> int:
    """Return `k` of `bicubic_taps` without computing the weights, which take gigabytes for an axis of millions."""
    _, low, high = _windows(n_in, n_out)
    return int((high - low).max())


def _windows(
    n_in: int, n_out: int
) -> tuple[Float64[np.ndarray, "n_out"], Int64[np.ndarray, "n_out"], Int64[np.ndarray, "n_out"]]:
    """Return, for each output, its center, its first input sample and the end of its window."""
    scale = n_in / n_out
    support = 2.0 * max(scale, 1.0)
    center = (np.arange(n_out, dtype=np.float64) + 0.5) * scale
    low = np.maximum((center - support + 0.5).astype(np.int64), 0)
    high = np.minimum((center + support + 0.5).astype(np.int64), n_in)
    return center, low, high


def _cubic(x: np.ndarray) -> np.ndarray:
    a = -0.5
    x = np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))
