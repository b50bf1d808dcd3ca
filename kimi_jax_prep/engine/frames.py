"""Renders one frame into its place on the canvas: colour, resize, background, padding; through XLA or through Pillow.

Which Pillow mode is resized where:

| mode | K2.5 (RGB first) | K3 (resize in the image's own mode) |
|---|---|---|
| RGB; L without transparency | XLA, 3 channels | XLA, 3 channels |
| RGBA, LA | XLA, 3 channels, alpha dropped | XLA, 4 premultiplied channels, then background |
| 1, P, CMYK, YCbCr, HSV, LAB, I, I;16, F, transparent L | Pillow converts, XLA resizes | Pillow |

While a program is still being compiled, Pillow renders the whole frame, with the same bits.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from kimi_jax_prep.config import MediaProcConfig, TransparentBgConfig
from kimi_jax_prep.engine.buffers import HostBuffer, Pool
from kimi_jax_prep.engine.canvas import FrameCanvas
from kimi_jax_prep.engine.process import InsideXla
from kimi_jax_prep.engine.programs import Program
from kimi_jax_prep.engine.runtime import Runtime
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
from kimi_jax_prep.engine.workers import Borrowed, Task
from kimi_jax_prep.host.pixels import Pixels, Words
from kimi_jax_prep.host.render import is_transparent, render, to_rgb
from kimi_jax_prep.plan import MediaPlan
from kimi_jax_prep.tables.background import blend_tables, board_square, straight_table
from kimi_jax_prep.tables.passes import installed_pass_order, vertical_first

Run = Callable[[Iterable[Task]], None]
"""Runs tasks, side by side where that helps, and returns when all are done."""
Write = Callable[[int, int, Words], None]
"""Writes a rectangle of pixels: top, left, pixels."""
Tile = Any
"""A (ROWS, COLUMNS) array of words, on the device."""

# Pillow is faster where the tiles compute more than this many times what is needed.
_MOST_WASTE = 4


class Resize(NamedTuple):
    """The launches that resize one frame."""

    horizontal: Axis
    vertical: Axis
    vertical_first: bool
    channels: int

    @property
    def across(self) -> HorizontalPass | None:
        """The program of the horizontal pass, or None without one."""
        return HorizontalPass(self.horizontal.taps, self.channels) if self.horizontal.taps else None

    @property
    def down(self) -> VerticalPass | None:
        """The program of the vertical pass, or None without one."""
        return VerticalPass(self.vertical.taps, self.channels) if self.vertical.taps else None

    def waste(self, size_in: tuple[int, int], size_out: tuple[int, int]) -> float:
        """Pixels computed for each pixel needed: a picture of 100 x 30,000 fills few columns of its tiles."""
        taps = self.horizontal.taps, self.vertical.taps
        computed = len(self.horizontal.tiles) * len(self.vertical.tiles) * ROWS * COLUMNS * sum(taps)
        return computed / (size_out[0] * (size_in[1] * taps[0] + size_out[1] * taps[1]))


class FrameRenderer:
    """Renders frames under one config, with the programs and buffers of one process.

    Args:
      pool: from which tasks borrow scratch memory.
    """

    def __init__(self, config: MediaProcConfig, runtime: Runtime, pool: Pool) -> None:
        self._config = config
        self._runtime = runtime
        self._pool = pool

    def render(self, image: Image.Image, plan: MediaPlan, canvas: FrameCanvas, run: Run) -> None:
        """Write one decoded frame, resized and padded with zeros, to its part of the canvas.

        Args:
          canvas: words of R, G, B and a byte that is ignored.
          run: for the strips of a frame that is resized.

        Raises:
          MediaError: its mode cannot become RGB.
        """
        config = self._config
        canvas.clear_outside(plan.height, plan.width)
        size = (plan.width, plan.height)
        resized = image.size != size
        last = config.transparent_bg_fill_stage == "after_resize" or not resized
        transparent = is_transparent(image)
        background = config.transparent_bg_config if transparent else None

        if background is not None and last and image.mode in ("RGBA", "LA"):
            image = image.convert("RGBA")
            if not resized and image.getchannel("A").getextrema()[0] == 255:
                canvas.write(0, 0, _all(image))  # 1 * rgb + 0 * board
                return

            def straight_or_premultiplied() -> Image.Image:
                return image.convert("RGBa") if resized else image

            done = self._through_tiles(image.size, size, straight_or_premultiplied, canvas, run, background=background)
        elif not resized:
            canvas.write(0, 0, _all(to_rgb(image, background)))
            return
        elif not last or image.mode == "RGB" or (image.mode == "L" and not transparent):
            done = self._through_tiles(image.size, size, lambda: to_rgb(image, background), canvas, run)
        else:
            done = False
        if not done:
            canvas.write(0, 0, _all(render(image, plan, config)))

    def _through_tiles(
        self,
        size: tuple[int, int],
        size_out: tuple[int, int],
        convert: Callable[[], Image.Image],
        canvas: FrameCanvas,
        run: Run,
        *,
        background: TransparentBgConfig | None = None,
    ) -> bool:
        """Whether XLA resized the frame; if not, Pillow is faster, or programs are missing.

        Args:
          size, size_out: (width, height) of the frame, before and after the resize.
          convert: gives the frame in mode RGB, or with a background in RGBa (RGBA where nothing is resized).
          background: painted behind it.
        """
        resize = self.worthwhile(size, size_out, channels=3 if background is None else 4)
        if resize is None:
            return False
        programs = self._ready(resize.across, resize.down, CompositeTile() if background else None)
        if programs is None:
            return False
        blend = None
        if background is not None:
            blend = _blender(background, programs[CompositeTile()], premultiplied=size != size_out)
        run(self.tasks(Pixels(convert()), resize, programs, blend, canvas.write))
        return True

    def worthwhile(self, size_in: tuple[int, int], size_out: tuple[int, int], *, channels: int) -> Resize | None:
        """The launches, or None where Pillow takes less time."""
        resize = self.plan_resize(size_in, size_out, channels=channels)
        # Where nothing is resized, the tiles only blend.
        wasteful = resize is not None and size_in != size_out and resize.waste(size_in, size_out) > _MOST_WASTE
        return None if wasteful else resize

    def plan_resize(self, size_in: tuple[int, int], size_out: tuple[int, int], *, channels: int) -> Resize | None:
        """The launches from one (width, height) to another; None where they need more taps than any program has."""
        (w_in, h_in), (w_out, h_out) = size_in, size_out
        horizontal, vertical = self._axis(w_in, w_out, True, channels), self._axis(h_in, h_out, False, channels)
        if horizontal is None or vertical is None:
            return None
        first = vertical_first(size_in=(h_in, w_in), size_out=(h_out, w_out), pass_order=installed_pass_order())
        return Resize(horizontal, vertical, first, channels)

    def tasks(
        self,
        pixels: Pixels,
        resize: Resize,
        programs: dict[Any, Program],
        blend: Callable[[Tile, int, int], Tile] | None,
        write: Write,
    ) -> Iterator[Task]:
        """One task for each strip of rows and group of columns. Tasks do not touch one another's output."""
        across, down = programs.get(resize.across), programs.get(resize.down)
        # Without a horizontal pass the rows need not be whole: columns are cut before the vertical one.
        by_columns = resize.vertical_first or across is None
        work = self._vertical_then_horizontal if by_columns else self._horizontal_then_vertical

        def copy_strip(strip: AxisTile, columns: tuple[AxisTile, ...]) -> None:
            # A function, so that all arrays are gone when it returns: freeing them enters XLA as well.
            with contextlib.ExitStack() as borrowed:
                # All is launched before the first tile is waited for: XLA works while the host copies.
                for made, tile in list(work(pixels, strip, columns, across, down, borrowed)):
                    finished = made if blend is None else blend(made, strip.first, tile.first)
                    write(strip.first, tile.first, np.asarray(finished)[: strip.size, : tile.size])

        for strip in resize.vertical.tiles:
            for _, group in itertools.groupby(resize.horizontal.tiles, key=lambda tile: tile.origin):

                def task(strip: AxisTile = strip, columns: tuple[AxisTile, ...] = tuple(group)) -> None:
                    with InsideXla():
                        copy_strip(strip, columns)

                yield task

    def _axis(self, n_in: int, n_out: int, horizontal: bool, channels: int) -> Axis | None:
        def make() -> tuple[int, Axis | None]:
            with InsideXla():
                axis = cut_axis(n_in, n_out, horizontal=horizontal, channels=channels, device=self._runtime.device)
            return sum(a.nbytes for tile in axis.tiles for a in tile.taps) if axis else 0, axis

        return self._runtime.taps.get((n_in, n_out, horizontal, channels), make, usable=_is_on_device)

    def _ready(self, *specs: Any) -> dict[Any, Program] | None:
        """The programs if all are compiled; else they will be, in the background."""
        table = self._runtime.programs
        programs = {spec: table.ready(spec) for spec in specs if spec is not None}
        if all(programs.values()):
            return programs  # type: ignore[return-value]  # none is None
        for spec, program in programs.items():
            if program is None:
                table.request(spec)
        return None

    def _horizontal_then_vertical(
        self,
        pixels: Pixels,
        strip: AxisTile,
        columns: tuple[AxisTile, ...],
        across: Any,
        down: Any,
        borrowed: contextlib.ExitStack,
    ) -> Iterator[tuple[Tile, AxisTile]]:
        buffer = borrowed.enter_context(self._scratch(STRIP_COLUMNS))
        source = pixels.box(strip.low, strip.high, columns[0].origin, columns[-1].high)
        buffer.array[: source.shape[0], : source.shape[1]] = source
        strip_pixels = buffer.on_device()
        for tile in columns:
            out = across(strip_pixels, *tile.taps)
            yield down(out, *strip.taps) if down else out, tile

    def _vertical_then_horizontal(
        self,
        pixels: Pixels,
        strip: AxisTile,
        columns: tuple[AxisTile, ...],
        across: Any,
        down: Any,
        borrowed: contextlib.ExitStack,
    ) -> Iterator[tuple[Tile, AxisTile]]:
        source = pixels.box(strip.low, strip.high, columns[0].origin, columns[-1].high)
        rows, width = source.shape
        done = []
        for left in range(0, width, COLUMNS):
            buffer = borrowed.enter_context(self._scratch(COLUMNS))
            part = source[:, left : left + COLUMNS]
            buffer.array[:rows, : part.shape[1]] = part
            tile_pixels = buffer.on_device()
            done.append((down(tile_pixels, *strip.taps) if down else tile_pixels, left, part.shape[1]))
        if across is None:
            yield from ((out, tile) for (out, _, _), tile in zip(done, columns, strict=True))
            return
        whole = borrowed.enter_context(self._scratch(STRIP_COLUMNS))
        for out, left, count in done:
            whole.array[: strip.size, left : left + count] = np.asarray(out)[: strip.size, :count]
        strip_pixels = whole.on_device()
        for tile in columns:
            yield across(strip_pixels, *tile.taps), tile

    def _scratch(self, columns: int) -> Borrowed:
        """Memory for `ROWS` rows that XLA reads, borrowed for one task."""
        device = self._runtime.device
        size = ROWS * columns * 4
        return Borrowed(
            self._pool, ("scratch", columns, device), size, lambda: HostBuffer((ROWS, columns), np.uint32, device)
        )


def _all(image: Image.Image) -> Words:
    return Pixels(image).box(0, image.height, 0, image.width)


def _is_on_device(axis: Axis | None) -> bool:
    """Whether nobody has deleted the taps (`jax.live_arrays()` lists them)."""
    return axis is None or not any(a.is_deleted() for tile in axis.tiles for a in tile.taps)


def _blender(
    background: TransparentBgConfig, program: Program, *, premultiplied: bool
) -> Callable[[Tile, int, int], Tile]:
    square = np.int32(board_square(background))
    straight, blended = straight_table(premultiplied=premultiplied), blend_tables(background)
    return lambda tile, top, left: program(tile, np.int32(top), np.int32(left), square, straight, blended)
