"""One picture, not yet decoded: its size and mode from the header, its pixels when they are needed.

A picture is a PIL image; encoded bytes, a binary file, an `os.PathLike` or a `data:` URL; or an array of bytes.
"""

import io
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from kimi_jax_prep.errors import MediaError
from kimi_jax_prep.media.arrays import image_pixels, is_array
from kimi_jax_prep.media.encoded import encoded
from kimi_jax_prep.media.options import MediaOptions

PICTURE_KINDS = (
    "a PIL image, encoded bytes, a binary file, an os.PathLike, a `data:` URL, or an array (h, w, 3) of uint8"
)
CLIPPED_MODES = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")
"""Modes whose values above 255 become 255 on the way to RGB."""
# These have Pillow run another program on the bytes.
_REFUSED_FORMATS = ("EPS",)
_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_SWAPPING = (5, 6, 7, 8)


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One picture whose header was read. Its pixels are read when they are needed, and not kept."""

    size: tuple[int, int]
    """(width, height) in pixels, turned if it is to be turned."""
    mode: str
    """Pillow's, before any scaling of 16 bits."""
    load: Callable[[], Image.Image]
    """The decoded picture.

    Raises:
      MediaError: the data is cut short or broken.
    """


def open_image(image: Any, options: MediaOptions) -> Frame:
    """One image, not yet decoded. Of an animated file the current (first) frame counts.

    Raises:
      MediaError: it is of no kind listed above, cannot be recognised, is empty, or exceeds a limit.
      FileNotFoundError, PermissionError, IsADirectoryError: a path cannot be read.
    """
    image = unwrapped(image)
    if isinstance(image, Image.Image):
        orientation = _orientation(image, options)
        return _frame(image, orientation, options, lambda: decode(image))
    if is_array(image):
        pixels = image_pixels(image, input_data_format=options.input_data_format)
        height, width = pixels.shape[:2]
        mode = "L" if pixels.ndim == 2 else _MODES[pixels.shape[2]]
        check_size(width, height, options)
        return Frame((width, height), mode, lambda: _from_pixels(pixels))
    source = encoded(image, allow_paths=options.allow_paths)
    if source is None:
        raise MediaError(f"got {type(image).__name__}; expected {PICTURE_KINDS}.")
    return _open_encoded(source, options)


def unwrapped(media: Any) -> Any:
    """vLLM passes a picture together with the bytes that it came from."""
    return media.media if hasattr(media, "media") and hasattr(media, "original_bytes") else media


def _frame(image: Image.Image, orientation: int, options: MediaOptions, read: Callable[[], Image.Image]) -> Frame:
    width, height = image.size
    check_size(width, height, options)
    size = (height, width) if orientation in _SWAPPING else (width, height)
    scaled = options.sixteen_bit == "scale" and image.mode in CLIPPED_MODES and image.mode != "F"
    if orientation == 1 and not scaled:
        return Frame(size, image.mode, read)

    def load() -> Image.Image:
        loaded = read()
        if scaled:
            loaded = _scale_to_bytes(loaded)
        return loaded if orientation == 1 else loaded.transpose(_TURNS[orientation])

    return Frame(size, "L" if scaled else image.mode, load)


def check_size(width: int, height: int, options: MediaOptions) -> None:
    if width < 1 or height < 1:
        raise MediaError(f"the image is {width}x{height}; it needs at least one pixel.")
    if options.max_pixels is not None and width * height > options.max_pixels:
        raise MediaError(f"{width}x{height} is more than `max_pixels` = {options.max_pixels}.")


def _open_encoded(source: bytes | Path, options: MediaOptions) -> Frame:
    if isinstance(source, Path):
        # Opened again for its pixels: thousands of paths would be too many open files, and their bytes much memory.
        with source.open("rb") as file:
            header = _open_file(file)
            orientation = _orientation(header, options)
        header_size = header.size

        def read() -> Image.Image:
            with source.open("rb") as file:
                image = _open_file(file)
                if image.size != header_size:
                    raise MediaError(f"{source} was {header_size} at first and is {image.size} now.")
                return decode(image)

        return _frame(header, orientation, options, read)
    header = _open_file(io.BytesIO(source))
    ready = [header]

    def read_bytes() -> Image.Image:
        # Handed out once, so that decoded pixels do not stay with the list of media.
        try:
            image = ready.pop()
        except IndexError:
            image = _open_file(io.BytesIO(source))
        return decode(image)

    return _frame(header, _orientation(header, options), options, read_bytes)


def _open_file(file: Any) -> Image.Image:
    try:
        image = Image.open(file)
    except Image.UnidentifiedImageError as err:
        raise MediaError("this is not an image of a format that the installed Pillow reads.") from err
    # Pillow's readers raise many kinds for broken data; IndexError and struct.error are among them.
    except Exception as err:
        raise MediaError(f"cannot open the image: {err}") from err
    if image.format in _REFUSED_FORMATS:
        raise MediaError(f"{image.format} is not opened: Pillow would run another program on it.")
    return image


def _orientation(image: Image.Image, options: MediaOptions) -> int:
    """EXIF's number, or 1 where nothing is to be turned."""
    # Pillow turns TIFF files by itself, as the checkpoint gets them too.
    if not options.exif_transpose or image.format == "TIFF":
        return 1
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # whatever a broken block makes Pillow raise: then nothing is known about turning
        return 1
    return orientation if orientation in _TURNS else 1


# Pillow reads a file once, into the image object: two threads that meet at the same object must take turns. More
# locks than threads, so that different images rarely do.
_LOADING = [threading.Lock() for _ in range(64)]


def _renew_locks() -> None:
    _LOADING[:] = [threading.Lock() for _ in _LOADING]


os.register_at_fork(after_in_child=_renew_locks)


def decode(image: Image.Image) -> Image.Image:
    """Read the pixels, if that has not happened.

    Raises:
      MediaError: the data is cut short or broken.
    """
    try:
        with _LOADING[id(image) // 64 % len(_LOADING)]:
            image.load()
    # As in `_open_file`.
    except Exception as err:
        raise MediaError(f"cannot decode the image: {err}") from err
    return image


def _from_pixels(pixels: np.ndarray) -> Image.Image:
    if pixels.ndim == 3 and pixels.shape[-1] == 1:
        pixels = pixels[..., 0]
    return Image.fromarray(np.ascontiguousarray(pixels))


def _scale_to_bytes(image: Image.Image) -> Image.Image:
    """The upper 8 of 16 bits. A transparent gray value is compared before it loses its lower bits."""
    values = np.asarray(image)
    gray = Image.fromarray((np.clip(values, 0, 0xFFFF) >> 8).astype(np.uint8))
    transparent = image.info.get("transparency")
    if not isinstance(transparent, int):
        return gray
    alpha = Image.fromarray(np.where(values == transparent, 0, 255).astype(np.uint8))
    return Image.merge("LA", (gray, alpha))
