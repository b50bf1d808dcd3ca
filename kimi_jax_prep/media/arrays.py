"""Arrays of pixels, NumPy's, JAX's or torch's: which axis is which, and what is refused. Nothing is copied here.

The last axis of 1, 3 or 4 means channels last, else the first one means channels first; a torch tensor is looked at
the other way round. Two axes are gray. Where a shape allows both readings, `input_data_format` decides.
"""

import sys
from typing import Any

import numpy as np
from jaxtyping import UInt8

from kimi_jax_prep.errors import MediaError, MediaTypeError
from kimi_jax_prep.fork import is_forked

_CHANNELS = (1, 3, 4)


def is_array(value: Any) -> bool:
    """Whether it is one of the arrays that are accepted. Imports none of the libraries."""
    return isinstance(value, np.ndarray) or _is_jax(value) or _is_torch(value)


def is_object_array(value: Any) -> bool:
    """Whether it is a NumPy array of Python objects: a list of media, not pixels."""
    return isinstance(value, np.ndarray) and value.dtype == np.object_


def is_encoded_array(value: Any) -> bool:
    """Whether it is one axis of bytes: an encoded image, as columns of data sets hold it."""
    return is_array(value) and value.ndim == 1 and str(value.dtype).removeprefix("torch.") == "uint8"


def image_pixels(array: Any, *, input_data_format: str | None) -> UInt8[np.ndarray, "h w *c"]:
    """One image as (h, w) or (h, w, channels), a view.

    Raises:
      MediaError: no pixels, or a shape that cannot be told.
      MediaTypeError: another dtype than uint8, or an array on a device that NumPy cannot read.
    """
    pixels, torch_like = _on_host(array), _is_torch(array)
    if pixels.ndim == 2:
        return _checked(pixels, pixels.shape, kind="an image array is (h, w), (h, w, channels) or (channels, h, w)")
    return _channels_last(pixels, 3, torch_like, input_data_format, "(h, w, channels) or (channels, h, w)")


def frame_pixels(array: Any, *, input_data_format: str | None) -> UInt8[np.ndarray, "t h w c"]:
    """Frames of a video as (t, h, w, channels), a view.

    Raises: as `image_pixels`.
    """
    pixels, torch_like = _on_host(array), _is_torch(array)
    return _channels_last(pixels, 4, torch_like, input_data_format, "(t, h, w, channels) or (t, channels, h, w)")


def _channels_last(
    pixels: np.ndarray, ndim: int, torch_like: bool, input_data_format: str | None, layouts: str
) -> np.ndarray:
    kind = f"an array is {layouts} with 1, 3 or 4 channels"
    if pixels.ndim != ndim:
        raise MediaError(f"{kind}; got shape {pixels.shape}.")
    order = ("channels_first", "channels_last") if torch_like else ("channels_last", "channels_first")
    for layout in (input_data_format,) if input_data_format else order:
        axis = -1 if layout == "channels_last" else -3
        if pixels.shape[axis] in _CHANNELS:
            return _checked(np.moveaxis(pixels, axis, -1), pixels.shape, kind=kind)
    told = f"`input_data_format` = {input_data_format!r}" if input_data_format else "neither `input_data_format`"
    raise MediaError(f"{kind}; {told} fits shape {pixels.shape}.")


def _checked(pixels: np.ndarray, shape: tuple[int, ...], *, kind: str) -> np.ndarray:
    if 0 in shape:
        raise MediaError(f"{kind}, with at least one pixel; got shape {shape}.")
    return pixels


def _on_host(array: Any) -> np.ndarray:
    dtype = str(array.dtype).removeprefix("torch.")
    if dtype != "uint8":
        raise MediaTypeError(
            f"expected an array of dtype uint8 (0 to 255), got {dtype}; scale it to 0..255, round, clip and cast it."
        )
    if _is_jax(array) and is_forked() and not array.is_ready():
        raise MediaTypeError(
            "a jax.Array was still being computed when this process was forked, and never will be here; call "
            "`.block_until_ready()` before the fork, or start worker processes with 'spawn' or 'forkserver'."
        )
    if not _is_torch(array):
        return np.asarray(array)
    if array.device.type != "cpu":
        raise MediaTypeError(f"a tensor is on the CPU; got one on {array.device}. Call `.cpu()` first.")
    return array.detach().numpy()


def _is_jax(value: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
