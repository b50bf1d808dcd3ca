"""Pillow's 8-bit bicubic resize in plain Python and NumPy, one number after another: the standard for taps."""

import math

import numpy as np


def dense_taps(n_in: int, n_out: int) -> np.ndarray:
    """int64 (n_out, n_in): the 22-bit fixed-point weight of every input sample in every output sample."""
    dense = np.zeros((n_out, n_in), np.int64)
    scale = n_in / n_out
    f = max(scale, 1.0)
    for i in range(n_out):
        center = (i + 0.5) * scale
        low = max(int(center - 2 * f + 0.5), 0)
        high = min(int(center + 2 * f + 0.5), n_in)
        weights = [_cubic((j - center + 0.5) * (1 / f)) for j in range(low, high)]
        total = 0.0
        for weight in weights:
            total += weight
        dense[i, low:high] = [int(w / total * 2**22 + math.copysign(0.5, w)) for w in weights]
    return dense


def _cubic(x: float) -> float:
    a, x = -0.5, abs(x)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


def resize(image: np.ndarray, *, height: int, width: int, pass_order: str) -> np.ndarray:
    """uint8 (h, w, c) to (height, width, c): two passes that store bytes, one if the other side stays."""
    h, w, _ = image.shape
    vertical_first = pass_order == "pillow-13" and h - height > 0 and h - height > 2 * (w - width)
    for axis in (0, 1) if vertical_first else (1, 0):
        n_out = (height, width)[axis]
        if image.shape[axis] != n_out:
            sums = np.tensordot(dense_taps(image.shape[axis], n_out), image.astype(np.int64), axes=(1, axis))
            image = np.moveaxis(np.clip((sums + 2**21) >> 22, 0, 255).astype(np.uint8), 0, axis)
    return image
