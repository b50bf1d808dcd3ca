"""Sizes, grids, token counts and video sampling: whole numbers and float64, no arrays, no NumPy, no JAX.

Sizes are in pixels. A patch is `patch_size` squared pixels, a token `merge_kernel_size` squared patches.
Source of every rule: the image processor that ships with the Kimi checkpoints.
"""

import bisect
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

from kimi_jax_prep.checks import positive_int
from kimi_jax_prep.config import MediaProcConfig
from kimi_jax_prep.errors import PlanError

_TIME_FORMATS = {"hh:mm:ss.fff": "%H:%M:%S", "mm:ss.fff": "%M:%S", "mm:ss": "%M:%S"}


@dataclass(frozen=True, slots=True)
class MediaPlan:
    """Sizes of one image or one video chunk. No pixels."""

    width: int
    """Pixels after the resize, before padding."""
    height: int
    pad_right: int
    """Columns of byte 0 that make the width a multiple of `patch_size * merge_kernel_size`."""
    pad_bottom: int
    grid_thw: tuple[int, int, int]
    """Frames, patch rows, patch columns."""
    num_tokens: int
    """Tokens that the model makes of it. Frames do not count: the model averages them."""

    @property
    def num_patches(self) -> int:
        """Rows of `pixel_values`: the product of `grid_thw`."""
        frames, rows, columns = self.grid_thw
        return frames * rows * columns


@dataclass(frozen=True, slots=True)
class VideoChunkPlan:
    """One chunk of a sampled video: one medium, one row of `grid_thws`."""

    frame_indices: tuple[int, ...]
    """Which frames of the video it holds, counted from 0."""
    timestamp: str
    """Time of its first frame, in the config's `timestamp_mode`."""
    prompt: str
    """The text that stands for it, with one `<|media_pad|>`."""
    plan: MediaPlan


def plan_image(*, width: int, height: int, config: MediaProcConfig) -> MediaPlan:
    """Sizes of one image.

    Args:
      width, height: pixels of the image as it is.
      config: whose `in_patch_limit` is the budget.

    Raises:
      PlanError: a side is not a positive whole number, or the padded size exceeds
        `patch_limit_on_one_side`.
    """
    return _plan(width, height, 1, config.in_patch_limit, config)


def plan_chunk(*, width: int, height: int, num_frames: int, config: MediaProcConfig) -> MediaPlan:
    """Sizes of one video chunk of `num_frames` frames, each `width` x `height` pixels.

    Raises:
      PlanError: as `plan_image`; also for no frames or more than `temporal_merge_kernel_size`.
    """
    num_frames = positive_int("num_frames", num_frames)
    most = config.temporal_merge_kernel_size
    if num_frames > most:
        raise PlanError(f"a video chunk has 1 to {most} frames (`temporal_merge_kernel_size`); got {num_frames}.")
    limit = config.in_patch_limit_each_frame or config.in_patch_limit
    if config.in_patch_limit_video is not None:
        limit = min(round(config.in_patch_limit_video / num_frames), limit)
    return _plan(width, height, num_frames, limit, config)


def plan_video(
    *, num_frames: int, fps: float, width: int, height: int, config: MediaProcConfig
) -> tuple[VideoChunkPlan, ...]:
    """Which frames of a video are used, in which chunks, at which size.

    Args:
      num_frames: frames in the file.
      fps: its frames a second.
      width, height: pixels of its frames.

    Raises:
      PlanError: as `plan_chunk`; also for a rate that is not a finite number above 0.
    """
    fps = _rate(fps)
    indices = sample_frames(num_frames=num_frames, fps=fps, config=config)
    size = config.temporal_merge_kernel_size
    chunks = []
    for start in range(0, len(indices), size):
        part = indices[start : start + size]
        timestamp = format_timestamp(part[0] / fps, timestamp_mode=config.timestamp_mode)
        plan = plan_chunk(width=width, height=height, num_frames=len(part), config=config)
        chunks.append(VideoChunkPlan(part, timestamp, chunk_prompt(timestamp), plan))
    return tuple(chunks)


def sample_frames(*, num_frames: int, fps: float, config: MediaProcConfig) -> tuple[int, ...]:
    """Indices of the frames that are used: `sample_fps` a second, evenly spaced, first and last included.

    Raises:
      PlanError: `num_frames` is not a positive whole number or `fps` not a finite number above 0.
    """
    num_frames = positive_int("num_frames", num_frames)
    fps = _rate(fps)
    rate = min(config.sample_fps, fps)
    count = max(round(num_frames * rate / fps), 1)
    if config.max_num_frames_each_video is not None:
        count = min(count, config.max_num_frames_each_video)
    if count == 1:
        return (0,)
    # numpy.linspace: multiples of one float64 step, the last value set rather than computed.
    step = (num_frames - 1) / (count - 1)
    return (*(round(i * step) for i in range(count - 1)), num_frames - 1)


def format_timestamp(seconds: float, *, timestamp_mode: str) -> str:
    """Time of day in UTC as the checkpoint prints it: hours wrap at 24, milliseconds are cut, not rounded."""
    # The remainder of a day is exact, and gmtime fails beyond its last year.
    text = time.strftime(_TIME_FORMATS[timestamp_mode], time.gmtime(seconds % 86400))
    if timestamp_mode.endswith(".fff"):
        text += f".{int(seconds % 1 * 1000):03d}"
    return text


def chunk_prompt(timestamp: str) -> str:
    """The text of one video chunk."""
    return f"{timestamp}<|media_begin|>video<|media_content|><|media_pad|><|media_end|>"


def total_patches(plans: Sequence[MediaPlan]) -> int:
    """Rows of `pixel_values` for these media together."""
    return sum(plan.num_patches for plan in plans)


# Rungs a quarter apart: few enough that a process compiles each at most once, close enough that what is computed for
# nothing stays near an eighth on average. From 256 patches to 1.5 million (3.6 GB of float32).
CAPACITIES = tuple(math.ceil(256 * 1.25**i / 32) * 32 for i in range(40))


def patch_capacity(num_patches: int) -> int:
    """Room for at least so many patches: the next rung of `CAPACITIES`, or the last one where none is enough."""
    return CAPACITIES[min(bisect.bisect_left(CAPACITIES, num_patches), len(CAPACITIES) - 1)]


def _rate(fps: object) -> float:
    # Real: containers say Fraction or NumPy's float32 as well.
    if isinstance(fps, Real) and not isinstance(fps, bool):
        rate = float(fps)
        if math.isfinite(rate) and rate > 0:
            return rate
    raise PlanError(f"`fps` is {fps!r}; expected a finite number above 0.")


def _plan(width: int, height: int, num_frames: int, limit: int, config: MediaProcConfig) -> MediaPlan:
    width, height = positive_int("width", width), positive_int("height", height)
    patch, merge, side_limit = config.patch_size, config.merge_kernel_size, config.patch_limit_on_one_side
    most = side_limit * patch
    scale = min(
        1.0,
        math.sqrt(limit / (max(1, width // patch) * max(1, height // patch))),
        most / width,
        most / height,
    )
    new_width = min(max(1, int(width * scale)), most)
    new_height = min(max(1, int(height * scale)), most)
    token = patch * merge
    pad_right, pad_bottom = -new_width % token, -new_height % token
    rows, columns = (new_height + pad_bottom) // patch, (new_width + pad_right) // patch
    if config.fixed_output_tokens is not None:
        num_tokens = config.fixed_output_tokens
    elif max(rows, columns) > side_limit:
        raise PlanError(
            f"{width}x{height} pads to {columns}x{rows} patches, over `patch_limit_on_one_side` = {side_limit}; "
            f"use a limit that is a multiple of `merge_kernel_size` = {merge}."
        )
    else:
        num_tokens = (rows // merge) * (columns // merge)
    return MediaPlan(new_width, new_height, pad_right, pad_bottom, (num_frames, rows, columns), num_tokens)
