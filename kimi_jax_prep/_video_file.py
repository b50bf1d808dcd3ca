"""Frames out of video files by their index, with PyAV (the extra `video`).

Frame k is the k-th in order of presentation. Where every packet says when it is shown, the reader jumps to a keyframe
that lies nearer to the next frame asked for than the frame it is at; else it counts while it decodes.

FFmpeg is handed an open file, never a name, and may open nothing itself: a playlist cannot make it read other files.
"""

import bisect
import collections
import contextlib
import functools
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from kimi_jax_prep._errors import MediaError

# Containers that hold their own data, all of it. FFmpeg knows many more, among them lists of other files.
_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,m4v,flv,gif,ogg,asf,ivf,h264,hevc,mjpeg,mxf,nut,dv"
)


class VideoFile:
    """One video file of which only the index was read: no frame is decoded yet, no file is open.

    Args:
      source: the bytes of the file, or its path.

    Raises:
      MediaError: not a video, no frames, cut short.
      FileNotFoundError, PermissionError, IsADirectoryError: a path cannot be read.
      ImportError: PyAV is not installed.
    """

    num_frames: int
    """Counted, whatever the header says."""
    fps: float | None
    """The average rate, frames a second, or None where the file gives no hint of it."""
    width: int
    """Pixels of the frames as the decoder gives them, before any rotation."""
    height: int

    def __init__(self, source: bytes | Path) -> None:
        self._source = source
        with self._opened() as (container, stream):
            self.width, self.height = stream.codec_context.width, stream.codec_context.height
            shown, keyframes, packets = [], [], 0
            for packet in container.demux(stream):
                if packet.size == 0:  # the end
                    continue
                packets += 1
                if packet.is_discard:
                    continue
                shown.append(packet.pts)
                if packet.is_keyframe:
                    keyframes.append(packet.pts)
            if "mp4" in container.format.name and packets < stream.frames:
                raise MediaError(f"the video is cut short: {packets} of its {stream.frames} frames are there.")
            rates = (stream.average_rate, stream.guessed_rate, _rate(len(shown), stream))
        if self.width < 1 or self.height < 1 or not shown:
            raise MediaError("the video has no frames.")
        # When each frame is shown, and which of them can be jumped to; None where that is not known.
        self._times: list[int] | None = None
        self._jumps: list[int] = []
        if None not in shown and len(set(shown)) == len(shown):
            self._times = sorted(shown)
            self._jumps = sorted(bisect.bisect_left(self._times, time) for time in keyframes)
        self.num_frames = len(shown) if self._times is not None else self._count()
        self.fps = _usable_rate(*rates)

    @functools.cached_property
    def rotation(self) -> int:
        """Degrees clockwise, a multiple of 90, by which a player is to turn the frames. Decodes the first frame.

        Raises:
          MediaError: it cannot be decoded.
        """
        with self._opened() as (container, stream):
            for frame in container.decode(stream):
                return round(-frame.rotation / 90) * 90 % 360
        raise MediaError("the video has no frame that can be decoded.")

    def frames(self, indices: Sequence[int], *, progress: bool = False) -> Iterator[UInt8[np.ndarray, "h w 3"]]:
        """RGB frames, decoded one after another.

        Args:
          indices: which frames, in ascending order; one may be asked for several times.
          progress: whether tqdm shows how far it is.

        Raises:
          MediaError: a frame cannot be decoded or has another size; its index is in the message.
        """
        if progress:
            from tqdm import tqdm

            with tqdm(self.frames(indices), total=len(indices), desc="frames", unit="frame") as bar:
                yield from bar
            return
        waiting = collections.deque(indices)
        # Where a jump leads to a frame that was not promised, all is decoded from the start instead.
        for may_jump in (True, False):
            try:
                with self._opened() as (container, stream):
                    decoded, at, pixels = self._numbered(container, stream), -1, None
                    while waiting:
                        k = waiting[0]
                        if pixels is None or k != at:
                            if may_jump and self._times is not None and (start := self._jump(k)) > at + 1:
                                container.seek(self._times[start], stream=stream)
                                decoded = self._numbered(container, stream)
                            pixels = self._pixels(decoded, k)
                            at = k
                        waiting.popleft()
                        yield pixels
                return
            except MediaError:
                if not may_jump:
                    raise

    def _jump(self, k: int) -> int:
        """The last frame up to k that decoding can begin at."""
        return self._jumps[bisect.bisect_right(self._jumps, k) - 1] if self._jumps and self._jumps[0] <= k else 0

    def _numbered(self, container: Any, stream: Any) -> Iterator[tuple[int, Any]]:
        """Decoded frames with their index."""
        for i, frame in enumerate(container.decode(stream)):
            if self._times is None:
                yield i, frame
            elif frame.pts is not None:
                at = bisect.bisect_left(self._times, frame.pts)
                if at < len(self._times) and self._times[at] == frame.pts:
                    yield at, frame

    def _pixels(self, decoded: Iterator[tuple[int, Any]], k: int) -> UInt8[np.ndarray, "h w 3"]:
        i, frame = next(((i, frame) for i, frame in decoded if i >= k), (None, None))
        if i != k or frame is None or frame.is_corrupt:
            raise MediaError(f"frame {k} of the video cannot be decoded.")
        if (frame.width, frame.height) != (self.width, self.height):
            raise MediaError(f"frame {k} is {frame.width}x{frame.height} but the video is {self.width}x{self.height}.")
        return frame.to_ndarray(format="rgb24")

    def _count(self) -> int:
        with self._opened() as (container, stream):
            return sum(1 for _ in container.decode(stream))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[Any, Any]]:
        try:
            import av
            from av.stream import Disposition
        except ImportError as err:
            raise ImportError("video files need PyAV: pip install 'kimi-jax-prep[video]'") from err

        with contextlib.ExitStack() as stack:
            source = self._source
            file = io.BytesIO(source) if isinstance(source, bytes) else stack.enter_context(source.open("rb"))
            try:
                container = stack.enter_context(
                    av.open(
                        file,
                        options={"format_whitelist": _FORMATS, "protocol_whitelist": "none"},
                        metadata_errors="replace",
                        io_open=_open_nothing,
                    )
                )
                streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
                if not streams:
                    raise MediaError("the file has no video in it.")
                streams[0].thread_type = "AUTO"
                yield container, streams[0]
            except MediaError:
                raise
            # PyAV's errors are of many kinds, some of them OSErrors; whatever broken data raises, the data is broken.
            except Exception as err:
                raise MediaError(f"cannot read the video: {getattr(err, 'strerror', None) or err}") from err


def _open_nothing(url: str, flags: int, options: Any) -> Any:  # noqa: ARG001  # FFmpeg's signature
    raise PermissionError("a video file does not open others")


def _usable_rate(*rates: Any) -> float | None:
    """The first that is a finite number above 0."""
    return next((float(rate) for rate in rates if rate is not None and math.isfinite(rate) and rate > 0), None)


def _rate(num_frames: int, stream: Any) -> float | None:
    if not stream.duration or not stream.time_base:
        return None
    return num_frames / float(stream.duration * stream.time_base)
