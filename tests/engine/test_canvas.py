"""The canvas in patch layout: any rectangle lands where einops says, and nothing else is touched."""

import numpy as np
import pytest
from bits import assert_bit_equal
from einops import rearrange
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_jax_prep.engine.canvas import FrameCanvas


def in_patches(frame: np.ndarray, p: int) -> np.ndarray:
    return np.ascontiguousarray(rearrange(frame, "(r a) (c b) -> (r c a b)", a=p, b=p))


@settings(deadline=None, max_examples=300)
@given(data=st.data(), p=st.sampled_from([1, 2, 7, 14, 16, 28]), rows=st.integers(1, 5), columns=st.integers(1, 5))
def test_rectangles_land_in_their_patches_and_touch_nothing_else(data, p, rows, columns):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    frame = rng.integers(0, 2**32, (rows * p, columns * p), np.uint32)
    # The neighbours on both sides must stay as they are.
    around = rng.integers(0, 2**32, frame.size + 10, np.uint32)
    before = around.copy()
    words = around[5:-5]
    words[:] = in_patches(frame, p)
    canvas = FrameCanvas(words, rows, columns, p)
    for _ in range(4):
        top, left = data.draw(st.integers(0, rows * p - 1)), data.draw(st.integers(0, columns * p - 1))
        height, width = data.draw(st.integers(1, rows * p - top)), data.draw(st.integers(1, columns * p - left))
        # As tiles are: a part of a larger array, so that rows are not contiguous.
        larger = rng.integers(0, 2**32, (height + 2, width + 3), np.uint32)
        canvas.write(top, left, larger[1 : 1 + height, 2 : 2 + width])
        frame[top : top + height, left : left + width] = larger[1 : 1 + height, 2 : 2 + width]
    assert_bit_equal(words, in_patches(frame, p), what="after writes")
    height, width = data.draw(st.integers(0, rows * p)), data.draw(st.integers(0, columns * p))
    canvas.clear_outside(height, width)
    frame[height:] = 0
    frame[:, width:] = 0
    assert_bit_equal(words, in_patches(frame, p), what="after clear_outside")
    assert_bit_equal(around[:5], before[:5], what="before the frame")
    assert_bit_equal(around[-5:], before[-5:], what="behind the frame")


def test_a_frame_that_is_read_only_is_written_from():
    words = np.zeros(14 * 14 * 4, np.uint32)
    pixels = np.arange(28 * 28, dtype=np.uint32).reshape(28, 28)
    pixels.setflags(write=False)
    FrameCanvas(words, 2, 2, 14).write(0, 0, pixels)
    assert_bit_equal(words, in_patches(pixels, 14), what="canvas")


def test_words_that_are_not_whole_patches_are_an_error():
    with pytest.raises(ValueError, match="reshape"):
        FrameCanvas(np.zeros(14 * 14 * 4 - 1, np.uint32), 2, 2, 14)
