"""K3's background: every alpha, value and board byte; the board's squares; values reported by users."""

import dataclasses

import jax
import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image

from kimi_jax_prep import KIMI_K3, KIMI_K25, PlanError, TransparentBgConfig, composite
from kimi_jax_prep.reference import to_rgb

MODES = {"eager": lambda f: f, "jit": jax.jit, "vmap": lambda f: lambda x: jax.vmap(f)(x[None])[0]}
SHIPPED = KIMI_K3.transparent_bg_config
# A row for each alpha, a column for each value, in all three channels.
ALPHA, VALUE = np.mgrid[0:256, 0:256].astype(np.uint8)
EVERY_PAIR = np.stack([VALUE, VALUE, VALUE, ALPHA], axis=2)


def on(**background):
    return dataclasses.replace(KIMI_K3, transparent_bg_config=dataclasses.replace(SHIPPED, **background))


def expected_rgb(rgba: np.ndarray, config) -> np.ndarray:
    return np.asarray(to_rgb(Image.fromarray(rgba), config.transparent_bg_config))


def blended(board: int) -> np.ndarray:
    """Two products and one sum, each rounded to float32 by NumPy, then truncated."""
    a = ALPHA.astype(np.float32) / np.float32(255)
    x = a * VALUE.astype(np.float32) + (np.float32(1) - a) * np.float32(board)
    return np.repeat(x.astype(np.uint8)[..., None], 3, axis=2)


@pytest.mark.parametrize(("pattern", "board"), [("white", 255), ("gray", 128), ("black", 0)])
def test_every_pair_on_a_plain_board(pattern, board):
    config = on(pattern=pattern)
    got = composite(EVERY_PAIR, config=config)
    assert_bit_equal(got, blended(board), what=pattern)
    assert_bit_equal(got, expected_rgb(EVERY_PAIR, config), what=f"{pattern}, reference")


@pytest.mark.parametrize("top_left", [True, False])
@pytest.mark.parametrize(("white", "gray"), [(255, 180), (255, 200), (17, 3)])
def test_every_pair_on_both_cells(top_left, white, gray):
    config = on(
        chessboard_square_size=256,
        chessboard_white_value=white,
        chessboard_gray_value=gray,
        chessboard_square_on_top_left=top_left,
    )
    two_cells = np.concatenate([EVERY_PAIR, EVERY_PAIR], axis=1)
    got = composite(two_cells, config=config)
    even, odd = (white, gray) if top_left else (gray, white)
    assert_bit_equal(got, np.concatenate([blended(even), blended(odd)], axis=1), what="cells")
    assert_bit_equal(got, expected_rgb(two_cells, config), what="cells, reference")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("top_left", [True, False])
@pytest.mark.parametrize("square", [1, 7, 8, 16, 100])
def test_squares_in_every_mode(mode, top_left, square):
    config = on(chessboard_square_size=square, chessboard_square_on_top_left=top_left)
    rgba = np.random.default_rng(square).integers(0, 256, (45, 67, 4), np.uint8)
    got = MODES[mode](lambda x: composite(x, config=config))(rgba)
    assert_bit_equal(got, expected_rgb(rgba, config), what=f"{square} {top_left}")


def test_every_frame_has_the_same_board():
    frames = np.random.default_rng(0).integers(0, 256, (2, 3, 20, 31, 4), np.uint8)
    got = np.asarray(composite(frames, config=KIMI_K3))
    for i, j in np.ndindex(2, 3):
        assert_bit_equal(got[i, j], expected_rgb(frames[i, j], KIMI_K3), what=f"{i, j}")


def test_clear_pixels_show_the_board():
    # smg-project/smg#1984: they became black there.
    got = np.asarray(composite(np.zeros((28, 28, 4), np.uint8), config=KIMI_K3))
    assert [got[0, 0, 0], got[0, 8, 0], got[8, 0, 0], got[8, 8, 0]] == [255, 180, 180, 255]
    assert set(np.unique(got).tolist()) == {180, 255}


def test_blends_are_truncated():
    # smg-project/smg#1984
    half_black = np.broadcast_to(np.uint8([0, 0, 0, 128]), (28, 28, 4))
    got = np.asarray(composite(half_black, config=KIMI_K3))
    assert (got[0, 0, 0], got[0, 8, 0]) == (126, 89)
    white = np.broadcast_to(np.uint8([255, 255, 255, 65]), (28, 28, 4))
    assert np.asarray(composite(white, config=KIMI_K3))[0, 0, 0] == 254
    on_white = np.asarray(composite(EVERY_PAIR, config=on(pattern="white")))[:, 255, 0]
    assert (on_white == 254).sum() == 31
    assert set(np.unique(on_white).tolist()) == {254, 255}


@pytest.mark.parametrize("background", [None, TransparentBgConfig()], ids=["none", "default"])
def test_opaque_pixels_keep_their_colour(background):
    rgba = np.random.default_rng(1).integers(0, 256, (9, 9, 4), np.uint8)
    rgba[..., 3] = 255
    config = dataclasses.replace(KIMI_K3, transparent_bg_config=background or SHIPPED)
    assert_bit_equal(composite(rgba, config=config), rgba[..., :3], what="opaque")


@pytest.mark.parametrize(
    ("rgba", "config", "message"),
    [
        (EVERY_PAIR, KIMI_K25, "needs a config with a `transparent_bg_config`"),
        (EVERY_PAIR[..., :3], KIMI_K3, r"uint8 array \(\.\.\., h, w, 4\).*; got uint8 \(256, 256, 3\)"),
        (EVERY_PAIR.astype(np.float32), KIMI_K3, r"got float32 \(256, 256, 4\)"),
        (EVERY_PAIR[0], KIMI_K3, r"got uint8 \(256, 4\)"),
        ([[[0, 0, 0, 0]]], KIMI_K3, r"got list \[\[\[0, 0, 0, 0\]\]\]"),
        (None, KIMI_K3, r"`rgba` must be a uint8 array .*; got NoneType None"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_pixels(rgba, config, message):
    with pytest.raises(PlanError, match=message):
        composite(rgba, config=config)
