"""From what people hold in their hands to frames of RGB bytes: opening, colour, Pillow's resize.

A medium is a PIL image, encoded bytes, an `os.PathLike`, a uint8 array, or one of the checkpoint's dicts
`{"type": "image", "image": ...}` and `{"type": "video_chunk", "video_chunk": [frames]}`. Nothing that the caller
passed is changed, and no file stays open.
"""

import io
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from kimi_jax_prep._composite import blend_tables
from kimi_jax_prep._config import MediaProcConfig, TransparentBgConfig
from kimi_jax_prep._errors import MediaError
from kimi_jax_prep._geometry import MediaPlan, plan_chunk, plan_image

MEDIA_KINDS = (
    "a PIL image, encoded bytes, an os.PathLike, a uint8 array (h, w, 3), or a dict "
    '{"type": "image", "image": ...} or {"type": "video_chunk", "video_chunk": [frames]}'
)


@dataclass(frozen=True, slots=True)
class Medium:
    """One opened medium. Images may still be undecoded: Pillow reads their pixels when they are needed."""

    frames: tuple[Image.Image, ...]
    is_chunk: bool
    """A video chunk, even of one frame, has the budget of a video frame."""

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels."""
        return self.frames[0].size

    def plan(self, config: MediaProcConfig) -> MediaPlan:
        """Sizes of this medium under a config."""
        width, height = self.size
        if self.is_chunk:
            return plan_chunk(width=width, height=height, num_frames=len(self.frames), config=config)
        return plan_image(width=width, height=height, config=config)


def open_medium(media: Any) -> Medium:
    """Open one medium; only headers are read.

    Raises:
      MediaError: it is of no kind listed in `MEDIA_KINDS`, cannot be recognised as an image, or is empty.
      FileNotFoundError, PermissionError, IsADirectoryError: a path cannot be read.
    """
    if isinstance(media, Mapping):
        return _open_dict(media)
    return Medium((open_image(media),), is_chunk=False)


def _open_dict(media: Mapping[str, Any]) -> Medium:
    kind = media.get("type")
    if kind not in ("image", "video_chunk"):
        raise MediaError(f"unknown medium type {kind!r}; expected 'image' or 'video_chunk'.")
    if kind not in media:
        raise MediaError(f"a medium of type {kind!r} needs the key {kind!r}; it has {sorted(map(str, media))}.")
    content = media[kind]
    if kind == "image":
        return Medium((open_image(content),), is_chunk=False)
    if isinstance(content, str | bytes | Mapping | Image.Image) or not isinstance(content, Iterable):
        raise MediaError(f"'video_chunk' holds a list of frames; got {type(content).__name__}.")
    frames = []
    for k, frame in enumerate(content):
        try:
            frames.append(open_image(frame))
        except MediaError as err:
            raise MediaError(f"frame {k}: {err}") from err
    if not frames:
        raise MediaError("a video chunk has at least one frame; got none.")
    for k, frame in enumerate(frames):
        if frame.size != frames[0].size:
            raise MediaError(
                f"frame {k} is {frame.width}x{frame.height} but frame 0 is {frames[0].width}x{frames[0].height}; "
                "all frames of a chunk have one size."
            )
    return Medium(tuple(frames), is_chunk=True)


def open_image(image: Any) -> Image.Image:
    """One image, not yet decoded where Pillow can wait. Of an animated file the current (first) frame counts.

    Raises: as `open_medium`.
    """
    if isinstance(image, Image.Image):
        opened = image
    elif isinstance(image, np.ndarray):
        opened = _from_array(image)
    elif isinstance(image, os.PathLike):
        # Read whole and close: an image that decodes later would keep its file open until then.
        opened = _from_bytes(Path(image).read_bytes())
    elif isinstance(image, bytes | bytearray | memoryview):
        opened = _from_bytes(bytes(image))
    elif isinstance(image, str):
        raise MediaError("a plain string is not an image; wrap a file name in `pathlib.Path`.")
    else:
        raise MediaError(f"got {type(image).__name__}; expected {MEDIA_KINDS}.")
    if 0 in opened.size:
        raise MediaError(f"the image is {opened.width}x{opened.height}; it needs at least one pixel.")
    return opened


def _from_bytes(data: bytes) -> Image.Image:
    if not data:
        raise MediaError("the image has no bytes.")
    try:
        return Image.open(io.BytesIO(data))
    except Image.UnidentifiedImageError as err:
        raise MediaError(f"{len(data)} bytes are not an image of a known format.") from err
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as err:
        raise MediaError(f"cannot open the image: {err}") from err


def _from_array(array: np.ndarray) -> Image.Image:
    if array.dtype != np.uint8:
        raise MediaError(
            f"an array has dtype uint8, bytes 0 to 255; got {array.dtype}. Scale it to 0..255, round and cast it first."
        )
    if array.ndim != 3 or array.shape[-1] != 3 or 0 in array.shape:
        raise MediaError(f"an array is (h, w, 3) with at least one pixel; got shape {array.shape}.")
    return Image.fromarray(np.ascontiguousarray(array))


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
    # Pillow's decoders raise many kinds for broken data; IndexError and struct.error are among them.
    except Exception as err:
        raise MediaError(f"cannot decode the image: {err}") from err
    return image


def render(image: Image.Image, plan: MediaPlan, config: MediaProcConfig) -> Image.Image:
    """Colour and resize of one frame with Pillow, in the order that the config asks for; RGB, not yet padded.

    Raises:
      MediaError: the data is cut short or broken, or its mode cannot become RGB.
    """
    size = (plan.width, plan.height)
    decode(image)
    try:
        if config.transparent_bg_fill_stage == "after_resize":
            # In the image's own mode: Pillow resizes P and 1 with NEAREST, LA and RGBA premultiplied.
            return to_rgb(_resize(image, size), config.transparent_bg_config)
        return _resize(to_rgb(image, config.transparent_bg_config), size)
    except (OSError, ValueError) as err:
        raise MediaError(f"cannot turn mode {image.mode!r} into RGB: {err}") from err


def _resize(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    return image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)


def is_transparent(image: Image.Image) -> bool:
    """Whether the checkpoint blends this image onto a background. An RGB image with a transparent colour is not."""
    return image.mode != "RGB" and ("A" in image.getbands() or "transparency" in image.info)


def to_rgb(image: Image.Image, background: TransparentBgConfig | None) -> Image.Image:
    """An RGB image: alpha dropped without a background, blended onto it with one."""
    if background is None or not is_transparent(image):
        return drop_alpha(image)
    rgba = np.asarray(image.convert("RGBA"))
    if rgba[..., 3].min() == 255:
        return Image.fromarray(rgba[..., :3])  # 1 * rgb + 0 * board
    return Image.fromarray(_composite(rgba, background))


def drop_alpha(image: Image.Image) -> Image.Image:
    """RGB as Pillow's `convert("RGB")` makes it."""
    if image.mode == "RGB":
        return image
    if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        # Pillow warns about such palettes; without the entry the bytes are the same.
        image = image.copy()
        del image.info["transparency"]
    return image.convert("RGB")


def _composite(rgba: UInt8[np.ndarray, "h w 4"], background: TransparentBgConfig) -> UInt8[np.ndarray, "h w 3"]:
    tables = blend_tables(background).reshape(-1)
    square = background.chessboard_square_size
    height, width = rgba.shape[:2]
    out = np.empty((height, width, 3), np.uint8)
    column = np.arange(width, dtype=np.int32) // square
    # One row of squares at a time keeps the indices in cache and the extra memory small.
    for top in range(0, height, square):
        rows = rgba[top : top + square].astype(np.int32)
        odd = (top // square + column) % 2
        index = rows[..., :3] + ((odd * 256 + rows[..., 3]) * 256)[..., None]
        tables.take(index, out=out[top : top + square], mode="clip")
    return out
