"""From what people hold in their hands to frames: what a medium is, its size from its header, its pixels later.

A medium is

- a picture: a PIL image; encoded bytes, a binary file, an `os.PathLike` or a `data:` URL; an array of bytes (NumPy,
  JAX, torch);
- `{"type": "image", "image": picture}`;
- `{"type": "video_chunk", "video_chunk": frames}`: a list of pictures or an array (t, h, w, 3), up to
  `temporal_merge_kernel_size` of them;
- `{"type": "video", "video": video}`: a video file as path, bytes, binary file or `data:` URL, or frames; sampled and
  cut into chunks. Frames are sampled if `"fps"` says how many a second they are; else they are as sampled already.

`MediaOptions` says how they are opened. Nothing that the caller passed is changed, no file stays open, nothing is
fetched.
"""

import functools
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from kimi_jax_prep.config import MediaProcConfig
from kimi_jax_prep.errors import MediaError
from kimi_jax_prep.media.arrays import frame_pixels, is_array
from kimi_jax_prep.media.encoded import encoded
from kimi_jax_prep.media.faults import Reading
from kimi_jax_prep.media.frame_stream import FrameStream
from kimi_jax_prep.media.image import CLIPPED_MODES, Frame, check_size, open_image, unwrapped
from kimi_jax_prep.media.options import MediaOptions
from kimi_jax_prep.media.video_file import VideoFile
from kimi_jax_prep.plan import MediaPlan, VideoChunkPlan, plan_chunk, plan_image, plan_video

_DEFAULTS = MediaOptions()
_KINDS = ("image", "video_chunk", "video")
_CLOCKWISE = {
    90: Image.Transpose.ROTATE_270,
    180: Image.Transpose.ROTATE_180,
    270: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True, slots=True, eq=False)
class Medium:
    """One image or one video chunk: one row of `grid_thws`."""

    frames: tuple[Frame, ...]
    is_chunk: bool
    """A video chunk, even of one frame, has the budget of a video frame."""
    prompt: str | None = None
    """The text that stands for a chunk, where that is known."""

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels."""
        return self.frames[0].size

    @property
    def num_pixels(self) -> int:
        """Of all frames, before any resize."""
        width, height = self.size
        return width * height * len(self.frames)

    def plan(self, config: MediaProcConfig) -> MediaPlan:
        """Sizes of this medium under a config."""
        width, height = self.size
        if self.is_chunk:
            return plan_chunk(width=width, height=height, num_frames=len(self.frames), config=config)
        return plan_image(width=width, height=height, config=config)


def open_media(media: Any, config: MediaProcConfig, options: MediaOptions = _DEFAULTS) -> tuple[Medium, ...]:
    """Open one medium: an image or a chunk as it is, a video as its chunks. Only headers are read.

    Raises:
      MediaError: it is of no kind listed above, cannot be recognised, is empty, or exceeds a limit.
      PlanError: a rate that is not a finite number above 0.
      FileNotFoundError, PermissionError, IsADirectoryError: a path cannot be read.
      ImportError: a video file without PyAV.
    """
    if not isinstance(media, Mapping):
        return (Medium((open_image(media, options),), is_chunk=False),)
    kind = media.get("type")
    if kind not in _KINDS:
        raise MediaError(f"unknown medium type {kind!r}; expected {', '.join(map(repr, _KINDS))}.")
    if kind not in media:
        raise MediaError(f"a medium of type {kind!r} needs the key {kind!r}; it has {sorted(map(str, media))}.")
    content = unwrapped(media[kind])
    if kind == "image":
        return (Medium((open_image(content, options),), is_chunk=False),)
    if kind == "video":
        return tuple(_open_video(content, media.get("fps"), config, options))
    frames = _given_frames(content, options)
    if frames is None:
        raise MediaError(f"'video_chunk' holds a list of frames; got {type(content).__name__}.")
    if not frames:
        raise MediaError("a video chunk has at least one frame; got none.")
    if len(frames) > config.temporal_merge_kernel_size:
        raise MediaError(
            f"a video chunk has at most {config.temporal_merge_kernel_size} frames (`temporal_merge_kernel_size`); got "
            f"{len(frames)}. A whole video is {{'type': 'video', 'video': frames}}."
        )
    opened = _open_frames(dict(enumerate(frames)), _frame_options(content, options))
    return (Medium(tuple(opened.values()), is_chunk=True, prompt=media.get("prompt")),)


def warn_of_clipping(medias: Iterable[Medium], options: MediaOptions) -> None:
    """One warning for all pictures with more than 8 bits a value, unless they are to be scaled."""
    modes = {frame.mode for medium in medias for frame in medium.frames} & set(CLIPPED_MODES)
    if not modes:
        return
    level, caller = 2, sys._getframe(1)
    while caller.f_back is not None and caller.f_globals.get("__name__", "").startswith("kimi_jax_prep."):
        level, caller = level + 1, caller.f_back
    remedy = "" if options.sixteen_bit == "scale" else '; sixteen_bit="scale" keeps the upper 8 of 16 bits'
    warnings.warn(
        f"mode {', '.join(sorted(modes))}: values are clipped to 0..255, as the checkpoint does{remedy}.",
        UserWarning,
        stacklevel=level,
    )


def _given_frames(content: Any, options: MediaOptions) -> Sequence[Any] | None:
    """Frames that are given as such, or None for anything else."""
    if is_array(content):
        return list(frame_pixels(content, input_data_format=options.input_data_format))
    if isinstance(content, str | bytes | bytearray | memoryview | Mapping | os.PathLike | Image.Image):
        return None
    if hasattr(content, "read") or not isinstance(content, Iterable):
        return None
    with Reading("the frames cannot be listed"):
        return list(content)


def _frame_options(content: Any, options: MediaOptions) -> MediaOptions:
    """Frames cut from one array have their channels last by now."""
    return options.replace(input_data_format="channels_last") if is_array(content) else options


def _open_frames(frames: Mapping[int, Any], options: MediaOptions) -> dict[int, Frame]:
    """Frames by their index in the video, all of one size."""
    opened: dict[int, Frame] = {}
    first, size = next(iter(frames)), None
    for k, frame in frames.items():
        try:
            opened[k] = open_image(frame, options)
        except MediaError as err:
            raise type(err)(f"frame {k}: {err}") from err
        width, height = opened[k].size
        if size is None:
            size = opened[k].size
        elif opened[k].size != size:
            raise MediaError(
                f"frame {k} is {width}x{height} but frame {first} is {size[0]}x{size[1]}; all frames of a chunk or "
                "video have one size."
            )
    return opened


def _open_video(content: Any, fps: Any, config: MediaProcConfig, options: MediaOptions) -> Iterator[Medium]:
    given = _given_frames(content, options)
    if given is None:
        source = encoded(content, allow_paths=options.allow_paths)
        if source is None:
            raise MediaError(
                f"'video' holds a path, bytes, a binary file or a `data:` URL, or frames; got {type(content).__name__}."
            )
        file = VideoFile(source)
        turned = file.rotation if options.exif_transpose else 0
        size = (file.height, file.width) if turned in (90, 270) else (file.width, file.height)
        rate = file.fps if fps is None else fps
        if rate is None:
            if file.num_frames > 1:
                raise MediaError("the video does not say how many frames a second it has; give `fps` beside it.")
            rate = config.sample_fps
        chunks = _plan(file.num_frames, rate, size, config, options)
        decoded = FrameStream(file, [k for chunk in chunks for k in chunk.frame_indices], progress=options.progress)
        frames = {k: Frame(size, "RGB", functools.partial(_upright, decoded, k, turned)) for k in decoded.indices}
    else:
        if not given:
            raise MediaError("a video has at least one frame; got none.")
        options = _frame_options(content, options)
        size = _open_frames({0: given[0]}, options)[0].size
        chunks = _plan(len(given), config.sample_fps if fps is None else fps, size, config, options)
        frames = _open_frames({k: given[k] for chunk in chunks for k in chunk.frame_indices}, options)
    for chunk in chunks:
        yield Medium(tuple(frames[k] for k in chunk.frame_indices), is_chunk=True, prompt=chunk.prompt)


def _plan(
    num_frames: int, fps: Any, size: tuple[int, int], config: MediaProcConfig, options: MediaOptions
) -> tuple[VideoChunkPlan, ...]:
    check_size(*size, options)
    chunks = plan_video(num_frames=num_frames, fps=fps, width=size[0], height=size[1], config=config)
    taken = sum(len(chunk.frame_indices) for chunk in chunks)
    if options.max_frames is not None and taken > options.max_frames:
        raise MediaError(
            f"{taken} of the video's frames are to be taken, more than `max_frames` = {options.max_frames}."
        )
    return chunks


def _upright(decoded: FrameStream, k: int, turned: int) -> Image.Image:
    image = Image.fromarray(decoded.frame(k))
    return image.transpose(_CLOCKWISE[turned]) if turned else image
