"""The comparison that all tests use: equal dtype, equal shape, equal bits."""

import numpy as np
import pytest


def assert_bit_equal(got, want, *, what: str) -> None:
    """Fail unless two arrays agree in dtype, shape and every bit (so -0.0 is not 0.0, and NaN payloads count)."""
    got, want = np.asarray(got), np.asarray(want)
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        pytest.fail(f"{what}: {got.dtype}{got.shape} != {want.dtype}{want.shape}")
    wrong = np.argwhere(_bits(got) != _bits(want))
    if len(wrong):
        at = tuple(wrong[0].tolist())
        pytest.fail(f"{what}: {len(wrong)} of {got.size} differ, first at {at}: {got[at]!r} != {want[at]!r}")


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.itemsize}").reshape(array.shape)
