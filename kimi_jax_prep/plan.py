"""Sizes, grids, token counts and video sampling, in whole numbers and float64. No arrays, NumPy or JAX.

Sizes are in pixels. A patch has `patch_size` x `patch_size` pixels, a token `merge_kernel_size` x `merge_kernel_size`
patches. All rules come from the image processor that ships with the Kimi checkpoints.
"""

import bisect
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

from kimi_jax_prep.checks import finite_float, one_of, positive_int, shown
from kimi_jax_prep.config import ConfigLike, MediaProcConfig, as_config
from kimi_jax_prep.errors import PlanError

# Of one video: 36 hours at 8 frames a second. A wrong frame count in a header must not fill the memory with indices.
MAX_SAMPLED_FRAMES = 1 << 20
_TIME_FORMATS = {"hh:mm:ss.fff": "%H:%M:%S", "mm:ss.fff": "%M:%S", "mm:ss": "%M:%S"}


@dataclass(frozen=True, slots=True)
class MediaPlan:
    """Sizes of one image or one video chunk."""

    width: int
    """Pixels after the resize, before padding."""
    height: int
    pad_right: int
    """Columns of zeros that make the padded width a multiple of `patch_size * merge_kernel_size`."""
    pad_bottom: int
    """Rows of zeros, likewise."""
    grid_thw: tuple[int, int, int]
    """Frames, patch rows, patch columns."""
    num_tokens: int
    """Tokens in the model's input. The model averages frames, so their number does not matter."""
    merge_kernel_size: int = 2
    """Side of a token in patches."""

    @property
    def num_patches(self) -> int:
        """Rows of `pixel_values`: the product of `grid_thw`."""
        frames, rows, columns = self.grid_thw
        return frames * rows * columns


@dataclass(frozen=True, slots=True)
class VideoChunkPlan:
    """One chunk of a sampled video, which is one row of `grid_thws`."""

    frame_indices: tuple[int, ...]
    """Indices of its frames in the video, from 0."""
    timestamp: str
    """Time of its first frame, in the config's `timestamp_mode`."""
    prompt: str
    """The prompt text of the chunk, with one `<|media_pad|>`."""
    plan: MediaPlan


def plan_image(*, width: int, height: int, config: ConfigLike) -> MediaPlan:
    """Compute the sizes of one image.

    Args:
      width, height: pixels of the original image.
      config: `in_patch_limit` is the budget.

    Raises:
      PlanError: a side is not a positive whole number or is beyond float64, or the padded size exceeds
        `patch_limit_on_one_side`.
      TypeError: `config` is not a config.
    """
    config = as_config(config)
    return _plan(width, height, 1, config.in_patch_limit, config)


def plan_chunk(*, width: int, height: int, num_frames: int, config: ConfigLike) -> MediaPlan:
    """Compute the sizes of one video chunk of `num_frames` frames, each `width` x `height` pixels.

    Raises:
      PlanError: as for `plan_image`; also for zero frames or more than `temporal_merge_kernel_size`.
    """
    config = as_config(config)
    num_frames = positive_int("num_frames", num_frames)
    most = config.temporal_merge_kernel_size
    if num_frames > most:
        raise PlanError(
            f"a video chunk has 1 to {shown(most)} frames (`temporal_merge_kernel_size`); got {shown(num_frames)}."
        )
    limit = config.in_patch_limit_each_frame or config.in_patch_limit
    if config.in_patch_limit_video is not None:
        limit = min(_rounded(config.in_patch_limit_video, num_frames), limit)
    return _plan(width, height, num_frames, limit, config)


def plan_video(
    *, num_frames: int, fps: float, width: int, height: int, config: ConfigLike
) -> tuple[VideoChunkPlan, ...]:
    """Sample the frames of a video, split them into chunks and compute the size of each chunk.

    Args:
      num_frames: number of frames in the file.
      fps: frames per second of the file.
      width, height: pixels of a frame.

    Raises:
      PlanError: as for `plan_chunk`; also for a rate that is not a finite number above 0, more than 2**20 sampled
        frames, or a time beyond float64.
    """
    config, fps = as_config(config), _rate(fps)
    indices = sample_frames(num_frames=num_frames, fps=fps, config=config)
    return _chunks(indices, indices, fps, width, height, config)


def plan_sampled_video(
    *, frames_indices: Sequence[int], fps: float, width: int, height: int, config: ConfigLike
) -> tuple[VideoChunkPlan, ...]:
    """Split frames that were sampled elsewhere into chunks. No frame is left out.

    Args:
      frames_indices: index in the source of each frame, for the times of the chunks.
      fps: frames per second of the source.
      width, height: pixels of a frame.

    Returns:
      Chunks whose `frame_indices` count the frames that are there.

    Raises: as `plan_video`.
    """
    config, fps = as_config(config), _rate(fps)
    return _chunks(range(len(frames_indices)), frames_indices, fps, width, height, config)


def _chunks(
    frames: Sequence[int], sources: Sequence[int], fps: float, width: int, height: int, config: MediaProcConfig
) -> tuple[VideoChunkPlan, ...]:
    """Chunks of frames whose places in the source give their times."""
    size = config.temporal_merge_kernel_size
    chunks = []
    for start in range(0, len(frames), size):
        part = tuple(frames[start : start + size])
        try:
            seconds = sources[start] / fps
        except OverflowError:
            seconds = math.inf
        if not math.isfinite(seconds):
            raise PlanError(f"frame {sources[start]} at `fps` = {fps} has a time beyond float64; check the rate.")
        timestamp = format_timestamp(seconds, timestamp_mode=config.timestamp_mode)
        plan = plan_chunk(width=width, height=height, num_frames=len(part), config=config)
        chunks.append(VideoChunkPlan(part, timestamp, chunk_prompt(timestamp), plan))
    return tuple(chunks)


def sample_frames(*, num_frames: int, fps: float, config: ConfigLike) -> tuple[int, ...]:
    """Return the indices of the sampled frames: `sample_fps` per second, evenly spaced, first and last included.

    Raises:
      PlanError: `num_frames` is not a positive whole number, `fps` is not a finite number above 0, or more than
        2**20 frames would be sampled.
    """
    config, num_frames, fps = as_config(config), _size("num_frames", num_frames), _rate(fps)
    rate = min(config.sample_fps, fps)
    product = num_frames * rate
    # The checkpoint's grouping, unless its product is beyond float64.
    quotient = product / fps if math.isfinite(product) else num_frames * (rate / fps)
    count = max(round(quotient), 1)
    if config.max_num_frames_each_video is not None:
        count = min(count, config.max_num_frames_each_video)
    if count > MAX_SAMPLED_FRAMES:
        raise PlanError(
            f"{num_frames} frames at {fps} frames a second give {count} sampled frames, more than "
            f"{MAX_SAMPLED_FRAMES}; set `max_num_frames_each_video` or a lower `sample_fps`."
        )
    if count == 1:
        return (0,)
    # numpy.linspace: multiples of one float64 step, the last value set rather than computed.
    step = (num_frames - 1) / (count - 1)
    return (*(round(i * step) for i in range(count - 1)), num_frames - 1)


def format_timestamp(seconds: float, *, timestamp_mode: str) -> str:
    """Format a time as the checkpoint does, as a time of day in UTC: hours wrap at 24, milliseconds are truncated.

    Raises:
      PlanError: a time that is negative, NaN or infinite, or an unknown mode.
    """
    one_of("timestamp_mode", timestamp_mode, _TIME_FORMATS)
    if finite_float("seconds", seconds) < 0:
        raise PlanError(f"`seconds` is {seconds!r}; expected a time that is not negative.")
    # The remainder of a day is exact, and gmtime fails beyond its last year.
    text = time.strftime(_TIME_FORMATS[timestamp_mode], time.gmtime(seconds % 86400))
    if timestamp_mode.endswith(".fff"):
        text += f".{int(seconds % 1 * 1000):03d}"
    return text


def chunk_prompt(timestamp: str) -> str:
    """Return the prompt text of one video chunk."""
    return f"{timestamp}<|media_begin|>video<|media_content|><|media_pad|><|media_end|>"


def _rounded(numerator: int, denominator: int) -> int:
    """`round(numerator / denominator)`, in whole numbers where the quotient is beyond float64."""
    try:
        return round(numerator / denominator)
    except OverflowError:
        return numerator // denominator


def total_patches(plans: Sequence[MediaPlan]) -> int:
    """Return the total number of rows in `pixel_values`."""
    return sum(plan.num_patches for plan in plans)


# Capacity buckets, each a quarter larger than the one before: few enough to compile each once, close enough that
# padding averages about an eighth. From 256 patches to 1.5 million (3.6 GB of float32).
CAPACITIES = tuple(math.ceil(256 * 1.25**i / 32) * 32 for i in range(40))


def patch_capacity(num_patches: int) -> int:
    """Return the smallest of `CAPACITIES` that holds so many patches, or the largest if none does."""
    return CAPACITIES[min(bisect.bisect_left(CAPACITIES, num_patches), len(CAPACITIES) - 1)]


def _rate(fps: object) -> float:
    # Real: containers report Fraction and NumPy's float32 as well.
    if not isinstance(fps, Real):
        raise PlanError(f"`fps` is {shown(fps)}; expected a finite number above 0.")
    return finite_float("fps", fps, positive=True)


def _ratio(numerator: int, denominator: int) -> float:
    """`numerator / denominator` in float64, or 1.0 where the quotient is larger: it may be beyond float64."""
    return 1.0 if numerator >= denominator else numerator / denominator


def _scaled(side: int, scale: float, most: int) -> int:
    # A product with 1.0 would round sides beyond 2**53.
    return min(max(1, side if scale == 1.0 else int(side * scale)), most)


def _plan(width: int, height: int, num_frames: int, limit: int, config: MediaProcConfig) -> MediaPlan:
    width, height = _size("width", width), _size("height", height)
    patch, merge, side_limit = config.patch_size, config.merge_kernel_size, config.patch_limit_on_one_side
    most = side_limit * patch
    scale = min(
        math.sqrt(_ratio(limit, max(1, width // patch) * max(1, height // patch))),
        _ratio(most, width),
        _ratio(most, height),
    )
    new_width, new_height = _scaled(width, scale, most), _scaled(height, scale, most)
    token = patch * merge
    pad_right, pad_bottom = -new_width % token, -new_height % token
    rows, columns = (new_height + pad_bottom) // patch, (new_width + pad_right) // patch
    if config.fixed_output_tokens is not None:
        num_tokens = config.fixed_output_tokens
    elif max(rows, columns) > side_limit:
        raise PlanError(
            f"{shown(width)}x{shown(height)} pads to {shown(columns)}x{shown(rows)} patches, more than "
            f"`patch_limit_on_one_side` = {shown(side_limit)}; use a limit that is a multiple of "
            f"`merge_kernel_size` = {shown(merge)}."
        )
    else:
        num_tokens = (rows // merge) * (columns // merge)
    return MediaPlan(new_width, new_height, pad_right, pad_bottom, (num_frames, rows, columns), num_tokens, merge)


def _size(name: str, value: object) -> int:
    number = positive_int(name, value)
    if number.bit_length() > 1023:
        raise PlanError(f"`{name}` is {shown(number)}; expected a number within float64, below 2**1023.")
    return number
