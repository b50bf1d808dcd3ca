"""Renders a decoded image as RGB at its planned size with Pillow: colour, resize, background, in the config's order."""

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from kimi_jax_prep.config import MediaProcConfig, TransparentBgConfig
from kimi_jax_prep.errors import MediaError
from kimi_jax_prep.plan import MediaPlan
from kimi_jax_prep.tables.background import blend_tables, board_square


def render(image: Image.Image, plan: MediaPlan, config: MediaProcConfig) -> Image.Image:
    """Convert and resize one decoded frame in the order that the config asks for. Returns RGB, not yet padded.

    Raises:
      MediaError: its mode cannot become RGB, or it is too long for Pillow to resize.
    """
    size = (plan.width, plan.height)
    try:
        if config.transparent_bg_fill_stage == "after_resize":
            # In the image's own mode: Pillow resizes P and 1 with NEAREST, LA and RGBA premultiplied.
            return to_rgb(_resize(image, size), config.transparent_bg_config)
        return _resize(to_rgb(image, config.transparent_bg_config), size)
    except MemoryError as err:
        width, height = image.size
        raise MediaError(f"Pillow cannot get the memory that resizing {width}x{height} takes.") from err
    except MediaError:
        raise
    except (OSError, ValueError) as err:
        raise MediaError(f"cannot resize mode {image.mode!r}: {err}") from err


def _resize(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    return image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)


def is_transparent(image: Image.Image) -> bool:
    """Whether the checkpoint blends this image onto a background. An RGB image with a transparent colour is not."""
    return image.mode != "RGB" and ("A" in image.getbands() or "transparency" in image.info)


def to_rgb(image: Image.Image, background: TransparentBgConfig | None) -> Image.Image:
    """An RGB image: alpha dropped without a background, blended onto it with one.

    Raises:
      MediaError: its mode cannot become RGB.
    """
    if background is None or not is_transparent(image):
        return drop_alpha(image)
    rgba = np.asarray(_convert(image, "RGBA"))
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
    return _convert(image, "RGB")


def _convert(image: Image.Image, mode: str) -> Image.Image:
    try:
        return image.convert(mode)
    # The last one of a PNG with a palette mode and no palette.
    except (OSError, ValueError, AssertionError) as err:
        reason = str(err) or "it has no palette" if image.mode in ("P", "PA") else err
        raise MediaError(f"cannot turn mode {image.mode!r} into RGB: {reason}") from err


def _composite(rgba: UInt8[np.ndarray, "h w 4"], background: TransparentBgConfig) -> UInt8[np.ndarray, "h w 3"]:
    tables = blend_tables(background).reshape(-1)
    square = board_square(background)
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
