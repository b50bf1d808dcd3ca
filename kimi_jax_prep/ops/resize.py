"""Pillow's 8-bit bicubic resize, bit for bit, in pure JAX: taps, horizontal pass, vertical pass.

Bytes in, bytes out. Every pass is int32 and stores bytes, as Pillow's `Resample.c` does.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt8

from kimi_jax_prep.checks import positive_int
from kimi_jax_prep.errors import PlanError
from kimi_jax_prep.ops.words import LANES, LOOP_TAPS, interleave, kernel, pack, resample, separate, unpack
from kimi_jax_prep.tables.passes import PASS_ORDERS, installed_pass_order, vertical_first
from kimi_jax_prep.tables.taps import bicubic_taps

# Output rows of one strip: a strip of a 2048-pixel row is then two megabytes of words, about a core's cache.
_STRIP_ROWS = 256
# More taps than this are looped over, so that compiling stays fast.
_WRITTEN_OUT = 24


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
    if (h, w) == (height, width):
        return jnp.asarray(frames)
    first = vertical_first(size_in=(h, w), size_out=(height, width), pass_order=pass_order)
    across = None if w == width else _axis_taps(w, width)
    down = None if h == height else _axis_taps(h, height)
    resized = jax.lax.platform_dependent(
        frames.reshape(-1, h, w, c),
        cpu=functools.partial(_by_strips, across=across, down=down, vertical_first=first, height=height),
        default=functools.partial(_whole, across=across, down=down, vertical_first=first),
    )
    return resized.reshape(*lead, height, width, c)


class _Taps(NamedTuple):
    start: np.ndarray
    weights: np.ndarray  # (taps, outputs)
    groups: int | None


def _axis_taps(n_in: int, n_out: int) -> _Taps:
    start, weights = bicubic_taps(n_in, n_out)
    taps = weights.shape[1]
    if taps <= _WRITTEN_OUT:
        return _Taps(start, np.ascontiguousarray(weights.T), None)
    groups = -(-taps // LOOP_TAPS)
    return _Taps(start, np.pad(weights, ((0, 0), (0, groups * LOOP_TAPS - taps))).T, groups)


def _whole(
    frames: UInt8[Array, "t h w c"], *, across: _Taps | None, down: _Taps | None, vertical_first: bool
) -> UInt8[Array, "t H W c"]:
    """Both passes over whole frames; what compilers for accelerators do well."""
    channels = frames.shape[-1]
    words = pack(frames)
    passes = [(across, 2), (down, 1)]
    for taps, axis in reversed(passes) if vertical_first else passes:
        if taps is not None:
            start, weights, groups = taps
            words = resample(words, start, weights, axis=axis, channels=channels, groups=groups)
    return unpack(words, channels=channels)


def _by_strips(
    frames: UInt8[Array, "t h w c"], *, across: _Taps | None, down: _Taps | None, vertical_first: bool, height: int
) -> UInt8[Array, "t H W c"]:
    """The same strip by strip, so that all between the first and the last step stays in the processor's cache."""
    t, h, w, channels = frames.shape
    outputs = min(_STRIP_ROWS, height)
    # The last strip is slid back to end with the picture; what it shares with the one before comes out equal.
    first = np.minimum(np.arange(0, height, outputs), height - outputs).astype(np.int32)
    if down is None:
        low, rows, start, weights = first, outputs, None, None
    else:
        taps, start = down.weights.shape[0], down.start
        low = start[first]
        rows = min(int((start[first + outputs - 1] - low).max()) + taps, h)
        low = np.minimum(low, h - rows)
        part = first[:, None] + np.arange(outputs)
        start, weights = start[part] - low[:, None], down.weights[:, part].transpose(1, 0, 2)
    width = w if across is None else len(across.start)
    n = len(first)
    low, first = jnp.asarray(low, jnp.int32), jnp.asarray(first)
    any_byte = frames.reshape(-1)[0].astype(jnp.int32)

    def strip(i: Array, out: Array) -> Array:
        frame, k = i // n, i % n
        zero = jnp.zeros_like(i)
        # Positions are data to the compiler. A single strip's are not, since its loop is unrolled.
        flag = low[k] > -1 if t * n > 1 else any_byte > -1
        source = jax.lax.dynamic_slice(frames, (frame, low[k], zero, zero), (1, rows, w, channels))[0]
        words = kernel(flag, lambda: pack(source))

        def horizontal(words: Array) -> Array:
            if across is None:
                return words
            padded = jnp.pad(words, ((0, -words.shape[0] % LANES), (0, 0)))
            lanes = kernel(flag, lambda: interleave(padded))
            begin, weight, groups = across
            made = kernel(flag, lambda: resample(lanes, begin, weight, axis=1, channels=channels, groups=groups))
            return kernel(flag, lambda: separate(made)[: words.shape[0]])

        def vertical(words: Array) -> Array:
            if down is None:
                return words
            begin, weight, groups = jnp.asarray(start)[k], jnp.asarray(weights)[k], down.groups
            return kernel(flag, lambda: resample(words, begin, weight, axis=0, channels=channels, groups=groups))

        made = horizontal(vertical(words)) if vertical_first else vertical(horizontal(words))
        return jax.lax.dynamic_update_slice(out, unpack(made, channels=channels)[None], (frame, first[k], zero, zero))

    out = jnp.zeros((t, height, width, channels), jnp.uint8)
    return jax.lax.fori_loop(np.int32(0), np.int32(t * n), strip, out)
