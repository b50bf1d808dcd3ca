"""Videos as the chunks that the model sees: sampled, cut, with the text that stands for each."""

from collections.abc import Mapping
from typing import Any

from PIL import Image

from kimi_jax_prep.config import KIMI_K25, MediaProcConfig
from kimi_jax_prep.media.faults import Reading
from kimi_jax_prep.media.opening import open_media
from kimi_jax_prep.media.options import MediaOptions


def split_video_chunks(
    video: Any, *, config: MediaProcConfig = KIMI_K25, fps: float | None = None, **options: Any
) -> list[dict[str, Any]]:
    """Sample a video and cut it into chunks, as the checkpoint's method of this name does.

    Args:
      video: a video file as path, bytes, binary file or `data:` URL; frames that are decoded already (a list of
        pictures or an array (t, h, w, 3)); or a medium `{"type": "video", "video": any of these}` or
        `{"type": "video_url", ...}`.
      config: `sample_fps`, `temporal_merge_kernel_size` and `timestamp_mode` count.
      fps: frames a second, in place of what the file says. For decoded frames without it: they are as sampled already.
      **options: of `MediaOptions`; `progress=True` shows how far the decoding is.

    Returns:
      Media `{"type": "video_chunk", "video_chunk": [PIL images, RGB], "prompt": text}`, in the order of time.

    Raises: as `kimi_jax_prep.media.open_media`.
    """
    is_medium = isinstance(video, Mapping) and video.get("type") in ("video", "video_url")
    medium = video if is_medium else {"type": "video", "video": video}
    if fps is not None:
        medium = {**medium, "fps": fps}
    chunks = open_media(medium, config, MediaOptions(**options))
    return [
        {
            "type": "video_chunk",
            "video_chunk": [_own_rgb(frame.load()) for frame in chunk.frames],
            "prompt": chunk.prompt,
        }
        for chunk in chunks
    ]


def _own_rgb(image: Image.Image) -> Image.Image:
    """The frame in mode RGB, alpha dropped, in memory of its own: the caller may change its array afterwards."""
    copy = image.copy()
    # Pillow warns of palettes with several transparent entries; without the entry the bytes are the same.
    copy.info.pop("transparency", None)
    with Reading(f"mode {image.mode!r} does not become RGB"):
        return copy.convert("RGB")
