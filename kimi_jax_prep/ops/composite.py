"""Kimi K3's background behind transparent pixels, pure JAX. RGBA bytes in, RGB bytes out.

The checkpoint blends in float32 (a = alpha / 255, then a * rgb + (1 - a) * board, two products and one sum) and
truncates. Compilers contract such a sum into a fused multiply-add, which rounds once less. A blend has only
256 x 256 inputs for each board value, so it is computed beforehand with NumPy and looked up: exact everywhere.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt8

from kimi_jax_prep._config import MediaProcConfig, TransparentBgConfig
from kimi_jax_prep._errors import PlanError

_PLAIN_BOARDS = {"white": 255, "black": 0, "gray": 128}


def board_values(background: TransparentBgConfig) -> tuple[int, int]:
    """Bytes of the cells where (y // s + x // s) is even, and where it is odd."""
    if background.pattern != "chessboard":
        value = _PLAIN_BOARDS[background.pattern]
        return value, value
    white, gray = background.chessboard_white_value, background.chessboard_gray_value
    return (white, gray) if background.chessboard_square_on_top_left else (gray, white)


@functools.lru_cache(maxsize=8)
def blend_tables(background: TransparentBgConfig) -> UInt8[np.ndarray, "2 256 256"]:
    """The blended byte for [odd cell, alpha, value]. Read-only, 128 KiB."""
    a = (np.arange(256, dtype=np.float32) / np.float32(255.0))[:, None]
    value = np.arange(256, dtype=np.float32)[None, :]
    tables = [
        (a * value + (np.float32(1.0) - a) * np.float32(board)).astype(np.uint8) for board in board_values(background)
    ]
    blended = np.stack(tables)
    blended.flags.writeable = False
    return blended


def composite(rgba: UInt8[Array | np.ndarray, "*t h w 4"], *, config: MediaProcConfig) -> UInt8[Array, "*t h w 3"]:
    """Blend RGBA bytes onto the config's background.

    Args:
      rgba: not premultiplied. The board starts at the top left of these pixels, so composite after the resize
        where the config's `transparent_bg_fill_stage` says so, and before padding.
      config: with a `transparent_bg_config`.

    Raises:
      PlanError: the config has no background, or another dtype or shape (at trace time).
    """
    if config.transparent_bg_config is None:
        raise PlanError("`composite` needs a config with a `transparent_bg_config`; K2.5's has none and drops alpha.")
    if not hasattr(rgba, "dtype") or rgba.dtype != np.uint8 or len(rgba.shape) < 3 or rgba.shape[-1] != 4:
        raise PlanError(
            f"`rgba` is uint8 (..., h, w, 4); got {getattr(rgba, 'dtype', type(rgba).__name__)} {np.shape(rgba)}."
        )
    background = config.transparent_bg_config
    return _composite(rgba, blend_tables(background), square=background.chessboard_square_size)


@functools.partial(jax.jit, static_argnames="square")
def _composite(rgba: Array, tables: Array, *, square: int) -> Array:
    height, width = rgba.shape[-3:-1]
    y = jax.lax.broadcasted_iota(jnp.int32, (height, width, 1), 0)
    x = jax.lax.broadcasted_iota(jnp.int32, (height, width, 1), 1)
    odd = (y // square + x // square) % 2
    value = rgba[..., :3].astype(jnp.int32)
    alpha = rgba[..., 3:].astype(jnp.int32)
    index = (jnp.broadcast_to(odd, alpha.shape) * 256 + alpha) * 256 + value
    return jnp.take(tables.reshape(-1), index, mode="clip")
