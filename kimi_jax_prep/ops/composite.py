"""Kimi K3's background behind transparent pixels, in pure JAX: RGBA bytes to RGB bytes.

The blend is a table look-up, which is exact under every compiler: see `tables.background`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, UInt8

from kimi_jax_prep.config import ConfigLike, TransparentBgConfig, as_config
from kimi_jax_prep.errors import PlanError
from kimi_jax_prep.fork import require_jax
from kimi_jax_prep.ops.arguments import check_pixels, on_device
from kimi_jax_prep.ops.axes import over_auto_axes
from kimi_jax_prep.tables.background import blend_tables, board_square


def composite(rgba: UInt8[Array | np.ndarray, "*t h w 4"], *, config: ConfigLike) -> UInt8[Array, "*t h w 3"]:
    """Blend RGBA bytes onto the config's background.

    Args:
      rgba: uint8, not premultiplied. The chessboard starts at the top left of these pixels, so composite before
        padding, and after the resize if the config's `transparent_bg_fill_stage` is "after_resize".
      config: with a `transparent_bg_config`.

    Returns:
      uint8. All axes but the last keep their sharding.

    Raises:
      PlanError: the config has no background, or a wrong dtype or shape (at trace time).
      TypeError: `config` is not a config.
      RuntimeError: the process was forked after JAX had started.
    """
    require_jax("`composite`")
    background = as_config(config).transparent_bg_config
    if background is None:
        raise PlanError("`composite` needs a config with a `transparent_bg_config`; K2.5's has none and drops alpha.")
    check_pixels("rgba", rgba, channels=(4,), layout="(..., h, w, 4)")
    run = functools.partial(_composite, background=background)
    return over_auto_axes(run, on_device(rgba), out_spec=lambda spec: PartitionSpec(*spec[:-1], None))


@functools.partial(jax.jit, static_argnames="background")
def _composite(rgba: Array, *, background: TransparentBgConfig) -> Array:
    tables, square = blend_tables(background), np.int32(board_square(background))
    height, width = rgba.shape[-3:-1]
    y = jax.lax.broadcasted_iota(jnp.int32, (height, width, 1), 0)
    x = jax.lax.broadcasted_iota(jnp.int32, (height, width, 1), 1)
    odd = (y // square + x // square) % 2
    value = rgba[..., :3].astype(jnp.int32)
    alpha = rgba[..., 3:].astype(jnp.int32)
    index = (jnp.broadcast_to(odd, alpha.shape) * 256 + alpha) * 256 + value
    return jnp.take(jnp.asarray(tables).reshape(-1), index, mode="clip")
