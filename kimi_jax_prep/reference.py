"""A reference implementation in plain NumPy and Pillow, which all other code is tested against.

It is written to be compared with the checkpoint's own code line by line, not to be fast. It shares only sizes, configs,
results and errors with the rest of the library, and nothing in the package imports it.
"""

import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Shaped, UInt8
from PIL import Image

from kimi_jax_prep.batch import PatchBatch
from kimi_jax_prep.config import MediaProcConfig, TransparentBgConfig
from kimi_jax_prep.errors import MediaError, PrepError
from kimi_jax_prep.plan import MediaPlan, plan_chunk, plan_image


def preprocess(medias: Iterable[Any], config: MediaProcConfig) -> PatchBatch:
    """Compute the patches of media as the checkpoint does.

    Args:
      medias: PIL images, encoded bytes, paths (`os.PathLike`), uint8 arrays (h, w, 3), or the checkpoint's dicts
        `{"type": "image", "image": ...}` and `{"type": "video_chunk", "video_chunk": [frames]}` of these.
      config: sizes, colour rules, mean and std.

    Returns:
      float32 `pixel_values` (N, 3, 14, 14) and int64 `grid_thws` (media, 3), NumPy.

    Raises:
      PrepError: a medium is none of these or cannot be decoded; the message names its index.
    """
    patches, plans = [], []
    for i, media in enumerate(medias):
        try:
            frames, plan = _frames_and_plan(media, config)
            bytes_ = np.stack([_frame_bytes(frame, plan, config) for frame in frames])
        except PrepError as err:
            raise type(err)(f"medias[{i}]: {err}") from err
        patches.append(patchify(normalize(bytes_, config), config.patch_size))
        plans.append(plan)
    p = config.patch_size
    pixel_values = np.concatenate([np.zeros((0, 3, p, p), np.float32), *patches])
    grid_thws = np.array([plan.grid_thw for plan in plans], np.int64).reshape(-1, 3)
    return PatchBatch(pixel_values, grid_thws, tuple(plans), tuple(range(len(plans))), (None,) * len(plans))


def _frames_and_plan(media: Any, config: MediaProcConfig) -> tuple[list[Image.Image], MediaPlan]:
    if isinstance(media, dict) and media.get("type") == "video_chunk":
        frames = [_open(frame) for frame in media["video_chunk"]]
        sizes = {frame.size for frame in frames}
        if len(sizes) != 1:
            raise MediaError(f"a video chunk has at least one frame, all of one size; got sizes {sorted(sizes)}.")
        if len(frames) > config.temporal_merge_kernel_size:
            raise MediaError(
                f"a video chunk has at most {config.temporal_merge_kernel_size} frames; got {len(frames)}."
            )
        width, height = frames[0].size
        return frames, plan_chunk(width=width, height=height, num_frames=len(frames), config=config)
    image = _open(media["image"] if isinstance(media, dict) and media.get("type") == "image" else media)
    return [image], plan_image(width=image.width, height=image.height, config=config)


def _open(image: Any) -> Image.Image:
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, np.ndarray) and image.dtype == np.uint8:
        return Image.fromarray(image)
    if isinstance(image, os.PathLike):
        image = Path(image).read_bytes()
    if isinstance(image, bytes):
        try:
            opened = Image.open(io.BytesIO(image))
            opened.load()
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as err:
            raise MediaError(f"cannot decode the image: {err}") from err
        return opened
    raise MediaError(f"a {type(image).__name__} is not an image the reference reads.")


def _frame_bytes(image: Image.Image, plan: MediaPlan, config: MediaProcConfig) -> UInt8[np.ndarray, "H W 3"]:
    """Convert, resize and pad one frame, in the order that the config specifies."""
    size = (plan.width, plan.height)
    if config.transparent_bg_fill_stage == "after_resize":
        # In the image's own mode. Pillow resizes P and 1 with NEAREST, and LA and RGBA premultiplied.
        image = to_rgb(image.resize(size, Image.Resampling.BICUBIC), config.transparent_bg_config)
    else:
        image = to_rgb(image, config.transparent_bg_config).resize(size, Image.Resampling.BICUBIC)
    pixels = np.asarray(image)
    return np.pad(pixels, ((0, plan.pad_bottom), (0, plan.pad_right), (0, 0)))


def to_rgb(image: Image.Image, background: TransparentBgConfig | None) -> Image.Image:
    """Convert to RGB as the checkpoint does: blend alpha onto the background, or drop it if there is none."""
    if image.mode == "RGB":
        return image
    has_alpha = "A" in image.getbands() or "transparency" in image.info
    if background is None or not has_alpha:
        return _without_transparency(image).convert("RGB")
    rgba = np.asarray(image.convert("RGBA")).astype(np.float32)
    alpha = rgba[..., 3:] / np.float32(255)
    board = _board(image.width, image.height, background)[..., None]
    # In float32, without fused multiply-add; astype truncates.
    return Image.fromarray((alpha * rgba[..., :3] + (np.float32(1) - alpha) * board).astype(np.uint8))


def _without_transparency(image: Image.Image) -> Image.Image:
    """Remove several transparent palette entries, for which `convert("RGB")` warns; the bytes stay the same."""
    if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        image = image.copy()
        del image.info["transparency"]
    return image


def _board(width: int, height: int, background: TransparentBgConfig) -> Float32[np.ndarray, "h w"]:
    plain = {"white": 255, "black": 0, "gray": 128}
    if background.pattern in plain:
        return np.full((height, width), plain[background.pattern], np.float32)
    square = min(background.chessboard_square_size, max(height, width))  # NumPy has no larger whole numbers
    odd = (np.arange(height)[:, None] // square + np.arange(width)[None, :] // square) % 2 == 1
    gray = odd if background.chessboard_square_on_top_left else ~odd
    return np.where(gray, background.chessboard_gray_value, background.chessboard_white_value).astype(np.float32)


def normalize(frames: UInt8[np.ndarray, "t H W 3"], config: MediaProcConfig) -> Float32[np.ndarray, "t H W 3"]:
    """Normalize in three steps, each computed in float64 and stored as float32."""
    x = (frames / 255.0).astype(np.float32)
    with np.errstate(all="ignore"):  # means and stds beyond float32 give infinities and NaN
        x = (x.astype(np.float64) - np.array(config.image_mean)).astype(np.float32)
        return (x.astype(np.float64) * (1.0 / np.array(config.image_std))).astype(np.float32)


def patchify(frames: Shaped[np.ndarray, "t H W 3"], patch_size: int) -> Shaped[np.ndarray, "n 3 p p"]:
    """Split into patches in the order frames, patch rows, patch columns; channels first."""
    t, height, width, _ = frames.shape
    rows, columns = height // patch_size, width // patch_size
    x = frames.reshape(t, rows, patch_size, columns, patch_size, 3)
    return x.transpose(0, 1, 3, 5, 2, 4).reshape(t * rows * columns, 3, patch_size, patch_size)
