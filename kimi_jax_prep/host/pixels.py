"""Pixels of a PIL image as 32-bit words, by rectangle, without a copy where its memory allows.

A word holds the first channel in its lowest byte: R, G, B and an unused byte, or R, G, B, A.
"""

import ctypes

import numpy as np
from jaxtyping import UInt32
from PIL import Image

Words = UInt32[np.ndarray, "h w"]


class _ArrowArray(ctypes.Structure):
    """`struct ArrowArray` of Arrow's C data interface; trailing fields are left out."""


_ArrowArray._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_ArrowArray))),
]
# Not public, but what `Image.tobytes` has called in every version since PIL.
_get_encoder = getattr(Image, "_getencoder", None)
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Pixels:
    """Reads rectangles of one decoded image of mode RGB, RGBA or RGBa, which must not change while it is read."""

    def __init__(self, image: Image.Image) -> None:
        if image.mode not in ("RGB", "RGBA", "RGBa"):
            raise ValueError(f"mode {image.mode!r} has no 4-byte pixels in order R, G, B")
        self._image = image
        self._raw_mode = "RGBX" if image.mode == "RGB" else image.mode
        self._shared = _shared_memory(image)

    def box(self, top: int, bottom: int, left: int, right: int) -> Words:
        """Rows `top` to `bottom - 1`, columns `left` to `right - 1`, read-only."""
        if self._shared is not None:
            return self._shared[top:bottom, left:right]
        shape = (bottom - top, right - left)
        return np.frombuffer(_encode(self._image, (left, top, right, bottom), self._raw_mode), "<u4").reshape(shape)


class _PillowMemory:
    """Base of every array that looks into Pillow's memory: it keeps the capsule, and so the memory, alive."""

    def __init__(self, address: int, shape: tuple[int, int], capsule: object) -> None:
        self._capsule = capsule
        self.__array_interface__ = {"version": 3, "data": (address, True), "shape": shape, "typestr": "<u4"}


def _shared_memory(image: Image.Image) -> Words | None:
    """Pillow's own memory, or None where its rows do not lie in one block.

    Pillow 11.2 and later export it through Arrow's C data interface, with four bytes for each pixel.
    """
    if _rows_are_padded(image.width):
        return None
    try:
        _, capsule = image.__arrow_c_array__()
    except (AttributeError, ValueError, OSError, MemoryError):
        return None
    pixels = _ArrowArray.from_address(_capsule_pointer(capsule, b"arrow_array"))
    if pixels.length != image.width * image.height or pixels.n_children != 1 or pixels.offset:
        return None
    values = pixels.children[0].contents
    if values.length != 4 * pixels.length or values.n_buffers != 2 or values.offset:
        return None
    return np.asarray(_PillowMemory(values.buffers[1], (image.height, image.width), capsule))


def _rows_are_padded(width: int) -> bool:
    """Whether Pillow pads rows (`PILLOW_ALIGNMENT`): up to 12.3 it exports them as if it did not."""
    alignment = getattr(Image.core, "get_alignment", lambda: 1)()
    return 4 * width % alignment != 0


def _encode(image: Image.Image, box: tuple[int, int, int, int], raw_mode: str) -> bytes:
    """The bytes of a rectangle, in one piece.

    `Image.tobytes` does this for a whole image, in pieces of 64 KiB that it joins; on a picture of 12 megapixels the
    rectangles take a tenth of its time. Without Pillow's raw encoder a cropped copy serves.
    """
    left, top, right, bottom = box
    if _get_encoder is not None:
        encoder = _get_encoder(image.mode, "raw", (raw_mode,))
        encoder.setimage(image.im, box)
        size = 4 * (right - left) * (bottom - top)
        written, status, data = encoder.encode(size)
        # The encoder reports the end only when it is asked for more than there is.
        if status >= 0 and written == size:
            return data
    return image.crop(box).tobytes("raw", raw_mode)
