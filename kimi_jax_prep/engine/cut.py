"""The engine's last launch: patches of any media, cut out of one canvas through windows at run-time positions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, Shaped, UInt8

from kimi_jax_prep.ops.patchify import look_up
from kimi_jax_prep.plan import MediaPlan
from kimi_jax_prep.tables.lut import DTYPES

BYTES_A_PIXEL = 4
"""Of the canvas: R, G, B and one that is ignored."""

# By bytes of an entry: in which type the table holds bit patterns, and in which the result does. The compiler
# vectorizes look-ups of 4-byte entries but not of 2-byte ones; and floats of 2 bytes would be converted on the way.
_ENTRIES = {1: ("uint8", "uint8"), 2: ("uint32", "uint16"), 4: ("float32", "float32")}


@dataclass(frozen=True, slots=True)
class CutPatches:
    """Cuts up to `capacity` patches out of a canvas, normalizes them and writes them over an old result."""

    capacity: int
    patch_size: int
    dtype: str
    one_table: bool
    """All channels share one table of 256 entries, which is a third faster to look up."""
    donate: ClassVar[tuple[int, ...]] = (4,)

    def shapes(self) -> Sequence[tuple[tuple[int, ...], object]]:
        n, p = self.capacity, self.patch_size
        lut = (256,) if self.one_table else (256, 3)
        canvas, (table, entry) = (n * p * p * BYTES_A_PIXEL,), _ENTRIES[DTYPES[self.dtype].itemsize]
        return [(canvas, "uint8"), ((n,), "int32"), ((n,), "int32"), (lut, table), ((n, 3, p, p), entry)]

    def __call__(
        self,
        canvas: UInt8[Array, "bytes"],
        start: Int32[Array, "n"],
        stride: Int32[Array, "n"],
        lut: Shaped[Array, "..."],
        old: Shaped[Array, "n 3 p p"],  # noqa: ARG002  # donated: its memory becomes the result's
    ) -> Shaped[Array, "n 3 p p"]:
        """Patches, channels first.

        Args:
          canvas: rows of pixels of any frames.
          start: position of each patch's first byte.
          stride: bytes from one of its rows to the next.
          lut: (256,) or (256, 3), from `table_of`; bytes are passed through for "uint8".
          old: a result that nothing refers to any more.
        """
        p = self.patch_size
        row = jnp.arange(p, dtype=jnp.int32)[None, :, None]
        windows = jax.lax.gather(
            canvas,
            start[:, None, None] + stride[:, None, None] * row,
            jax.lax.GatherDimensionNumbers(offset_dims=(2,), collapsed_slice_dims=(), start_index_map=(0,)),
            slice_sizes=(p * BYTES_A_PIXEL,),
            # The engine places every window inside the canvas; clipping costs a tenth of the time.
            mode=jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS,
        )
        x = windows.reshape(-1, p, p, BYTES_A_PIXEL)[..., :3].transpose(0, 3, 1, 2)
        if self.dtype == "uint8":
            return x
        return look_up(x, lut).astype(_ENTRIES[DTYPES[self.dtype].itemsize][1])


def table_of(lut: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
    """A byte table as the `lut` argument of `CutPatches`: the bit patterns of its entries."""
    table, entry = _ENTRIES[lut.dtype.itemsize]
    return lut.view(entry).astype(table)


def windows(
    plans: Sequence[MediaPlan], patch_size: int, capacity: int
) -> tuple[Int32[np.ndarray, "n"], Int32[np.ndarray, "n"]]:
    """First byte and row stride of every patch; those beyond the last medium's read the canvas's first bytes."""
    start, stride = np.zeros(capacity, np.int32), np.zeros(capacity, np.int32)
    first = 0
    for plan in plans:
        frames, rows, columns = plan.grid_thw
        row_bytes = columns * patch_size * BYTES_A_PIXEL
        # Rows of patches follow one another without a gap, from frame to frame too.
        tops = np.arange(frames * rows, dtype=np.int32) * np.int32(patch_size * row_bytes)
        lefts = np.arange(columns, dtype=np.int32) * np.int32(patch_size * BYTES_A_PIXEL)
        last = first + plan.num_patches
        corner = np.int32(first * patch_size**2 * BYTES_A_PIXEL)
        start[first:last].reshape(-1, columns)[:] = tops[:, None] + lefts[None, :] + corner
        stride[first:last] = row_bytes
        first = last
    return start, stride
