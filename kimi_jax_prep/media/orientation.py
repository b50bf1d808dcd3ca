"""EXIF orientation of an image whose pixels have not been read."""

import struct
from typing import Any

from PIL import Image

from kimi_jax_prep.media import locks
from kimi_jax_prep.media.faults import is_about_a_medium

_ORIENTATION = 0x0112
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""How Pillow turns an image upright, by EXIF's number."""
SWAPPING = (5, 6, 7, 8)
"""Numbers that swap width and height."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def orientation(image: Image.Image) -> int:
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
    return number if number in TURNS else 1


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
