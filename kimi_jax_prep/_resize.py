"""Pillow's 8-bit bicubic resize, bit for bit, in pure JAX: taps, horizontal pass, vertical pass.

Bytes in, bytes out. Every pass is int32 and stores bytes, as Pillow's `Resample.c` does.
"""

import functools
import importlib.metadata

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt8

from kimi_jax_prep._errors import PlanError
from kimi_jax_prep._geometry import positive_int
from kimi_jax_prep._tables import PRECISION_BITS, ResizeTaps, bicubic_taps

PASS_ORDERS = ("horizontal-first", "pillow-13")


@functools.cache
def installed_pass_order() -> str:
    """The order in which the installed Pillow runs its two passes: it changed with Pillow 13."""
    return "pillow-13" if int(importlib.metadata.version("pillow").split(".")[0]) >= 13 else "horizontal-first"


def vertical_first(*, size_in: tuple[int, int], size_out: tuple[int, int], pass_order: str) -> bool:
    """Whether the vertical pass comes first. Sizes are (height, width) in pixels."""
    shrink_y, shrink_x = size_in[0] - size_out[0], size_in[1] - size_out[1]
    return pass_order == "pillow-13" and shrink_y > 0 and shrink_y > 2 * shrink_x


def resize_bicubic(
    frames: UInt8[Array | np.ndarray, "*t h w c"], *, height: int, width: int, pass_order: str | None = None
) -> UInt8[Array, "*t height width c"]:
    """Resize bytes exactly as `PIL.Image.resize((width, height), BICUBIC)` does.

    Args:
      frames: bytes with 1, 3 or 4 channels. Pillow premultiplies LA and RGBA before it resizes; that is the
        caller's step, channels are independent here.
      height, width: pixels of the result, static under `jit`.
      pass_order: "horizontal-first" (Pillow up to 12), "pillow-13", or None for the installed Pillow's. The two
        differ in a few bytes of pictures that shrink much more in height than in width.

    Raises:
      PlanError: another dtype, shape, size or order (at trace time).
    """
    if pass_order is None:
        pass_order = installed_pass_order()
    if pass_order not in PASS_ORDERS:
        raise PlanError(f"`pass_order` is {pass_order!r}; expected None or one of {', '.join(map(repr, PASS_ORDERS))}.")
    if not hasattr(frames, "dtype") or frames.dtype != np.uint8:
        raise PlanError(f"frames are uint8 arrays; got {getattr(frames, 'dtype', type(frames).__name__)}.")
    if len(frames.shape) < 3 or frames.shape[-1] not in (1, 2, 3, 4) or 0 in frames.shape:
        raise PlanError(f"frames are (..., h, w, c) with 1 to 4 channels and no empty side; got {tuple(frames.shape)}.")
    height, width = positive_int("height", height), positive_int("width", width)
    return _resize(frames, height=height, width=width, pass_order=pass_order)


@functools.partial(jax.jit, static_argnames=("height", "width", "pass_order"))
def _resize(frames: Array, *, height: int, width: int, pass_order: str) -> Array:
    *lead, h, w, c = frames.shape
    x = frames.reshape(-1, h, w, c)
    first = vertical_first(size_in=(h, w), size_out=(height, width), pass_order=pass_order)
    for axis in (1, 2) if first else (2, 1):
        n_in, n_out = x.shape[axis], (height, width)[axis - 1]
        if n_in != n_out:
            x = _pass(x, bicubic_taps(n_in, n_out), axis=axis)
    return x.reshape(*lead, height, width, c)


def _pass(x: UInt8[Array, "t h w c"], taps: ResizeTaps, *, axis: int) -> UInt8[Array, "t H W c"]:
    """Resample one axis: each output is the weighted sum of `k` neighbours, rounded and clipped to a byte."""
    shape = [1, 1, 1, 1]
    shape[axis] = taps.start.shape[0]
    total = jnp.full((), 1 << (PRECISION_BITS - 1), jnp.int32)
    for k in range(taps.weights.shape[1]):
        # Windows lie inside the axis wherever it has `k` samples; the clip serves shorter axes, whose surplus
        # weights are 0.
        samples = jnp.take(x, taps.start + np.int32(k), axis=axis, mode="clip").astype(jnp.int32)
        total = total + samples * taps.weights[:, k].reshape(shape)
    return jnp.clip(total >> PRECISION_BITS, 0, 255).astype(jnp.uint8)
