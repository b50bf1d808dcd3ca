"""The canvas: words of all frames of a call, patch after patch, as the last launch reads them."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt32

from kimi_jax_prep.host.pixels import Words

BYTES_A_PIXEL = 4
"""Of the canvas: R, G, B and one that is ignored."""


class _Piece(NamedTuple):
    """Some rows of a rectangle: whole rows of patches, or a part of one."""

    source: slice
    """Rows of the rectangle."""
    patches: slice
    """Rows of patches."""
    inside: slice
    """Rows in each of these patches."""


class FrameCanvas:
    """One padded frame on the canvas.

    Args:
      words: its part of the canvas, `rows * columns` patches.
      rows, columns: of patches.
      patch_size: pixels along a patch's side.
    """

    __slots__ = ("_runs", "_words")

    def __init__(self, words: UInt32[np.ndarray, "pixels"], rows: int, columns: int, patch_size: int) -> None:
        p = patch_size
        self._words = words.reshape(rows, columns, p, p)
        # A row of one patch as one item: NumPy copies it at once.
        self._runs = words.view(f"V{BYTES_A_PIXEL * p}").reshape(rows, columns, p)

    def write(self, top: int, left: int, pixels: Words) -> None:
        """Write a rectangle of pixels whose corner lies at (top, left) of the frame.

        Threads may write rectangles that do not overlap.
        """
        p, width = self._words.shape[-1], pixels.shape[1]
        # Columns up to the first boundary of patches, of whole patches, and beyond the last boundary.
        begin = min(-left % p, width)
        end = begin + (width - begin) // p * p
        first, last = (left + begin) // p, (left + end) // p
        runs = pixels[:, begin:end].view(self._runs.dtype) if end > begin else None
        for piece in self._pieces(top, len(pixels)):
            inside = piece.inside.stop - piece.inside.start
            if runs is not None:
                source = runs[piece.source].reshape(-1, inside, last - first)
                self._runs[piece.patches, first:last, piece.inside] = source.transpose(0, 2, 1)
            for start, stop in ((0, begin), (end, width)):
                if start < stop:
                    column, at = divmod(left + start, p)
                    source = pixels[piece.source, start:stop].reshape(-1, inside, stop - start)
                    self._words[piece.patches, column, piece.inside, at : at + stop - start] = source

    def clear_outside(self, height: int, width: int) -> None:
        """Write zeros below row `height - 1` and right of column `width - 1`."""
        rows, columns, p, _ = self._words.shape
        for piece in self._pieces(height, rows * p - height):
            self._words[piece.patches, :, piece.inside] = 0
        column, at = divmod(width, p)
        if column < columns:
            self._words[: -(-height // p), column, :, at:] = 0
            self._words[: -(-height // p), column + 1 :] = 0

    def _pieces(self, top: int, height: int) -> Iterator[_Piece]:
        """Rows `top` to `top + height - 1` of the frame, cut where rows of patches begin."""
        p, bottom, y = self._words.shape[-1], top + height, top
        while y < bottom:
            row, at = divmod(y, p)
            whole = (bottom - y) // p if at == 0 else 0
            stop = y + whole * p if whole else min(bottom, (row + 1) * p)
            inside = slice(0, p) if whole else slice(at, at + stop - y)
            yield _Piece(slice(y - top, stop - top), slice(row, row + max(whole, 1)), inside)
            y = stop
