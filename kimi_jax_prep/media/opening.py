"""Opens a medium as frames: its size from its header now, its pixels on demand.

A medium is

- an image: a PIL image; encoded bytes, a binary file, an `os.PathLike` or a `data:` URL; a uint8 array (NumPy, JAX,
  torch); a record `{"bytes": ..., "path": ...}` of a data set;
- `{"type": "image", "image": image}`;
- `{"type": "video_chunk", "video_chunk": frames}`: a list of images or an array (t, h, w, 3), up to
  `temporal_merge_kernel_size` of them;
- `{"type": "video", "video": video}`: a video file as path, bytes, binary file or `data:` URL, or frames; sampled and
  split into chunks. Frames are sampled if `"fps"` gives their rate. With `"frames_indices"` they were sampled
  elsewhere: these are their places in a source of that rate. Without either they are taken as sampled;
- `{"type": "image_url", ...}` and `{"type": "video_url", ...}` as in messages, with a `data:` URL.

`MediaOptions` says how they are opened. Nothing that the caller passed is changed, no file stays open, nothing is
fetched.
"""

import functools
import operator
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from kimi_jax_prep.config import KIMI_K25, ConfigLike, MediaProcConfig, as_config
from kimi_jax_prep.errors import MediaError
from kimi_jax_prep.media import kinds
from kimi_jax_prep.media.arrays import frame_pixels, is_array, is_encoded_array, is_object_array
from kimi_jax_prep.media.encoded import encoded
from kimi_jax_prep.media.faults import Reading
from kimi_jax_prep.media.frame_stream import FrameStream
from kimi_jax_prep.media.image import CLIPPED_MODES, Frame, check_size, open_image
from kimi_jax_prep.media.kinds import Described
from kimi_jax_prep.media.options import MediaOptions
from kimi_jax_prep.media.video_file import VideoFile
from kimi_jax_prep.plan import MediaPlan, VideoChunkPlan, plan_chunk, plan_image, plan_sampled_video, plan_video

_DEFAULTS = MediaOptions()
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
    described = kinds.described(media)
    if described.kind == "image":
        return (Medium((open_image(described.content, options),), is_chunk=False),)
    if described.kind == "video":
        return tuple(_open_video(described, config, options))
    return (_open_chunk(described, config, options),)


def _open_chunk(described: Described, config: MediaProcConfig, options: MediaOptions) -> Medium:
    content = described.content
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
    return Medium(tuple(opened.values()), is_chunk=True, prompt=described.prompt)


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
    if is_encoded_array(content):
        return None
    if is_array(content) and not is_object_array(content):
        return list(frame_pixels(content, input_data_format=options.input_data_format))
    if isinstance(content, str | bytes | bytearray | memoryview | Mapping | os.PathLike | Image.Image):
        return None
    if hasattr(content, "read") or not isinstance(content, Iterable):
        return None
    with Reading("the frames cannot be listed"):
        return list(content)


def _frame_options(content: Any, options: MediaOptions) -> MediaOptions:
    """Frames cut from one array have their channels last by now."""
    cut = is_array(content) and not is_object_array(content)
    return options.replace(input_data_format="channels_last") if cut else options


def _open_frames(frames: Mapping[int, Any], options: MediaOptions) -> dict[int, Frame]:
    """Frames by their index in the video, all of one size."""
    opened: dict[int, Frame] = {}
    first, size = next(iter(frames)), None
    for k, frame in frames.items():
        try:
            opened[k] = frame if isinstance(frame, Frame) else open_image(frame, options)
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


def _open_video(described: Described, config: MediaProcConfig, options: MediaOptions) -> Iterator[Medium]:
    given = _given_frames(described.content, options)
    if given is None:
        chunks, frames = _of_file(described, config, options)
    else:
        chunks, frames = _of_frames(described, given, config, options)
    for chunk in chunks:
        yield Medium(tuple(frames[k] for k in chunk.frame_indices), is_chunk=True, prompt=chunk.prompt)


def _of_file(
    described: Described, config: MediaProcConfig, options: MediaOptions
) -> tuple[tuple[VideoChunkPlan, ...], dict[int, Frame]]:
    """Chunks of a video file, and its sampled frames by index."""
    content = described.content
    if described.frames_indices is not None:
        raise MediaError(
            f"'frames_indices' is for frames that are sampled already, but 'video' holds a {type(content).__name__}."
        )
    source = encoded(content, allow_paths=options.allow_paths)
    if source is None:
        raise MediaError(
            f"'video' holds a path, bytes, a binary file or a `data:` URL, or frames; got {type(content).__name__}."
        )
    file = VideoFile(source)
    turned = file.rotation if options.exif_transpose else 0
    size = (file.height, file.width) if turned in (90, 270) else (file.width, file.height)
    rate = file.fps if described.fps is None else described.fps
    if rate is None:
        if file.num_frames > 1:
            raise MediaError("the video does not say how many frames a second it has; give `fps` beside it.")
        rate = config.sample_fps
    chunks = _plan(file.num_frames, rate, size, config, options)
    decoded = FrameStream(file, [k for chunk in chunks for k in chunk.frame_indices], progress=options.progress)
    return chunks, {k: Frame(size, "RGB", functools.partial(_upright, decoded, k, turned)) for k in decoded.indices}


def _of_frames(
    described: Described, given: Sequence[Any], config: MediaProcConfig, options: MediaOptions
) -> tuple[tuple[VideoChunkPlan, ...], dict[int, Frame]]:
    """Chunks of decoded frames: sampled here if `fps` is given, and elsewhere if their indices are."""
    if not given:
        raise MediaError("a video has at least one frame; got none.")
    options = _frame_options(described.content, options)
    first = _open_frames({0: given[0]}, options)[0]
    if described.frames_indices is not None:
        chunks = _plan_sampled(described, len(given), first.size, config, options)
    else:
        fps = config.sample_fps if described.fps is None else described.fps
        chunks = _plan(len(given), fps, first.size, config, options)
    taken = {k: given[k] for chunk in chunks for k in chunk.frame_indices}
    return chunks, _open_frames({0: first} | {k: frame for k, frame in taken.items() if k}, options)


def _plan(
    num_frames: int, fps: Any, size: tuple[int, int], config: MediaProcConfig, options: MediaOptions
) -> tuple[VideoChunkPlan, ...]:
    check_size(*size, options)
    chunks = plan_video(num_frames=num_frames, fps=fps, width=size[0], height=size[1], config=config)
    _check_frames(sum(len(chunk.frame_indices) for chunk in chunks), options)
    return chunks


def _plan_sampled(
    described: Described, num_frames: int, size: tuple[int, int], config: MediaProcConfig, options: MediaOptions
) -> tuple[VideoChunkPlan, ...]:
    given = described.frames_indices
    try:
        indices = [operator.index(k) for k in getattr(given, "tolist", lambda: given)()]
    except TypeError as err:
        raise MediaError(f"'frames_indices' must be a list of whole numbers; got {given!r}.") from err
    if len(indices) != num_frames:
        raise MediaError(f"'frames_indices' has {len(indices)} entries for {num_frames} frames; give one for each.")
    if not 0 <= indices[0] <= indices[-1] < 2**53 or indices != sorted(indices):
        raise MediaError(f"'frames_indices' must be 0 or more, below 2**53, and in the order of time; got {indices}.")
    if described.fps is None:
        raise MediaError("'frames_indices' needs 'fps', the source's frames per second, to know the frames' times.")
    check_size(*size, options)
    _check_frames(num_frames, options)
    width, height = size
    return plan_sampled_video(frames_indices=indices, fps=described.fps, width=width, height=height, config=config)


def _check_frames(taken: int, options: MediaOptions) -> None:
    if options.max_frames is not None and taken > options.max_frames:
        raise MediaError(
            f"{taken} of the video's frames are to be taken, more than `max_frames` = {options.max_frames}."
        )


def _upright(decoded: FrameStream, k: int, turned: int) -> Image.Image:
    image = Image.fromarray(decoded.frame(k))
    return image.transpose(_CLOCKWISE[turned]) if turned else image


def split_video_chunks(
    video: Any, *, config: ConfigLike = KIMI_K25, fps: float | None = None, **options: Any
) -> list[dict[str, Any]]:
    """Sample a video and cut it into chunks, as the checkpoint's method of this name does.

    Args:
      video: a video file as path, bytes, binary file or `data:` URL; frames that are decoded already (a list of
        pictures or an array (t, h, w, 3)); or a medium `{"type": "video", "video": any of these}`.
      config: `sample_fps`, `temporal_merge_kernel_size` and `timestamp_mode` count.
      fps: frames a second, in place of what the file says. For decoded frames without it: they are as sampled already.
      **options: of `MediaOptions`; `progress=True` shows how far the decoding is.

    Returns:
      Media `{"type": "video_chunk", "video_chunk": [PIL images, RGB], "prompt": text}`, in the order of time.

    Raises: as `kimi_jax_prep.media.open_media`.
    """
    medium = (
        video
        if isinstance(video, Mapping) and video.get("type") in ("video", "video_url")
        else {"type": "video", "video": video}
    )
    if fps is not None:
        medium = {**medium, "fps": fps}
    chunks = open_media(medium, as_config(config), MediaOptions(**options))
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
