"""One frame into its place on the canvas: colour, resize, background, padding; through XLA or through Pillow.

Which Pillow mode is resized where:

| mode | K2.5 (RGB first) | K3 (resize in the own mode) |
|---|---|---|
| RGB; L without transparency | XLA, 3 channels | XLA, 3 channels |
| RGBA, LA | XLA, 3 channels, alpha dropped | XLA, 4 premultiplied channels, then background |
| 1, P, CMYK, YCbCr, HSV, LAB, I, I;16, F, transparent L | Pillow converts, XLA resizes | Pillow |

Pillow does the whole of it, with the same bits, while a program is still being compiled.
"""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from kimi_jax_prep.config import MediaProcConfig, TransparentBgConfig
from kimi_jax_prep.engine import programs as _programs
from kimi_jax_prep.engine.buffers import Cache, Lent
from kimi_jax_prep.engine.tiles import (
    COLUMNS,
    ROWS,
    STRIP_COLUMNS,
    Axis,
    AxisTile,
    CompositeTile,
    HorizontalPass,
    VerticalPass,
    cut_axis,
)
from kimi_jax_prep.host.pixels import Pixels, Words
from kimi_jax_prep.host.render import is_transparent, render, to_rgb
from kimi_jax_prep.plan import MediaPlan
from kimi_jax_prep.tables.background import blend_tables, straight_table
from kimi_jax_prep.tables.passes import installed_pass_order, vertical_first

Run = Callable[[Iterable[Callable[[], None]]], None]
"""Runs tasks, side by side where that helps, and returns when all are done."""
Tile = Any
"""A (ROWS, COLUMNS) array of words, on the device."""

# Times what is needed. From about there on Pillow takes less of a core's time.
_MOST_WASTE = 4
# Taps of the sizes met last: those of a video or a camera come again and again.
_AXES = Cache(max_bytes=64 << 20)
_SCRATCH = threading.local()


class Resize(NamedTuple):
    """The launches that resize one frame."""

    horizontal: Axis
    vertical: Axis
    vertical_first: bool
    channels: int

    @property
    def across(self) -> HorizontalPass | None:
        """The program of the horizontal pass, if there is one."""
        return HorizontalPass(self.horizontal.taps, self.channels) if self.horizontal.taps else None

    @property
    def down(self) -> VerticalPass | None:
        """The program of the vertical pass, if there is one."""
        return VerticalPass(self.vertical.taps, self.channels) if self.vertical.taps else None

    def waste(self, size_in: tuple[int, int], size_out: tuple[int, int]) -> float:
        """How many times as much is computed as is needed: a picture of 100 x 30,000 fills few columns of its tiles."""
        taps = self.horizontal.taps, self.vertical.taps
        computed = len(self.horizontal.tiles) * len(self.vertical.tiles) * ROWS * COLUMNS * sum(taps)
        return computed / (size_out[0] * (size_in[1] * taps[0] + size_out[1] * taps[1]))


def place(image: Image.Image, plan: MediaPlan, config: MediaProcConfig, canvas: Words, run: Run) -> None:
    """Write one decoded frame, resized and padded with zeros, to its rectangle of the canvas.

    Args:
      canvas: words of R, G, B and a byte that is ignored, (padded height, padded width).
      run: for the strips of a frame that is resized.

    Raises:
      MediaError: its mode cannot become RGB.
    """
    canvas[plan.height :] = 0
    canvas[: plan.height, plan.width :] = 0
    out = canvas[: plan.height, : plan.width]
    size = (plan.width, plan.height)
    resized = image.size != size
    last = config.transparent_bg_fill_stage == "after_resize" or not resized
    transparent = is_transparent(image)
    background = config.transparent_bg_config if transparent else None

    if background is not None and last and image.mode in ("RGBA", "LA"):
        image = image.convert("RGBA")
        if not resized and image.getchannel("A").getextrema()[0] == 255:
            out[:] = _all(image)  # 1 * rgb + 0 * board
            return
        resize = _worthwhile(image.size, size, channels=4)
        programs = _ready(resize.across, resize.down, CompositeTile()) if resize else None
        if resize and programs:
            blend = _blender(background, programs[CompositeTile()], premultiplied=resized)
            run(_tasks(Pixels(image.convert("RGBa") if resized else image), resize, programs, blend, out))
            return
    elif not resized:
        out[:] = _all(to_rgb(image, background))
        return
    elif not last or image.mode == "RGB" or (image.mode == "L" and not transparent):
        resize = _worthwhile(image.size, size, channels=3)
        programs = _ready(resize.across, resize.down) if resize else None
        if resize and programs:
            run(_tasks(Pixels(to_rgb(image, background)), resize, programs, None, out))
            return
    out[:] = _all(render(image, plan, config))


def _all(image: Image.Image) -> Words:
    return Pixels(image).box(0, image.height, 0, image.width)


def _worthwhile(size_in: tuple[int, int], size_out: tuple[int, int], *, channels: int) -> Resize | None:
    """The launches, or None where Pillow takes less time."""
    resize = plan_resize(size_in, size_out, channels=channels)
    # Where nothing is resized, the tiles only blend.
    wasteful = resize is not None and size_in != size_out and resize.waste(size_in, size_out) > _MOST_WASTE
    return None if wasteful else resize


def plan_resize(size_in: tuple[int, int], size_out: tuple[int, int], *, channels: int) -> Resize | None:
    """The launches from one (width, height) to another, or None where they need more taps than any program has."""
    (w_in, h_in), (w_out, h_out) = size_in, size_out
    horizontal, vertical = _axis(w_in, w_out, True, channels), _axis(h_in, h_out, False, channels)
    if horizontal is None or vertical is None:
        return None
    first = vertical_first(size_in=(h_in, w_in), size_out=(h_out, w_out), pass_order=installed_pass_order())
    return Resize(horizontal, vertical, first, channels)


def _axis(n_in: int, n_out: int, horizontal: bool, channels: int) -> Axis | None:
    def make() -> tuple[int, Axis | None]:
        axis = cut_axis(n_in, n_out, horizontal=horizontal, channels=channels, device=_programs.cpu_device())
        return sum(a.nbytes for tile in axis.tiles for a in tile.taps) if axis else 0, axis

    return _AXES.get((n_in, n_out, horizontal, channels), make)


def _ready(*specs: Any) -> dict[Any, Callable[..., Tile]] | None:
    """The programs, if all are compiled; else they will be, in the background."""
    programs = {spec: _programs.PROGRAMS.ready(spec) for spec in specs if spec is not None}
    if all(programs.values()):
        return programs  # type: ignore[return-value]  # none is None
    for spec, program in programs.items():
        if program is None:
            _programs.PROGRAMS.request(spec)
    return None


def _blender(
    background: TransparentBgConfig, program: Callable[..., Tile], *, premultiplied: bool
) -> Callable[[Tile, int, int], Tile]:
    square = np.int32(background.chessboard_square_size)
    straight, blended = straight_table(premultiplied=premultiplied), blend_tables(background)
    return lambda tile, top, left: program(tile, np.int32(top), np.int32(left), square, straight, blended)


def _tasks(
    pixels: Pixels,
    resize: Resize,
    programs: dict[Any, Callable[..., Tile]],
    blend: Callable[[Tile, int, int], Tile] | None,
    out: Words,
) -> Iterator[Callable[[], None]]:
    """One task for each strip of rows and group of columns; tasks do not touch one another's output."""

    across, down = programs.get(resize.across), programs.get(resize.down)
    # Without a horizontal pass the rows need not be whole: columns are cut before the vertical one.
    work = _vertical_then_horizontal if resize.vertical_first or across is None else _horizontal_then_vertical
    for strip in resize.vertical.tiles:
        for _, group in itertools.groupby(resize.horizontal.tiles, key=lambda tile: tile.origin):

            def task(strip: AxisTile = strip, columns: tuple[AxisTile, ...] = tuple(group)) -> None:
                # All is launched before the first tile is waited for: the device works while the host copies.
                for made, tile in list(work(pixels, strip, columns, across, down)):
                    finished = made if blend is None else blend(made, strip.first, tile.first)
                    rectangle = out[strip.first : strip.first + strip.size, tile.first : tile.first + tile.size]
                    rectangle[:] = np.asarray(finished)[: strip.size, : tile.size]

            yield task


def _horizontal_then_vertical(
    pixels: Pixels, strip: AxisTile, columns: tuple[AxisTile, ...], across: Any, down: Any
) -> Iterator[tuple[Tile, AxisTile]]:
    lent = _scratch().strip
    source = pixels.box(strip.low, strip.high, columns[0].origin, columns[-1].high)
    lent.array[: source.shape[0], : source.shape[1]] = source
    strip_pixels = lent.on_device()
    for tile in columns:
        out = across(strip_pixels, *tile.taps)
        yield down(out, *strip.taps) if down else out, tile


def _vertical_then_horizontal(
    pixels: Pixels, strip: AxisTile, columns: tuple[AxisTile, ...], across: Any, down: Any
) -> Iterator[tuple[Tile, AxisTile]]:
    scratch = _scratch()
    source = pixels.box(strip.low, strip.high, columns[0].origin, columns[-1].high)
    rows, width = source.shape
    done = []
    for i, left in enumerate(range(0, width, COLUMNS)):
        lent = scratch.tile(i)
        part = source[:, left : left + COLUMNS]
        lent.array[:rows, : part.shape[1]] = part
        tile_pixels = lent.on_device()
        done.append((down(tile_pixels, *strip.taps) if down else tile_pixels, left, part.shape[1]))
    if across is None:
        yield from ((out, tile) for (out, _, _), tile in zip(done, columns, strict=True))
        return
    for out, left, count in done:
        scratch.strip.array[: strip.size, left : left + count] = np.asarray(out)[: strip.size, :count]
    strip_pixels = scratch.strip.on_device()
    for tile in columns:
        yield across(strip_pixels, *tile.taps), tile


class _Scratch:
    """Memory of one thread that XLA reads: a strip of rows, and as many tiles as its widest picture needed."""

    def __init__(self) -> None:
        self._device = _programs.cpu_device()
        self.strip = Lent((ROWS, STRIP_COLUMNS), np.uint32, self._device)
        self._tiles: list[Lent] = []

    def tile(self, i: int) -> Lent:
        while len(self._tiles) <= i:
            self._tiles.append(Lent((ROWS, COLUMNS), np.uint32, self._device))
        return self._tiles[i]


def _scratch() -> _Scratch:
    if not hasattr(_SCRATCH, "value"):
        _SCRATCH.value = _Scratch()
    return _SCRATCH.value
