"""The engine's last launch: patches of any media, cut out of one canvas through windows at run-time positions."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32, Shaped, UInt8

from kimi_jax_prep._patchify import look_up
from kimi_jax_prep._tables import DTYPES

BYTES_A_PIXEL = 4
"""Of the canvas: R, G, B and one that is ignored."""


@dataclass(frozen=True, slots=True)
class CutPatches:
    """Cuts up to `capacity` patches out of a canvas, normalizes them and writes them over an old result."""

    capacity: int
    patch_size: int
    dtype: str
    one_table: bool
    """All channels share one table of 256 entries, which is a third faster to look up."""
    donate: tuple[int, ...] = (4,)

    def shapes(self) -> Sequence[tuple[tuple[int, ...], object]]:
        n, p = self.capacity, self.patch_size
        lut = (256,) if self.one_table else (256, 3)
        canvas, dtype = (n * p * p * BYTES_A_PIXEL,), DTYPES[self.dtype]
        return [(canvas, "uint8"), ((n,), "int32"), ((n,), "int32"), (lut, dtype), ((n, 3, p, p), dtype)]

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
          lut: (256,) or (256, 3) normalized values; bytes are passed through for "uint8".
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
        return x if self.dtype == "uint8" else look_up(x, lut)
