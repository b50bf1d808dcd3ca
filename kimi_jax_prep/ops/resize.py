"""Pillow's 8-bit bicubic resize in pure JAX, with equal bits: a horizontal and a vertical pass.

Each pass computes in int32 and stores bytes, as Pillow's `Resample.c` does.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, UInt8

from kimi_jax_prep.checks import one_of, positive_int, shown
from kimi_jax_prep.errors import PlanError
from kimi_jax_prep.fork import require_jax
from kimi_jax_prep.ops.arguments import check_pixels, check_size, described, on_device
from kimi_jax_prep.ops.axes import over_auto_axes, varying_axes, varying_like
from kimi_jax_prep.ops.words import LANES, LOOP_TAPS, interleave, kernel, pack, resample, separate, unpack
from kimi_jax_prep.tables.passes import PASS_ORDERS, installed_pass_order, vertical_first
from kimi_jax_prep.tables.taps import bicubic_taps

# Output rows per strip: at 2048 pixels a row, a strip is two megabytes of words, about the size of a core's cache.
_STRIP_ROWS = 256
# More taps than this run in a loop instead of being unrolled, to keep compilation fast.
_MOST_UNROLLED_TAPS = 24
# The taps of longer sides would take gigabytes of host memory.
_LONGEST_SIDE = 1 << 22


def resize_bicubic(
    frames: UInt8[Array | np.ndarray, "*t h w c"], *, height: int, width: int, pass_order: str | None = None
) -> UInt8[Array, "*t height width c"]:
    """Resize bytes exactly as `PIL.Image.resize((width, height), BICUBIC)` does.

    Args:
      frames: uint8 with 1 to 4 independent channels. Pillow premultiplies LA and RGBA before it resizes; do that
        first if you need it.
      height, width: pixels of the result, static under `jit`.
      pass_order: "horizontal-first" (Pillow up to 12), "pillow-13", or None for the installed Pillow's order. The
        two differ in a few bytes of images that shrink much more in height than in width.

    Returns:
      uint8. The leading axes keep their sharding.

    Raises:
      PlanError: a wrong dtype, shape, size or order, or a side above 2**22 pixels (at trace time).
      RuntimeError: the process was forked after JAX had started.
    """
    require_jax("`resize_bicubic`")
    check_pixels("frames", frames, channels=(1, 2, 3, 4), layout="(..., h, w, c) with 1 to 4 channels")
    height, width = positive_int("height", height), positive_int("width", width)
    if pass_order is None:
        pass_order = installed_pass_order()
    one_of("pass_order", pass_order, PASS_ORDERS, hint=" None is the order of the installed Pillow.")
    for name, side in (("height", height), ("width", width)):
        if side > _LONGEST_SIDE:
            raise PlanError(f"`{name}` is {shown(side)}; expected at most {_LONGEST_SIDE} pixels.")
    if max(frames.shape[-3:-1]) > _LONGEST_SIDE:
        raise PlanError(f"`frames` must have sides of at most {_LONGEST_SIDE} pixels; got {described(frames)}.")
    check_size("the result", (*frames.shape[:-3], height, width, frames.shape[-1]))
    run = functools.partial(_resize, height=height, width=width, pass_order=pass_order)
    return over_auto_axes(run, on_device(frames), out_spec=lambda spec: PartitionSpec(*spec[:-3], None, None, None))


@functools.partial(jax.jit, static_argnames=("height", "width", "pass_order"))
def _resize(frames: Array, *, height: int, width: int, pass_order: str) -> Array:
    *lead, h, w, c = frames.shape
    if (h, w) == (height, width):
        return jnp.asarray(frames)
    first = vertical_first(size_in=(h, w), size_out=(height, width), pass_order=pass_order)
    across = None if w == width else _axis_taps(w, width)
    down = None if h == height else _axis_taps(h, height)
    # Two lowerings of one function, with equal bits: each platform compiles the one that suits it.
    resized = jax.lax.platform_dependent(
        frames.reshape(-1, h, w, c),
        cpu=functools.partial(_lowering_in_strips, across=across, down=down, vertical_first=first, height=height),
        default=functools.partial(_lowering_of_whole_frames, across=across, down=down, vertical_first=first),
    )
    return resized.reshape(*lead, height, width, c)


class _Taps(NamedTuple):
    start: np.ndarray
    weights: np.ndarray  # (taps, outputs)
    groups: int | None


def _axis_taps(n_in: int, n_out: int) -> _Taps:
    start, weights = bicubic_taps(n_in, n_out)
    taps = weights.shape[1]
    if taps <= _MOST_UNROLLED_TAPS:
        return _Taps(start, np.ascontiguousarray(weights.T), None)
    groups = -(-taps // LOOP_TAPS)
    return _Taps(start, np.pad(weights, ((0, 0), (0, groups * LOOP_TAPS - taps))).T, groups)


def _lowering_of_whole_frames(
    frames: UInt8[Array, "t h w c"], *, across: _Taps | None, down: _Taps | None, vertical_first: bool
) -> UInt8[Array, "t H W c"]:
    """Lowering for accelerators: both passes over whole frames."""
    channels = frames.shape[-1]
    words = pack(frames)
    passes = [(across, 2), (down, 1)]
    for taps, axis in reversed(passes) if vertical_first else passes:
        if taps is not None:
            start, weights, groups = taps
            words = resample(words, start, weights, axis=axis, channels=channels, groups=groups)
    return unpack(words, channels=channels)


def _lowering_in_strips(
    frames: UInt8[Array, "t h w c"], *, across: _Taps | None, down: _Taps | None, vertical_first: bool, height: int
) -> UInt8[Array, "t H W c"]:
    """Lowering for CPUs: both passes strip by strip, so that intermediate results stay in the CPU's cache."""
    t, h, w, channels = frames.shape
    outputs = min(_STRIP_ROWS, height)
    # The last strip is moved up to end at the last row; rows that it shares with the strip before are equal.
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

    def strip(i: Array | int, out: Array) -> Array:
        i = jnp.asarray(i, jnp.int32)  # with x64 enabled, the loop counts in int64
        frame, k = i // np.int32(n), i % np.int32(n)
        zero = jnp.zeros_like(i)
        # The compiler does not know the positions of strips. It unrolls the loop over a single strip, so that one hides
        # its flag. A flag that depends on pixels would turn conditions into selects under vmap.
        flag = low[k] > -1 if t * n > 1 else jax.lax.optimization_barrier(jnp.bool_(True))
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

    out = varying_like(jnp.zeros((t, height, width, channels), jnp.uint8), varying_axes(frames))
    return jax.lax.fori_loop(np.int32(0), np.int32(t * n), strip, out)
