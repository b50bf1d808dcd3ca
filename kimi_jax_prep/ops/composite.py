"""Kimi K3's background behind transparent pixels, pure JAX. RGBA bytes in, RGB bytes out.

The blend is a table look-up, exact under every compiler: see `tables.background`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt8

from kimi_jax_prep.config import MediaProcConfig
from kimi_jax_prep.errors import PlanError
from kimi_jax_prep.tables.background import blend_tables


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
