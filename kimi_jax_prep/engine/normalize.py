"""The engine's last launch: patches of words to planes of normalized values, for any mix of media."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped, UInt32

from kimi_jax_prep.ops.patchify import look_up
from kimi_jax_prep.tables.lut import DTYPES

# By bytes of an entry: in which type the table holds bit patterns, and in which the result does. The compiler
# vectorizes look-ups of 4-byte entries but not of 2-byte ones; and floats of 2 bytes would be converted on the way.
_ENTRIES = {1: ("uint8", "uint8"), 2: ("uint32", "uint16"), 4: ("float32", "float32")}


@dataclass(frozen=True, slots=True)
class NormalizePatches:
    """Separates the channels of up to `capacity` patches, normalizes them and writes them over an old result.

    The canvas already holds patch after patch, so all pixels of a patch are contiguous in each channel of the result
    too, and the compiler vectorizes over them. Cutting rows of 14 pixels out of whole frames here takes half as long
    again.
    """

    capacity: int
    patch_size: int
    dtype: str
    one_table: bool
    """All channels share one table of 256 entries, which is a third faster to look up."""
    donate: ClassVar[tuple[int, ...]] = (2,)

    def shapes(self) -> Sequence[tuple[tuple[int, ...], object]]:
        n, pixels = self.capacity, self.patch_size**2
        lut = (256,) if self.one_table else (256, 3)
        table, entry = _ENTRIES[DTYPES[self.dtype].itemsize]
        return [((n * pixels,), "uint32"), (lut, table), ((n, 3, pixels), entry)]

    def __call__(
        self,
        canvas: UInt32[Array, "pixels"],
        lut: Shaped[Array, "..."],
        old: Shaped[Array, "n 3 pp"],
    ) -> Shaped[Array, "n 3 pp"]:
        """Patches, channels first; the last axis is a patch's pixels, row by row.

        Args:
          canvas: words of one patch after another.
          lut: (256,) or (256, 3), from `table_of`; bytes are passed through for "uint8".
          old: a result that nothing refers to any more. Donated: its memory becomes the result's.
        """
        n, _, pixels = old.shape
        words = canvas.reshape(n, 1, 1, pixels)
        channel = jnp.arange(3, dtype=jnp.uint32).reshape(1, 3, 1, 1)
        # One broadcast expression: a stack of three channels takes twice as long.
        byte = (words >> (channel * np.uint32(8))).astype(jnp.uint8)
        values = byte if self.dtype == "uint8" else look_up(byte, lut)
        return values.astype(_ENTRIES[DTYPES[self.dtype].itemsize][1]).reshape(n, 3, pixels)


def table_of(lut: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
    """A byte table as the `lut` argument of `NormalizePatches`: the bit patterns of its entries."""
    table, entry = _ENTRIES[lut.dtype.itemsize]
    return lut.view(entry).astype(table)
