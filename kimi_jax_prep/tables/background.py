"""Blend tables for K3's background behind transparent pixels.

The checkpoint blends in float32 (a = alpha / 255, then a * rgb + (1 - a) * board, two products and one sum) and
truncates. Compilers contract such a sum into a fused multiply-add, which rounds once instead of twice. A blend has only
256 x 256 possible inputs per board value, so NumPy computes a table here, and a look-up is exact on every platform.
"""

import functools

import numpy as np
from jaxtyping import UInt8

from kimi_jax_prep.config import TransparentBgConfig

_PLAIN_BOARDS = {"white": 255, "black": 0, "gray": 128}


def board_values(background: TransparentBgConfig) -> tuple[int, int]:
    """Return the bytes of the cells where (y // s + x // s) is even, and where it is odd."""
    if background.pattern != "chessboard":
        value = _PLAIN_BOARDS[background.pattern]
        return value, value
    white, gray = background.chessboard_white_value, background.chessboard_gray_value
    return (white, gray) if background.chessboard_square_on_top_left else (gray, white)


def board_square(background: TransparentBgConfig) -> int:
    """Return the side of a cell in pixels, at most 2**31 - 1: a larger cell covers every array that int32 can index."""
    return min(background.chessboard_square_size, 2**31 - 1)


@functools.lru_cache(maxsize=8)
def blend_tables(background: TransparentBgConfig) -> UInt8[np.ndarray, "2 256 256"]:
    """Return the blended byte for [odd cell, alpha, value]. Read-only, 128 KiB."""
    a = (np.arange(256, dtype=np.float32) / np.float32(255.0))[:, None]
    value = np.arange(256, dtype=np.float32)[None, :]
    tables = [
        (a * value + (np.float32(1.0) - a) * np.float32(board)).astype(np.uint8) for board in board_values(background)
    ]
    blended = np.stack(tables)
    blended.flags.writeable = False
    return blended


@functools.cache
def straight_table(*, premultiplied: bool) -> UInt8[np.ndarray, "256 256"]:
    """Return `table[alpha, v]`: Pillow's RGBa to RGBA conversion (`rgba2rgbA` in `Convert.c`), or the identity."""
    value = np.repeat(np.arange(256)[None, :], 256, axis=0)
    if premultiplied:
        alpha = np.arange(256)[:, None]
        divided = np.minimum(255 * value // np.maximum(alpha, 1), 255)
        value = np.where((alpha == 0) | (alpha == 255), value, divided)
    table = value.astype(np.uint8)
    table.flags.writeable = False
    return table
