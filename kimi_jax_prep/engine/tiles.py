"""Pillow's bicubic for images of any size, through a few programs of fixed shape.

An image is cut into strips of up to `ROWS` rows and tiles of up to `COLUMNS` columns. Positions and weights of the taps
are arguments, so that nothing about an image's size is compiled in. Pixels are 32-bit words, R in the lowest byte, as
Pillow holds them: one fetch serves all channels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, UInt8, UInt32

from kimi_jax_prep.ops.words import LANES, LOOP_TAPS, channel, interleave, kernel, resample, separate
from kimi_jax_prep.tables.taps import bicubic_taps, num_taps

# Input rows and output columns of one launch. Large enough that a launch is worth its 20 microseconds, small enough
# that what hangs over a picture's edge (half a tile on average) stays below a tenth of the work for 2048x2048.
ROWS, COLUMNS = 560, 308
# Input columns that launches share; wider images take several. The extra 16 keep rows off the same cache sets.
STRIP_COLUMNS = 4096 + 16

# Numbers of taps that have a program. An axis uses the next larger one; above them, one program loops over groups of
# taps. Two passes for each, with 3 or 4 channels, and one for the background: 23 programs.
TAPS = {3: (5, 6, 7, 8, 10, 12, 16), 4: (8, 16)}
# Maximum taps. Beyond a reduction factor of 66 (16384 pixels to 248), Pillow resizes.
MOST_TAPS = 264


@dataclass(frozen=True, slots=True)
class HorizontalPass:
    """`ROWS` rows of any width -> a tile of `ROWS` x `COLUMNS`."""

    taps: int
    """Weights for each output; `MOST_TAPS` means a loop over groups of `LOOP_TAPS`."""
    channels: int
    donate: ClassVar[tuple[int, ...]] = ()

    @property
    def outputs(self) -> int:
        """Columns that one launch makes."""
        return COLUMNS

    @property
    def window(self) -> int:
        """Input columns that one launch reads: enough for `COLUMNS` outputs wherever `taps` are all in use."""
        if self.taps == MOST_TAPS:
            return 2048
        return -(-(COLUMNS * self.taps // 4 + self.taps) // LANES) * LANES

    def shapes(self) -> Sequence[tuple[tuple[int, ...], str]]:
        return [((ROWS, STRIP_COLUMNS), "uint32"), ((), "int32"), *_tap_shapes(self.taps, COLUMNS)]

    def __call__(
        self,
        strip: UInt32[Array, "rows columns"],
        low: Int32[Array, ""],
        start: Int32[Array, "outputs"],
        weights: Int32[Array, "taps outputs"],
        groups: Int32[Array, ""],
    ) -> UInt32[Array, "rows outputs"]:
        """Resample along rows.

        Args:
          strip: whole rows, or a part of them.
          low: first column of the window, at most `STRIP_COLUMNS - window`.
          start: window column of each output's first sample.
          weights: as for `resample`.
          groups: as for `resample`, if this program loops; else any number above 0.
        """
        window = jax.lax.dynamic_slice(strip, (jnp.zeros_like(low), low), (ROWS, self.window))
        flag = groups > 0
        lanes = kernel(flag, lambda: interleave(window))
        loop = groups if self.taps == MOST_TAPS else None
        made = kernel(flag, lambda: resample(lanes, start, weights, axis=1, channels=self.channels, groups=loop))
        return separate(made)


@dataclass(frozen=True, slots=True)
class VerticalPass:
    """A tile of `ROWS` x `COLUMNS` -> fewer rows."""

    taps: int
    """As of `HorizontalPass`."""
    channels: int
    donate: ClassVar[tuple[int, ...]] = ()

    @property
    def outputs(self) -> int:
        """Rows that one launch makes."""
        if self.channels == 4:
            return ROWS  # whole tiles, for `CompositeTile`
        # More taps than the next smaller program has mean that the picture shrinks by at least a quarter of these, so
        # that `ROWS` input rows give at most so many outputs. Where they give more, there are more launches.
        smaller = [4, *(taps for taps in (*TAPS[3], MOST_TAPS) if taps < self.taps)]
        return ROWS * 4 // smaller[-1]

    @property
    def window(self) -> int:
        """Input rows that one launch reads."""
        return ROWS

    def shapes(self) -> Sequence[tuple[tuple[int, ...], str]]:
        return [((ROWS, COLUMNS), "uint32"), *_tap_shapes(self.taps, self.outputs)]

    def __call__(
        self,
        tile: UInt32[Array, "rows columns"],
        start: Int32[Array, "outputs"],
        weights: Int32[Array, "taps outputs"],
        groups: Int32[Array, ""],
    ) -> UInt32[Array, "outputs columns"]:
        """Resample along columns. Args: `start` is the row of each output's first sample; else as for `resample`."""
        loop = groups if self.taps == MOST_TAPS else None
        return resample(tile, start, weights, axis=0, channels=self.channels, groups=loop)


Pass = HorizontalPass | VerticalPass


def _tap_shapes(taps: int, outputs: int) -> list[tuple[tuple[int, ...], str]]:
    return [((outputs,), "int32"), ((taps, outputs), "int32"), ((), "int32")]


@dataclass(frozen=True, slots=True)
class CompositeTile:
    """K3's background behind one tile of RGBA words, after the division that undoes premultiplication."""

    donate: ClassVar[tuple[int, ...]] = ()

    def shapes(self) -> Sequence[tuple[tuple[int, ...], str]]:
        tile, scalar = ((ROWS, COLUMNS), "uint32"), ((), "int32")
        return [tile, scalar, scalar, scalar, ((256, 256), "uint8"), ((2, 256, 256), "uint8")]

    def __call__(
        self,
        pixels: UInt32[Array, "rows columns"],
        top: Int32[Array, ""],
        left: Int32[Array, ""],
        square: Int32[Array, ""],
        straight: UInt8[Array, "256 256"],
        blended: UInt8[Array, "2 256 256"],
    ) -> UInt32[Array, "rows columns"]:
        """RGB words of one tile whose corner lies at (top, left) of its picture.

        Args:
          straight: `straight[alpha, v]`, the byte before premultiplication, or just v for straight pixels.
          blended: `blended[odd cell, alpha, v]`, from `blend_tables`.
        """
        y = jax.lax.broadcasted_iota(jnp.int32, (ROWS, COLUMNS), 0) + top
        x = jax.lax.broadcasted_iota(jnp.int32, (ROWS, COLUMNS), 1) + left
        odd = (y // square + x // square) % 2
        alpha = channel(pixels, 3)
        out = jnp.zeros((ROWS, COLUMNS), jnp.uint32)
        for c in range(3):
            value = jnp.take(straight.reshape(-1), alpha * 256 + channel(pixels, c), mode="clip").astype(jnp.int32)
            byte = jnp.take(blended.reshape(-1), (odd * 256 + alpha) * 256 + value, mode="clip").astype(jnp.uint32)
            out = out | (byte << np.uint32(8 * c))
        return out


class AxisTile(NamedTuple):
    """The part of one axis that one launch makes."""

    first: int
    """First output."""
    size: int
    """Outputs."""
    low: int
    """First input sample that is needed."""
    high: int
    """One past the last."""
    origin: int
    """The first sample in the memory that it reads. Horizontal tiles share memory where they share this."""
    taps: tuple[Array, ...]
    """Arguments of the program beside the pixels."""


class Axis(NamedTuple):
    """All launches along one axis."""

    tiles: tuple[AxisTile, ...]
    taps: int
    """Taps of the program, or 0 where the axis keeps its length and there is nothing to launch."""


def taps_class(used: int, *, channels: int) -> int:
    """Taps of the program that serves so many, or 0 if none does."""
    return next((taps for taps in (*TAPS[channels], MOST_TAPS) if used <= taps), 0)


def all_passes(channels: int) -> Iterator[Pass]:
    """Every resize program of pictures with so many channels."""
    for taps in (*TAPS[channels], MOST_TAPS):
        yield HorizontalPass(taps, channels)
        yield VerticalPass(taps, channels)


def cut_axis(n_in: int, n_out: int, *, horizontal: bool, channels: int, device: Any) -> Axis | None:
    """The launches that resample one axis, or None if no program has enough taps.

    A tile ends where the outputs of its program do, or where its window does.
    """
    if n_in == n_out:
        most = COLUMNS if horizontal else ROWS
        bounds = [(first, min(first + most, n_out)) for first in range(0, n_out, most)]
        tiles = [AxisTile(first, stop - first, first, stop, first, ()) for first, stop in bounds]
        return Axis(tuple(_shared(tiles)) if horizontal else tuple(tiles), 0)
    used = num_taps(n_in, n_out)
    taps = taps_class(used, channels=channels)
    if not taps:
        return None
    start, weights = bicubic_taps(n_in, n_out)
    program = HorizontalPass(taps, channels) if horizontal else VerticalPass(taps, channels)
    tiles = []
    first = 0
    while first < n_out:
        low = int(start[first])
        stop = int(np.searchsorted(start, low + program.window - used, side="right"))
        stop = min(stop, first + program.outputs)
        tiles.append(AxisTile(first, stop - first, low, int(start[stop - 1]) + used, low, ()))
        first = stop
    if horizontal:
        tiles = list(_shared(tiles))

    def arguments(tile: AxisTile) -> tuple[Array, ...]:
        part, unused = slice(tile.first, tile.first + tile.size), (0, program.outputs - tile.size)
        # At the right end of a strip the window slides back, so as not to hang over it.
        window = tile.origin + min(tile.low - tile.origin, STRIP_COLUMNS - program.window) if horizontal else tile.low
        starts = np.pad(start[part] - np.int32(window), unused)
        by_tap = np.ascontiguousarray(np.pad(weights[part], (unused, (0, taps - used))).T)
        where = (np.array(window - tile.origin, np.int32),) if horizontal else ()
        args = (*where, starts, by_tap, np.array(-(-used // LOOP_TAPS), np.int32))
        return tuple(jax.device_put(a, device) for a in args)

    return Axis(tuple(tile._replace(taps=arguments(tile)) for tile in tiles), taps)


def _shared(tiles: list[AxisTile]) -> Iterator[AxisTile]:
    """The same tiles; adjacent ones that fit `STRIP_COLUMNS` together get one origin."""
    origin = 0
    for tile in tiles:
        if tile.high - origin > STRIP_COLUMNS:
            origin = tile.low
        yield tile._replace(origin=origin)
