"""Many media of any sizes in one batch: open, plan, place, launch.

All frames are placed in one flat canvas of bytes, padded, one after another; a canvas of N patches has exactly
N * 3 * patch_size**2 bytes. One program for each capacity cuts it into patches through windows at run-time
positions, so that nothing about a picture's size is compiled in.
"""

import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, Shaped, UInt8

from kimi_jax_prep._batch import PatchBatch
from kimi_jax_prep._config import KIMI_K25, MediaProcConfig
from kimi_jax_prep._errors import PrepError
from kimi_jax_prep._geometry import MediaPlan, patch_capacity, total_patches
from kimi_jax_prep._patchify import look_up
from kimi_jax_prep._tables import normalize_lut, output_dtype
from kimi_jax_prep.media import Medium, open_medium, render


class Preprocessor:
    """Turns media into patches under one config. Keeps its compiled programs.

    Args:
      config: sizes, colour rules, mean and std.
      dtype: of `pixel_values`: "float32", "bfloat16", "float16" or "uint8" (bytes, to normalize on the device).
    """

    def __init__(self, config: MediaProcConfig = KIMI_K25, *, dtype: str = "float32") -> None:
        if not isinstance(config, MediaProcConfig):
            raise TypeError(
                f"`config` is a MediaProcConfig, such as KIMI_K25, or read by "
                f"MediaProcConfig.from_json_file; got {type(config).__name__}."
            )
        output_dtype(dtype)
        self.config = config
        self.dtype = dtype

    def __call__(self, medias: Iterable[Any]) -> PatchBatch:
        """Patches of media, in the caller's order.

        Args:
          medias: see `kimi_jax_prep.media`. An empty list gives empty arrays.

        Raises:
          PrepError: with the index of the medium at fault.
          FileNotFoundError: a path does not exist; its index is in the message.
          TypeError: `medias` is one medium instead of a list.
        """
        opened = open_all(medias)
        plans = tuple(_for_each(opened, lambda medium: medium.plan(self.config)))
        canvas, windows = self._place(opened, plans)
        patches = self._launch(canvas, windows)
        n = total_patches(plans)
        grid_thws = np.array([plan.grid_thw for plan in plans], np.int64).reshape(-1, 3)
        return PatchBatch(np.array(patches[:n]), grid_thws, plans)

    def _place(
        self, opened: list[Medium], plans: tuple[MediaPlan, ...]
    ) -> tuple[UInt8[np.ndarray, "bytes"], Int32[np.ndarray, "n 2"]]:
        p = self.config.patch_size
        capacity = patch_capacity(total_patches(plans))
        canvas = np.zeros(capacity * 3 * p * p, np.uint8)
        windows = np.zeros((capacity, 2), np.int32)
        at = first = 0
        placed = iter(_for_each(zip(opened, plans, strict=True), lambda pair: self._render(*pair)))
        for plan, frames in zip(plans, placed, strict=True):
            _, rows, columns = plan.grid_thw
            stride = columns * p * 3
            for frame in frames:
                padded = canvas[at : at + rows * p * stride].reshape(rows * p, columns * p, 3)
                padded[: plan.height, : plan.width] = frame
                corner = at + np.arange(rows)[:, None] * (p * stride) + np.arange(columns) * (p * 3)
                windows[first : first + rows * columns, 0] = corner.reshape(-1)
                windows[first : first + rows * columns, 1] = stride
                at += padded.size
                first += rows * columns
        return canvas, windows

    def _render(self, medium: Medium, plan: MediaPlan) -> list[np.ndarray]:
        return [render(frame, plan, self.config) for frame in medium.frames]

    def _launch(self, canvas: np.ndarray, windows: np.ndarray) -> Array:
        lut = None if self.dtype == "uint8" else normalize_lut(self.config, dtype=self.dtype)
        return cut_windows(canvas, windows, lut, patch_size=self.config.patch_size)


@functools.partial(jax.jit, static_argnames="patch_size")
def cut_windows(
    canvas: UInt8[Array, "bytes"],
    windows: Int32[Array, "n 2"],
    lut: Shaped[Array, "256 3"] | None,
    *,
    patch_size: int,
) -> Shaped[Array, "n 3 p p"]:
    """Cut patches out of a flat canvas of RGB bytes and look them up.

    Args:
      canvas: rows of RGB bytes of any frames.
      windows: for each patch, the position of its first byte and the bytes from one of its rows to the next.
      lut: as for `patchify`.
    """
    p = patch_size
    starts = windows[:, :1] + windows[:, 1:] * jnp.arange(p, dtype=jnp.int32)[None, :]
    rows = jax.lax.gather(
        canvas,
        starts.reshape(-1, 1),
        jax.lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(), start_index_map=(0,)),
        slice_sizes=(p * 3,),
        mode=jax.lax.GatherScatterMode.CLIP,
    )
    return look_up(rows.reshape(-1, p, p, 3).transpose(0, 3, 1, 2), lut)


def open_all(medias: Iterable[Any]) -> list[Medium]:
    """Open every medium of a list.

    Raises: as `Preprocessor.__call__`.
    """
    if isinstance(medias, str | bytes | dict) or not isinstance(medias, Iterable) or hasattr(medias, "getbands"):
        raise TypeError(f"`medias` is a list of media; got one {type(medias).__name__}. Put it in a list.")
    return list(_for_each(medias, open_medium))


def _for_each(items: Iterable[Any], work: Any) -> Iterable[Any]:
    """Apply `work` to every medium; its errors say which one it was."""
    for i, item in enumerate(items):
        try:
            yield work(item)
        except PrepError as err:
            raise type(err)(f"medias[{i}]: {err}") from err
        except OSError as err:
            # A missing file stays a FileNotFoundError, with the place in the list in front.
            raise type(err)(err.errno, f"medias[{i}]: {err.strerror or err}", err.filename) from err


def preprocess(medias: Iterable[Any], *, config: MediaProcConfig = KIMI_K25, dtype: str = "float32") -> PatchBatch:
    """Patches of media, in the caller's order: `Preprocessor(config, dtype=dtype)(medias)`.

    Args and errors: as `Preprocessor`.
    """
    return Preprocessor(config, dtype=dtype)(medias)
