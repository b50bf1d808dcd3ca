"""One picture, not yet decoded: its size and mode from the header, its pixels when they are needed.

A picture is a PIL image; encoded bytes, a binary file, an `os.PathLike` or a `data:` URL; or an array of bytes.
"""

import contextlib
import io
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from kimi_jax_prep.errors import MediaError
from kimi_jax_prep.media import locks
from kimi_jax_prep.media.arrays import image_pixels, is_array, is_encoded_array
from kimi_jax_prep.media.encoded import encoded, looks_like, open_binary
from kimi_jax_prep.media.faults import Reading, is_about_a_medium
from kimi_jax_prep.media.kinds import is_encoded_record, of_record, plain
from kimi_jax_prep.media.options import REFUSED_FORMATS, MediaOptions, identified

PICTURE_KINDS = (
    "a PIL image, encoded bytes, a binary file, an os.PathLike, a `data:` URL, or an array (h, w, 3) of uint8"
)
CLIPPED_MODES = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")
"""Modes whose values above 255 become 255 on the way to RGB."""
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
"""How Pillow turns an image upright, by EXIF's number."""
_SWAPPING = (5, 6, 7, 8)
"""Numbers that swap width and height."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


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
    image = plain(image)
    if is_encoded_record(image):
        image = of_record(image)
    if isinstance(image, Image.Image):
        if locks.is_reading():
            # Worker threads would wait for the file that this thread holds, and this thread for them.
            check_size(*image.size, options)
            decode(image)
            return _frame(image, options, lambda: image)
        return _frame(image, options, lambda: decode(image))
    if is_array(image) and not is_encoded_array(image):
        pixels = image_pixels(image, input_data_format=options.input_data_format)
        height, width = pixels.shape[:2]
        mode = "L" if pixels.ndim == 2 else _MODES[pixels.shape[2]]
        check_size(width, height, options)
        return Frame((width, height), mode, lambda: _from_pixels(pixels))
    source = encoded(image, allow_paths=options.allow_paths)
    if source is None:
        raise MediaError(f"got {type(image).__name__}; expected {PICTURE_KINDS}.")
    return _open_encoded(source, options)


def _frame(image: Image.Image, options: MediaOptions, read: Callable[[], Image.Image]) -> Frame:
    """The frame of an opened image.

    Args:
      read: gives the same image decoded.
    """
    width, height = image.size
    check_size(width, height, options)
    turn = _orientation(image) if options.exif_transpose else 1
    size = (height, width) if turn in _SWAPPING else (width, height)
    scaled = options.sixteen_bit == "scale" and image.mode in CLIPPED_MODES and image.mode != "F"
    if turn == 1 and not scaled:
        return Frame(size, image.mode, read)

    def load() -> Image.Image:
        loaded = read()
        if scaled:
            loaded = _scale_to_bytes(loaded)
        return loaded if turn == 1 else loaded.transpose(_TURNS[turn])

    return Frame(size, "L" if scaled else image.mode, load)


def check_size(width: int, height: int, options: MediaOptions) -> None:
    if width < 1 or height < 1:
        raise MediaError(f"the image is {width}x{height}; it needs at least one pixel.")
    if options.max_pixels is not None and width * height > options.max_pixels:
        raise MediaError(f"{width}x{height} is more than `max_pixels` = {options.max_pixels}.")


def _open_encoded(source: bytes | Path, options: MediaOptions) -> Frame:
    if isinstance(source, Path):
        return _open_path(source, options)
    header = _open_file(io.BytesIO(source), options.formats)
    ready = [header]

    def read() -> Image.Image:
        # Handed out once, so that decoded pixels do not stay with the list of media.
        image = ready.pop() if ready else _open_file(io.BytesIO(source), options.formats)
        return decode(image)

    frame = _frame(header, options, read)
    if not getattr(header, "tile", None):
        ready.clear()  # its orientation took the pixels; they are not kept until the frame's turn
    return frame


def _open_path(path: Path, options: MediaOptions) -> Frame:
    """Opened again for its pixels: thousands of paths would be too many open files, and their bytes much memory."""

    def read() -> Image.Image:
        with open_binary(path) as file:
            image = _open_file(file, options.formats)
            if image.size != size:
                raise MediaError(f"{path} was {size} at first and is {image.size} now.")
            return decode(image)

    with open_binary(path) as file:
        header = _open_file(file, options.formats)
        size = header.size
        return _frame(header, options, read)


def _open_file(file: Any, formats: tuple[str, ...] | None) -> Image.Image:
    """The image with its header read. Only the formats that may be opened see more than the first bytes."""
    try:
        with Reading("cannot open the image", keep=(Image.UnidentifiedImageError,)):
            return identified(file, formats)
    except Image.UnidentifiedImageError as err:
        file.seek(0)
        head = file.read(256)
        found = _format_of(head[:16], but=formats)
        if found in REFUSED_FORMATS:
            raise MediaError(f"{found} is not opened: Pillow would run another program on it.") from err
        if found is not None and formats is not None:
            raise MediaError(
                f"{found} is not opened: `formats` are {', '.join(formats)}. Add it, or pass `formats=None` for "
                "trusted input."
            ) from err
        raise MediaError(f"this is not an image that the installed Pillow reads{looks_like(head)}") from err


def _format_of(prefix: bytes, *, but: tuple[str, ...] | None) -> str | None:
    """A further format whose files begin like this. Pillow's check of the first bytes alone, no parser."""
    for name, (_, accepts) in list(Image.OPEN.items()):
        if but is not None and name in but:
            continue
        with contextlib.suppress(Exception):  # of a plugin, on bytes that are too few for it
            if accepts is not None and accepts(prefix) is True:
                return name
    return None


def decode(image: Image.Image) -> Image.Image:
    """Read the pixels, if that has not happened.

    Raises:
      MediaError: the data is cut short or broken, or the file was closed.
    """
    if _is_closed(image):
        raise MediaError(
            "the image's file was closed before its pixels were read; call `image.load()` inside of the `with` block, "
            "or pass the path."
        )
    with locks.reading(image), Reading("cannot decode the image"):
        image.load()
    return image


def _is_closed(image: Image.Image) -> bool:
    """Whether pixels are still to be read and the file is gone."""
    if not getattr(image, "tile", None):
        return False
    file = getattr(image, "fp", None)
    return file is None or bool(getattr(file, "closed", False))


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


def _orientation(image: Image.Image) -> int:
    """EXIF's number, 1 where nothing is to be turned. The pixels are not read, but for one kind of PNG.

    Pillow reads the pixels of every PNG without an `eXIf` chunk in front of them, since one may follow. Here the chunks
    are walked instead; only text that follows the pixels, which can hold EXIF or XMP too, is left to Pillow.
    """
    # Pillow turns TIFF files by itself, as the checkpoint gets them too.
    if image.format == "TIFF":
        return 1
    try:
        with locks.reading(image):
            number = _exif(image).get(_ORIENTATION, 1)
    except Exception as err:  # whatever a broken block makes Pillow raise: then nothing is known about turning
        if not is_about_a_medium(err):
            raise
        return 1
    return number if number in _TURNS else 1


def _exif(image: Image.Image) -> Image.Exif:
    if image.format != "PNG" or not getattr(image, "tile", None) or "exif" in image.info:
        return image.getexif()
    block, has_text = _after_pixels(image.fp)  # type: ignore[attr-defined]  # an ImageFile with pixels to be read
    if has_text:
        return image.getexif()
    if block is None:
        return Image.Image.getexif(image)  # of what precedes the pixels; PngImageFile's own would read them
    exif = Image.Exif()
    exif.load(b"Exif\x00\x00" + block)
    return exif


def _after_pixels(file: Any) -> tuple[bytes | None, bool]:
    """The `eXIf` chunk that follows the pixels of a PNG, and whether text follows them."""
    file.seek(0)
    if file.read(len(_SIGNATURE)) != _SIGNATURE:
        return None, True
    pixels, block, has_text = False, None, False
    while len(header := file.read(8)) == 8:
        length, kind = struct.unpack(">I4s", header)
        pixels = pixels or kind == b"IDAT"
        if kind == b"IEND":
            break
        if pixels and kind == b"eXIf":
            block = file.read(length)
            file.seek(4, 1)
            continue
        has_text = has_text or (pixels and kind in (b"tEXt", b"zTXt", b"iTXt"))
        file.seek(length + 4, 1)
    return block, has_text
