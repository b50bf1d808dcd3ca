"""Frames out of video files, by index, through PyAV (the extra `video`).

Frame k is the k-th in the order of presentation. The file's packets are counted and their times noted without decoding.
Where every packet has a time of its own, a frame is known by its time, and a keyframe is sought where that is nearer
than decoding on; what was sought is believed only if it is the keyframe that the index promised, else the file is read
from its start. Where times are missing or repeated, as in AVI with B-frames or a raw stream, frames are counted from
the start.

FFmpeg is given open Python files, never names, and only formats that hold their frames themselves: no playlist, no
list of other files, no single pictures (PNG, JPEG, WebP), which are images and not videos.
"""

import contextlib
import io
import itertools
import math
import operator
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import UInt8

from kimi_jax_prep.errors import MediaError, PlanError
from kimi_jax_prep.media import locks
from kimi_jax_prep.media.encoded import open_binary
from kimi_jax_prep.media.video_index import VideoIndex

if TYPE_CHECKING:
    from av import Packet, VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream

_EXTRA = "reading video files needs PyAV; install it with `pip install 'kimi-jax-prep[video]'`."
# FFmpeg's names of formats whose files are whole in themselves; hls, dash, concat, sdp and their like are left out.
_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,mpegts,mpeg,mpegvideo,asf,ogg,gif,apng,ivf,h264,hevc,vvc,obu,av1,"
    "m4v,mjpeg,mxf,nut,dv,rm,wtv,h263,h261,vc1,dirac,gxf,nsv,yuv4mpegpipe,swf"
)
# PyAV lets FFmpeg invent missing times by reading ahead (AVFMT_FLAG_GENPTS); only the file's own can be trusted.
_GENPTS = 0x0001
# A seek empties the decoder, whose threads hold some frames each; for less than this it costs more than it saves.
_WORTH_SEEKING = 8
# How far the rate that a container states may be from the one that its frames' times give.
_RATES_AGREE = 0.05
# Pixels that decoders add to a side for their own use; MPEG-4's add the most, 160.
_MARGIN = 256


class VideoFile:
    """One opened video file. Only its index was read; no frame is decoded yet, and the file is closed again.

    Args:
      source: the file's bytes, or its path.

    Raises:
      MediaError: not a video, no video stream, no frames, cut short, damaged.
      FileNotFoundError, PermissionError, IsADirectoryError: a path cannot be read.
      ImportError: PyAV is missing.
    """

    num_frames: int
    """Frames that the file shows, counted packet by packet: headers may lie."""
    fps: float | None
    """Frames a second: the average rate of the stream. None where the file gives no hint of it."""
    width: int
    """Of a frame as it is decoded, before any rotation, in pixels."""
    height: int

    def __init__(self, source: bytes | Path) -> None:
        self._source = source
        self._rotation: int | None = None
        with _opened(source) as (container, stream):
            self._index = VideoIndex(_packets(container, stream), hides=stream.codec_context.name in ("vp8", "libvpx"))
            self.num_frames = self._index.num_frames
            if not self.num_frames:
                raise MediaError("the video has no frames.")
            # An MP4 file lists its frames, less what an edit list cuts off; others find theirs as they go.
            listed = len(stream.index_entries) if "mp4" in container.format.name else 0
            if self._index.num_packets < listed:
                raise MediaError(f"the video is cut short: {self._index.num_packets} of its {listed} frames are there.")
            self.fps = _rate(container, stream, self._index)
            self.width, self.height = stream.codec_context.width, stream.codec_context.height
        if self.width <= 0 or self.height <= 0:
            self.width, self.height = self._first.width, self._first.height

    @property
    def rotation(self) -> int:
        """Clockwise degrees by which a player turns the frames so that they stand upright: 0, 90, 180 or 270.

        From the display matrix; an angle in between is rounded, a reflection is not seen. Decodes one frame when it is
        first asked for.

        Raises:
          MediaError: no frame can be decoded.
        """
        # Not `functools.cached_property`: in Python 3.11 it has one lock for all objects, which a forked child may
        # find taken.
        if self._rotation is None:
            self._rotation = round(-self._first.rotation / 90) * 90 % 360  # PyAV's angle is counterclockwise
        return self._rotation

    @property
    def _first(self) -> "VideoFrame":
        with _opened(self._source) as (container, stream):
            stream.thread_type = "NONE"  # threads would fill up with frames that nobody wants
            with contextlib.closing(_Reader(container, stream, self._index, errors := [])) as reader:
                for frame in reader.frames:
                    return frame
        raise MediaError("no frame of the video can be decoded.") from (errors[-1] if errors else None)

    def frames(
        self, indices: Sequence[int], *, progress: bool = False
    ) -> Iterator[UInt8[np.ndarray, "height width 3"]]:
        """Frames as RGB bytes, in the order of `indices`, each array its own; decoded as they are asked for.

        The file is open from the first frame on, until the iterator ends, fails or is closed.

        Args:
          indices: non-decreasing, from 0 to `num_frames - 1`; repeats are allowed.
          progress: show a tqdm bar of the frames that are taken.

        Raises:
          PlanError: indices out of range or order.
          MediaError: a frame cannot be decoded, or has another size than the file says; its index is named.
          ImportError: tqdm is missing.
        """
        wanted = [operator.index(k) for k in indices]
        if wanted and (wanted[0] < 0 or wanted[-1] >= self.num_frames or wanted != sorted(wanted)):
            raise PlanError(f"frame indices rise from 0 to at most {self.num_frames - 1}; got {wanted}.")
        return self._arrays(wanted, _with_bar(wanted) if progress else wanted)

    def _arrays(self, wanted: list[int], shown: Any) -> Iterator[np.ndarray]:
        last, frame = None, None
        with contextlib.closing(self._decoded(sorted(set(wanted)))) as decoded:
            for k in shown:
                if k != last:
                    # Gone first: it holds the threads that turned it to RGB, and an error from `next` would hold it.
                    frame = None
                    last, frame = k, next(decoded)
                yield self._pixels(k, frame)

    def _decoded(self, wanted: list[int]) -> Generator["VideoFrame", None, None]:
        """Frames by distinct, rising indices. If one is not found by seeking, it may still be found from the start."""
        found, errors = 0, []
        # In slice threads, a decoder answers each packet before the next: damage does not reach back to good frames.
        for seek, threads in ((True, "AUTO"), (False, "SLICE")):
            # The pass is over, its frames and decoder gone, before the error is raised, which may be kept for long.
            found += yield from self._pass(wanted[found:], errors, seek=seek, threads=threads)
            if found == len(wanted):
                return
        raise MediaError(f"frame {wanted[found]} cannot be decoded; the file is damaged there or before.") from (
            errors[-1] if errors else None
        )

    def _pass(self, wanted: list[int], errors: list[Exception], *, seek: bool, threads: str) -> Iterator["VideoFrame"]:
        with (
            _opened(self._source, max_pixels=(self.width + _MARGIN) * (self.height + _MARGIN)) as (container, stream),
            contextlib.closing(_Reader(container, stream, self._index, errors)) as reader,
        ):
            stream.thread_type = threads
            for found, k in enumerate(wanted):
                frame = reader.frame(k, seek=seek)
                if frame is None:
                    return found
                yield frame
        return len(wanted)

    def _pixels(self, k: int, frame: Any) -> np.ndarray:
        if (frame.width, frame.height) != (self.width, self.height):
            raise MediaError(
                f"frame {k} is {frame.width}x{frame.height} but the video is {self.width}x{self.height}; all frames of "
                "a video have one size."
            )
        try:
            return frame.to_ndarray(format="rgb24")
        except ValueError as err:  # FFmpeg's own errors for this are ValueErrors as well
            raise MediaError(f"frame {k} has pixels of format {frame.format.name}, which do not turn to RGB.") from err


class _Reader:
    """One pass over an open file: decodes on, or from a keyframe that it seeks.

    A frame that is lost spoils those that refer to it, which decoders give out all the same. So after a loss no frame
    is believed, until a keyframe comes.
    """

    def __init__(
        self, container: "InputContainer", stream: "VideoStream", index: VideoIndex, errors: list[Exception]
    ) -> None:
        self._container, self._stream, self._index, self._errors = container, stream, index, errors
        self._place = 0
        """Packets that the decoder has had, or that were skipped."""
        self._next = 0
        """The frame that should come next."""
        self._lost: int | None = None
        """After a loss: the place up to which packets may be to blame; -1 if only those of earlier frames may be."""
        self.frames = self._decode(_packets(container, stream))

    def close(self) -> None:
        """Let the decoder and its threads go now; the generator and this object hold each other."""
        self.frames = iter(())

    def frame(self, k: int, *, seek: bool) -> "VideoFrame | None":
        """Frame k, which lies after all that were asked for before, or None if it is not to be had."""
        index = self._index
        if not index.by_time:
            frame = next((f for f in self.frames if self._believed(f, self._next) and self._next == k + 1), None)
            return frame if not self._errors else None  # a frame is lost, and nobody knows which
        key = index.keyframe(k) if seek else -1
        if key > self._place + _WORTH_SEEKING and not self._seek(key):
            return None
        return self._at(index.times[k])

    def _at(self, time: int) -> "VideoFrame | None":
        for frame in self.frames:
            if frame.pts is None:
                continue
            believed = self._believed(frame, self._index.frame(frame.pts))
            if frame.pts >= time:
                return frame if believed and frame.pts == time else None
        return None

    def _believed(self, frame: "VideoFrame", k: int) -> bool:
        lost = -1 if k != self._next and self._lost is None else self._lost
        if lost is not None and frame.key_frame and self._index.place(k) > lost:
            lost = None  # what is shown after a keyframe needs nothing that is shown before it
        self._lost = -1 if frame.is_corrupt and lost is None else lost
        self._next = k + 1
        return self._lost is None

    def _seek(self, key: int) -> bool:
        """Whether the next frame is now a keyframe between here and `key`. Containers differ in which time they go by,
        and their marks of keyframes can be wrong; then this pass is over."""
        import av.error

        for time in self._index.seek_times[key]:
            try:
                if time is not None:
                    self._container.seek(time, stream=self._stream)
            except av.error.FFmpegError as err:
                self._fail(err)
                continue
            packets = _packets(self._container, self._stream)
            packet = next((p for p in packets if p.is_keyframe), None)
            if packet is None or packet.pts is None:
                continue
            if self._place <= (place := self._index.places.get(packet.pts, -1)) <= key:
                self._place, self._next, self._lost = place, self._index.frame(packet.pts), None
                # Frames that are shown before it need what was skipped.
                later = self._decode(itertools.chain([packet], packets))
                self.frames = (f for f in later if f.pts is not None and f.pts >= packet.pts)
                frame = self._at(packet.pts)
                if frame is None or not frame.key_frame:
                    return False
                self.frames = itertools.chain([frame], self.frames)
                return True
        return False

    def _decode(self, packets: Iterator["Packet[Any]"]) -> Iterator["VideoFrame"]:
        import av.error

        for packet in itertools.chain(packets, [None]):  # None makes the decoder give what it still holds
            self._place += 1
            if packet is not None and packet.is_corrupt:
                self._fail(MediaError("a packet is cut off."))
            try:
                decoded = self._stream.codec_context.decode(packet)
            except av.error.FFmpegError as err:
                self._fail(err)
            else:
                yield from decoded

    def _fail(self, err: Exception) -> None:
        self._lost = self._place
        self._errors.append(err.with_traceback(None))  # a traceback would keep the decoder alive


@contextlib.contextmanager
def _opened(source: bytes | Path, *, max_pixels: int | None = None) -> Iterator[tuple["InputContainer", "VideoStream"]]:
    try:
        import av
        import av.error
        from av.stream import Disposition
    except ImportError as err:
        raise ImportError(_EXTRA) from err

    # Titles that are not UTF-8 are no reason to refuse a video; later versions know that by themselves.
    lenient: dict[str, Any] = {"metadata_errors": "replace"} if int(av.__version__.split(".")[0]) < 19 else {}
    with io.BytesIO(source) if isinstance(source, bytes) else open_binary(source) as file:
        try:
            container = av.open(
                _Nameless(file),
                container_options={"format_whitelist": _FORMATS, "protocol_whitelist": ""},
                io_open=_refuse,
                **lenient,
            )
        except av.error.FFmpegError as err:
            raise MediaError(
                f"no video in a format that is read (MP4, WebM, AVI, GIF, ...) or a damaged one: {err.strerror}."
            ) from err
        with container:
            container.flags &= ~_GENPTS
            streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
            if not streams:
                raise MediaError(f"the {container.format.name} file has no video stream.")
            stream = streams[0]
            if stream.codec_context is None:
                raise MediaError("there is no decoder for the video's codec; convert it to H.264 or VP9.")
            if max_pixels is not None:
                # Frames that grow in mid-stream stay within what the caller has agreed to.
                stream.codec_context.options = {"max_pixels": str(max_pixels)}
            try:
                yield container, stream
            except av.error.FFmpegError as err:
                raise MediaError(f"the video is damaged: {err.strerror}.") from err


class _Nameless:
    """A file's name would tell FFmpeg its folder, and its suffix would change what the bytes are taken for."""

    def __init__(self, file: Any) -> None:
        self.read, self.seek, self.tell = file.read, file.seek, file.tell


def _refuse(url: str, flags: int, options: dict[str, str]) -> Any:  # noqa: ARG001 -- PyAV's signature
    raise MediaError("the video refers to another file, which is not opened.")


def _packets(container: "InputContainer", stream: "VideoStream") -> Iterator["Packet[Any]"]:
    """Packets that hold data. An empty one is a repeated frame in AVI, but a decoder would take it for the end."""
    return (packet for packet in container.demux(stream) if packet.size)


def _rate(container: "InputContainer", stream: "VideoStream", index: VideoIndex) -> float | None:
    """Frames a second: what the container states, if the times of its frames agree; else what these times say.

    Containers without a rate of their own, such as WebM as browsers record it, are given one by FFmpeg, which may be
    the clock's (1,000 frames a second). An MP4 file states the duration of every frame.
    """
    rates: list[Any] = [stream.average_rate, stream.guessed_rate]
    if stream.duration and stream.time_base:
        rates.append(index.num_frames / float(stream.duration * stream.time_base))
    if container.duration:
        rates.append(index.num_frames * 1_000_000 / container.duration)
    stated = _usable_rate(*rates)
    measured = _measured_rate(stream, index)
    if "mp4" in container.format.name or measured is None:
        return stated
    if stated is None or abs(stated - measured) > _RATES_AGREE * measured:
        return measured
    return stated


def _measured_rate(stream: "VideoStream", index: VideoIndex) -> float | None:
    """(n - 1) / (last - first), by the times of the frames."""
    if len(index.times) < 2 or not stream.time_base:
        return None
    span = float((index.times[-1] - index.times[0]) * stream.time_base)
    return _usable_rate((len(index.times) - 1) / span) if span > 0 else None


def _usable_rate(*rates: Any) -> float | None:
    """The first that is a finite number above 0."""
    return next((float(rate) for rate in rates if rate is not None and math.isfinite(rate) and rate > 0), None)


def _with_bar(indices: list[int]) -> Any:
    try:
        from tqdm import tqdm
    except ImportError as err:
        raise ImportError("`progress` needs tqdm; install it with `pip install 'kimi-jax-prep[video]'`.") from err

    class Bar(tqdm):
        # tqdm's watching thread would stay behind, in the way of a fork.
        monitor_interval = 0

    # A lock of its own: tqdm's is shared by the process, and a forked child may find it taken.
    Bar.set_lock(locks.new_lock())
    # Services run without a terminal, and some without `sys.stderr`.
    return Bar(indices, desc="decoding", unit="frame", disable=sys.stderr is None)
