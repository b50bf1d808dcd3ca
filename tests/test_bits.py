"""The comparison helper passes on equal bits and fails on everything else."""

import ml_dtypes
import numpy as np
import pytest
from bits import assert_bit_equal

ONE = np.float32([1.0])


def nan(payload: int) -> np.ndarray:
    return np.array([0x7FC00000 + payload], np.uint32).view(np.float32)


@pytest.mark.parametrize(
    "array",
    [
        np.float32([0.0, -0.0, np.inf]),
        nan(1),
        np.zeros((0, 3), np.int64),
        np.array(7, np.uint8),
        np.array([1.5], ml_dtypes.bfloat16),
        np.arange(12, dtype=np.float16).reshape(3, 4).T,
    ],
    ids=lambda a: f"{a.dtype}{a.shape}",
)
def test_equal_bits_pass(array):
    assert_bit_equal(array.copy(), array, what="copy")


@pytest.mark.parametrize(
    ("got", "want", "message"),
    [
        (np.float32([0.0]), np.float32([-0.0]), "1 of 1 differ, first at"),
        (nan(1), nan(2), "1 of 1 differ, first at"),
        (ONE, np.nextafter(ONE, np.float32(2)), "1 of 1 differ, first at"),
        (ONE.astype(ml_dtypes.bfloat16), np.array([1.0078125], ml_dtypes.bfloat16), "1 of 1 differ, first at"),
        (np.array(1), np.array(2), "1 of 1 differ, first at"),
        (ONE, ONE.astype(np.float64), "float32.* != float64"),
        (ONE.astype(np.float16), ONE.astype(ml_dtypes.bfloat16), "float16.* != bfloat16"),
        (np.int32([1]), np.uint32([1]), "int32.* != uint32"),
        (np.zeros((2, 3)), np.zeros((3, 2)), r"\(2, 3\) != .*\(3, 2\)"),
        (np.zeros((0, 3)), np.zeros((0, 4)), r"\(0, 3\) != .*\(0, 4\)"),
        (ONE, ONE[0], r"\(1,\) != .*\(\)"),
        (np.array([[1, 2], [3, 4]]), np.array([[1, 2], [3, 5]]), r"1 of 4 differ, first at \(1, 1\): .*4.* != .*5"),
    ],
)
def test_the_ruler_can_fail(got, want, message):
    with pytest.raises(pytest.fail.Exception, match=f"this: .*{message}"):
        assert_bit_equal(got, want, what="this")
