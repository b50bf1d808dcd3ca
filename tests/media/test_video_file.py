"""Frames of video files: each carries its number in blocks of black and white, so a wrong one is known at sight."""

import functools
import gc
import io
import os
import random
import struct
import subprocess
import sys
import threading
import warnings
from fractions import Fraction

import av
import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image

from kimi_jax_prep.errors import MediaError, PlanError
from kimi_jax_prep.media.video_file import VideoFile, _Reader

WIDTH, HEIGHT, BLOCK = 96, 64, 16


def numbered(k: int, width: int = WIDTH, height: int = HEIGHT) -> np.ndarray:
    """Bit b of k is the brightness of a block of 16x32 pixels."""
    frame = np.zeros((height, width, 3), np.uint8)
    for b in range(12):
        y, x = divmod(b, 6)
        frame[y * 32 : y * 32 + 32, x * BLOCK : x * BLOCK + BLOCK] = 255 * (k >> b & 1)
    return frame


def number(frame: np.ndarray) -> int:
    blocks = frame[:64, :96].reshape(2, 32, 6, BLOCK, 3)[:, 8:24, :, 4:12].mean((1, 3, 4))
    return sum(int(bright > 127) << b for b, bright in enumerate(blocks.ravel()))


@functools.cache
def clip(
    count: int = 60,
    kind: str = "mp4",
    codec: str = "libx264",
    *,
    gop: int = 12,
    pixels: str = "yuv420p",
    options: tuple[tuple[str, str], ...] = (),
    times: tuple[int, ...] | None = None,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    first: int = 0,
    rate: int = 25,
    title: str = "",
) -> bytes:
    """A video of the numbers from `first` on."""
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        if title:
            container.metadata["title"] = title
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = pixels
        stream.codec_context.gop_size = gop
        if codec in ("libx264", "mpeg4", "mpeg2video"):
            stream.codec_context.max_b_frames = 2
        stream.codec_context.options = dict(options)
        for i in range(count):
            frame = av.VideoFrame.from_ndarray(numbered(first + i, *size), format="rgb24")
            frame.pts = times[i] if times else i
            frame.time_base = Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


def numbers(source, indices) -> list[int]:
    return [number(frame) for frame in VideoFile(source).frames(indices)]


def everything(source) -> list[np.ndarray]:
    """All frames as PyAV decodes them one after another: what is expected."""
    with av.open(io.BytesIO(source)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


X265 = (("x265-params", "log-level=none"),)
OPEN_GOP = (("x264-params", "open-gop=1:bframes=3"),)
CLIPS = {
    "mp4 h264": {},
    "mp4 h264 no B": {"options": (("bf", "0"),)},
    "mp4 h264 GOP 1": {"gop": 1},
    "mp4 h264 GOP 250": {"gop": 250},
    "mp4 h264 open GOP": {"options": OPEN_GOP},
    "mp4 hevc": {"codec": "libx265", "options": X265},
    "mp4 mpeg4": {"codec": "mpeg4"},
    "mp4 mpeg4 GOP 250": {"codec": "mpeg4", "gop": 250},
    "mkv h264": {"kind": "matroska"},
    "mkv ffv1": {"kind": "matroska", "codec": "ffv1"},
    "webm vp8": {"kind": "webm", "codec": "libvpx"},
    "webm vp9": {"kind": "webm", "codec": "libvpx-vp9"},
    "flv h264": {"kind": "flv"},
    "ts h264": {"kind": "mpegts"},
    "ts h264 open GOP": {"kind": "mpegts", "options": OPEN_GOP},
    "ts h264 intra refresh": {"kind": "mpegts", "options": (("x264-params", "intra-refresh=1:bframes=0"),)},
    "ts mpeg2": {"kind": "mpegts", "codec": "mpeg2video"},
    "avi mpeg4 B": {"kind": "avi", "codec": "mpeg4"},
    "avi h264 B": {"kind": "avi"},
    "avi mjpeg": {"kind": "avi", "codec": "mjpeg", "pixels": "yuvj420p"},
    "avi raw": {"kind": "avi", "codec": "rawvideo", "pixels": "bgr24"},
    "raw h264": {"kind": "h264"},
    "gif": {"kind": "gif", "codec": "gif", "pixels": "rgb8"},
    "apng": {"kind": "apng", "codec": "apng", "pixels": "rgb24"},
}
SAMPLES = {
    "first": [0],
    "last": [59],
    "one": [31],
    "sparse": [1, 17, 40, 58],
    "on keyframes": [12, 24, 36, 48],
    "before keyframes": [11, 23, 35, 47],
    "repeated": [0, 0, 30, 30, 30, 59, 59],
    "every other": list(range(0, 60, 2)),
    "all": list(range(60)),
    "none": [],
}


@pytest.mark.parametrize("kind", CLIPS)
def test_every_way_of_taking_frames_gives_the_frames_of_decoding_everything(kind):
    data = clip(**CLIPS[kind])
    want = everything(data)
    file = VideoFile(data)
    assert (file.num_frames, file.fps, file.width, file.height, file.rotation) == (60, 25.0, WIDTH, HEIGHT, 0)
    for name, indices in SAMPLES.items():
        got = list(file.frames(indices))
        assert [number(frame) for frame in got] == indices, name
        for k, frame in zip(indices, got, strict=True):
            assert_bit_equal(frame, want[k], what=f"{name}, frame {k}")


def test_numbers_can_be_told_apart():
    assert [number(numbered(k)) for k in (0, 1, 59, 4095)] == [0, 1, 59, 4095]
    assert number(numbered(5)[:, ::-1]) != 5


@pytest.fixture
def seeks(monkeypatch):
    """Whether each seek led to the keyframe that it was for."""
    results = []
    seek = _Reader._seek

    def noted(self, key):
        results.append(seek(self, key))
        return results[-1]

    monkeypatch.setattr(_Reader, "_seek", noted)
    return results


@pytest.mark.parametrize("kind", ["mp4 h264", "mp4 mpeg4", "mp4 hevc", "mkv h264", "webm vp9", "ts h264", "flv h264"])
def test_far_frames_are_sought(kind, seeks):
    data = clip(**CLIPS[kind])
    assert numbers(data, [0, 59]) == [0, 59]
    assert seeks == [True]
    assert numbers(data, list(range(60))) == list(range(60))
    assert seeks == [True]  # dense frames are decoded one after another


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_a_file_that_calls_every_frame_a_keyframe_is_found_out(codec, seeks):
    data = clip(codec=codec)
    assert b"stss" in data
    liar = data.replace(b"stss", b"free")
    assert numbers(liar, [5, 31, 59]) == [5, 31, 59]
    # FFmpeg itself looks into the packets of H.264, and only of H.264.
    assert seeks == ([True, True] if codec == "libx264" else [False])


def test_a_path_is_read_as_its_bytes_are_whatever_its_name(tmp_path):
    for name in ("a.mp4", "a.m3u8", "a.txt", "a"):
        path = tmp_path / name
        path.write_bytes(clip())
        assert numbers(path, [0, 31, 59]) == [0, 31, 59]


def test_frames_are_rgb_bytes_of_their_own():
    red = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    red[..., 0] = 255
    file = io.BytesIO()
    with av.open(file, "w", format="avi") as container:
        stream = container.add_stream("rawvideo", rate=25)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "bgr24"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(red, format="rgb24")))
        container.mux(stream.encode())
    first, second = VideoFile(file.getvalue()).frames([0, 0])
    assert_bit_equal(first, red, what="red")
    first[:] = 7
    assert_bit_equal(second, red, what="red again")


@pytest.mark.parametrize("pixels", ["gray", "gray16le", "yuv444p", "yuv420p10le", "yuva420p", "gbrp10le", "bgra"])
def test_pixels_of_every_kind_come_out_as_rgb(pixels):
    data = clip(5, "matroska", "ffv1", pixels=pixels)
    frames = list(VideoFile(data).frames(range(5)))
    assert [number(frame) for frame in frames] == [0, 1, 2, 3, 4]
    assert {(frame.shape, frame.dtype.name) for frame in frames} == {((HEIGHT, WIDTH, 3), "uint8")}


# --- times


@pytest.mark.parametrize("kind", ["matroska", "mpegts", "mp4"])
def test_a_video_may_start_late(kind):
    data = clip(kind=kind, times=tuple(range(1000, 1060)))
    assert VideoFile(data).num_frames == 60
    assert numbers(data, [0, 30, 59]) == [0, 30, 59]


def test_frames_are_taken_by_index_where_the_rate_varies():
    times = tuple(int(k**1.5) for k in range(60))
    data = clip(times=times)
    with av.open(io.BytesIO(data)) as container:
        average = float(container.streams.video[0].average_rate)
    assert VideoFile(data).fps == average
    assert average != 25.0
    assert numbers(data, [0, 7, 30, 59]) == [0, 7, 30, 59]


def trimmed(data: bytes, skipped: int) -> bytes:
    """The edit list starts so many frames later."""
    at = data.index(b"elst") + 16
    (start,) = struct.unpack_from(">i", data, at)
    return data[:at] + struct.pack(">i", start + skipped * 512) + data[at + 4 :]


@pytest.mark.parametrize("skipped", [0, 5, 12, 17])
@pytest.mark.parametrize("gop", [12, 250])
def test_frames_that_an_edit_list_cuts_off_do_not_count(skipped, gop):
    data = trimmed(clip(gop=gop), skipped)
    assert VideoFile(data).num_frames == 60 - skipped
    for indices in ([0], [0, 1, 2], [3, 30], [59 - skipped], list(range(60 - skipped))):
        assert numbers(data, indices) == [k + skipped for k in indices]


@pytest.mark.parametrize("rate", [1, 24, 60])
def test_rate(rate):
    assert VideoFile(clip(6, rate=rate)).fps == rate


def test_one_frame_is_a_video():
    for kind, codec, pixels in (("mp4", "libx264", "yuv420p"), ("gif", "gif", "rgb8"), ("h264", "libx264", "yuv420p")):
        data = clip(1, kind, codec, pixels=pixels)
        file = VideoFile(data)
        assert file.num_frames == 1
        assert file.fps > 0
        assert numbers(data, [0]) == [0]


def overwritten(data: bytes, k: int, change) -> bytes:
    """With another content of the k-th packet, of the same length."""
    with av.open(io.BytesIO(data)) as container:
        packet = [p for p in container.demux(video=0) if p.size][k]
        old, position = bytes(packet), packet.pos
    new, at = change(old), data.index(old, position)
    assert len(new) == len(old)
    return data[:at] + new + data[at + len(old) :]


def test_vp8_frames_that_are_never_shown_do_not_count():
    data = overwritten(
        clip(kind="webm", codec="libvpx"), 21, lambda old: bytes([old[0] & ~0x10]) + old[1:]
    )  # the bit `show_frame`
    want = [k for k in range(60) if k != 21]
    assert [number(frame) for frame in everything(data)] == want
    assert VideoFile(data).num_frames == 59
    for indices in ([0], [20, 21], [58], list(range(59))):
        assert numbers(data, indices) == [want[k] for k in indices]


# --- rotation


TURNS = {0: (1, 0, 0, 1), 90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}


def turned(data: bytes, matrix: tuple[int, int, int, int]) -> bytes:
    """With a display matrix that sends (x, y) to (a x + c y, b x + d y); y points down."""
    a, b, c, d = (v << 16 for v in matrix)
    at = data.index(b"tkhd") + 44
    return data[:at] + struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30) + data[at + 36 :]


@pytest.mark.parametrize("degrees", TURNS)
def test_rotation_is_clockwise(degrees):
    a, b, c, d = TURNS[degrees]
    # The corner that ends up at the top left is what a picture turned clockwise has there.
    picture = np.arange(6).reshape(2, 3)
    upright = np.rot90(picture, -degrees // 90)
    placed = {(a * x + c * y, b * x + d * y): picture[y, x] for y in range(2) for x in range(3)}
    assert placed[min(x for x, _ in placed), min(y for _, y in placed)] == upright[0, 0]
    file = VideoFile(turned(clip(), TURNS[degrees]))
    assert (file.rotation, file.width, file.height) == (degrees, WIDTH, HEIGHT)
    assert [number(frame) for frame in file.frames([3])] == [3]  # frames are given as they are stored


# --- what is refused


def still() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    return file.getvalue()


def sound(kind: str = "wav", codec: str = "pcm_s16le", layout: str = "s16") -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=8000)
        samples = np.zeros((1, 1024), np.int16 if layout == "s16" else np.float32)
        frame = av.AudioFrame.from_ndarray(samples, format=layout, layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


SDP = "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\na=rtpmap:96 H264/90000\n"
REFUSED = {
    "empty": lambda: b"",
    "text": lambda: b"hello world\n" * 100,
    "zeros": lambda: bytes(10_000),
    "cut before the index": lambda: clip()[: len(clip()) // 2],
    "PNG": still,
    "WAV": sound,
    "sound in MP4": lambda: sound("mp4", "aac", "fltp"),
    "SDP": SDP.encode,
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_video_is_refused(kind, tmp_path, capfd):
    data = REFUSED[kind]()
    path = tmp_path / "video.mp4"
    path.write_bytes(data)
    for source in (data, path):
        with pytest.raises(MediaError, match="no video"):
            VideoFile(source)
    assert capfd.readouterr() == ("", "")


def test_the_cause_is_chained():
    with pytest.raises(MediaError) as caught:
        VideoFile(b"hello")
    assert isinstance(caught.value.__cause__, av.error.FFmpegError)
    assert not isinstance(caught.value, OSError)


def test_paths_that_cannot_be_read_stay_what_they_are(tmp_path):
    with pytest.raises(FileNotFoundError):
        VideoFile(tmp_path / "nothing.mp4")
    with pytest.raises(IsADirectoryError):
        VideoFile(tmp_path)
    path = tmp_path / "gone.mp4"
    path.write_bytes(clip())
    frames = VideoFile(path).frames([0])
    path.unlink()
    with pytest.raises(FileNotFoundError):
        next(frames)


def test_without_pyav_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"kimi-jax-prep\[video\]"):
        VideoFile(b"anything")


PLAYLISTS = {
    "video.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4.0,\n{target}\n#EXT-X-ENDLIST\n",
    "video.ffconcat": "ffconcat version 1.0\nfile {target}\n",
}


class Watched:
    """A named pipe that notices whether anybody opens it for reading."""

    def __init__(self, path) -> None:
        os.mkfifo(path)
        self.path, self.opened = path, threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        file = os.open(self.path, os.O_WRONLY)  # waits for a reader
        self.opened.set()
        os.close(file)

    def release(self) -> None:
        file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        self._thread.join(10)
        os.close(file)


@pytest.mark.parametrize("name", PLAYLISTS)
def test_lists_of_other_files_are_refused_and_the_files_not_opened(name, tmp_path):
    target = tmp_path / "target.ts"
    path = tmp_path / name
    path.write_text(PLAYLISTS[name].format(target=target))
    target.write_bytes(clip(kind="mpegts"))
    for source in (path, path.read_bytes()):
        with pytest.raises(MediaError, match="no video"):
            VideoFile(source)
    with av.open(str(path), options={"safe": "0"} if "concat" in name else {}) as container:
        assert len(list(container.decode(video=0))) == 60  # FFmpeg by itself opens it
    target.unlink()
    watched = Watched(target)
    for source in (path, path.read_bytes()):
        with pytest.raises(MediaError, match="no video"):
            VideoFile(source)
    assert not watched.opened.is_set()
    watched.release()
    assert watched.opened.is_set()  # the pipe would have noticed


def test_titles_in_other_alphabets_do_no_harm():
    data = clip(kind="matroska", title="AAAAAAAA").replace(b"AAAAAAAA", b"caf\xe9\xff\xfe  ")
    assert b"\xe9\xff\xfe" in data
    assert VideoFile(data).num_frames == 60


# --- damage


@pytest.mark.parametrize("indices", [[-1], [60], [5, 4], [0, 99]])
def test_indices_out_of_range_or_order(indices):
    with pytest.raises(PlanError, match=str(indices[0])):
        VideoFile(clip()).frames(indices)


def test_a_packet_that_is_cut_off_is_no_frame():
    # NUT keeps no table of its packets, so that the rest of the file can still be read.
    data = clip(kind="nut", options=(("bf", "0"),))
    whole = VideoFile(data)
    for cut in (len(data) // 2, len(data) * 3 // 4):
        file = VideoFile(data[:cut])
        assert 10 < file.num_frames < whole.num_frames
        good = list(range(file.num_frames - 1))
        assert [number(frame) for frame in file.frames(good)] == good


@pytest.mark.parametrize("codec", ["libx264", "mpeg4", "mpeg2video", "libvpx", "libvpx-vp9"])
def test_a_frame_that_is_lost_and_those_that_need_it_are_named(codec):
    plain = (("bf", "0"),) if codec != "libvpx" and codec != "libvpx-vp9" else ()
    data = clip(kind="matroska", codec=codec, gop=40, options=plain)
    with av.open(io.BytesIO(data)) as container:
        keys = [k for k, p in enumerate(container.demux(video=0)) if p.is_keyframe]
    lost, end = 23, keys[1]
    assert (keys[0], lost < end < 59) == (0, True)
    data = overwritten(data, lost, lambda old: b"\xff" * len(old))
    file = VideoFile(data)
    assert file.num_frames == 60
    good = [k for k in range(60) if k < lost or k >= end]
    for indices in (good[:lost], good, [0, 59], [lost - 1, end]):
        assert [number(frame) for frame in file.frames(indices)] == indices
    for k in (lost, lost + 1, end - 1):
        for indices in ([k], [0, k], [0, k, 59]):
            with pytest.raises(MediaError, match=f"frame {k} .*damaged"):
                list(file.frames(indices))


def test_a_broken_packet_is_the_cause_of_the_error():
    broken = overwritten(clip(gop=250), 30, lambda old: b"\xff" * len(old))
    gc.collect()
    threads = running_threads()
    with pytest.raises(MediaError, match=r"frame \d+ .*damaged") as caught:
        list(VideoFile(broken).frames(range(60)))
    assert isinstance(caught.value.__cause__, av.error.FFmpegError)
    assert running_threads() == threads  # an error that somebody keeps does not keep the decoder
    assert len(list(VideoFile(broken).frames(range(20)))) == 20


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
@pytest.mark.parametrize("kind", ["matroska", "avi"])
def test_whatever_is_lost_no_frame_is_a_wrong_one(codec, kind):
    data = clip(40, kind, codec, gop=20)
    refused = 0
    for lost in range(1, 40, 4):
        file = VideoFile(overwritten(data, lost, lambda old: b"\xff" * len(old)))
        for k in range(40):
            try:
                (frame,) = file.frames([k])
            except MediaError:
                refused += 1
            else:
                assert number(frame) == k, f"packet {lost} lost"
    assert 10 <= refused < 400


@pytest.mark.parametrize(("codec", "pixels"), [("mjpeg", "yuvj420p"), ("rawvideo", "bgr24"), ("libvpx", "yuv420p")])
def test_a_picture_that_lacks_its_end_is_no_frame(codec, pixels):
    data = clip(kind="avi", codec=codec, pixels=pixels)
    with av.open(io.BytesIO(data)) as container:
        packet = [p for p in container.demux(video=0) if p.size][40]
        end = data.index(bytes(packet), packet.pos) + packet.size
    file = VideoFile(data[: end - 2])
    assert file.num_frames == 41
    assert [number(frame) for frame in file.frames([0, 39])] == [0, 39]
    with pytest.raises(MediaError, match="frame 40 "):
        list(file.frames([40]))


def grown(kind: str, size: tuple[int, int]) -> bytes:
    """Twenty frames of the usual size, then twenty of another one."""
    if kind == "h264":
        return clip(20, kind) + clip(20, kind, size=size, first=20)
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuvj420p"
        for first, part in ((0, (WIDTH, HEIGHT)), (20, size)):
            pictures = clip(20, "avi", "mjpeg", pixels="yuvj420p", size=part, first=first)
            with av.open(io.BytesIO(pictures)) as source:
                for packet in source.demux(video=0):
                    if packet.size:
                        packet.pts = packet.dts = packet.dts + first
                        packet.stream = stream
                        container.mux(packet)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["h264", "matroska"])
def test_a_frame_of_another_size_is_named(kind):
    file = VideoFile(grown(kind, (128, 96)))
    assert (file.num_frames, file.width, file.height) == (40, WIDTH, HEIGHT)
    assert [number(frame) for frame in file.frames(range(20))] == list(range(20))
    for indices in (range(40), [20]):
        with pytest.raises(MediaError, match="frame 20 is 128x96 but the video is 96x64"):
            list(file.frames(indices))


def test_frames_do_not_outgrow_what_the_file_says():
    file = VideoFile(grown("matroska", (2048, 2048)))
    assert (file.width, file.height) == (WIDTH, HEIGHT)
    with pytest.raises(MediaError, match="frame 27 cannot be decoded"):
        list(file.frames([27]))


def test_mutated_files_are_refused_or_read_but_nothing_else(capfd):
    data = clip(30, gop=10)
    rng = random.Random(0)
    refused = 0
    for _ in range(300):
        broken = bytearray(data)
        for _ in range(rng.randint(1, 8)):
            at = rng.randrange(len(broken))
            kind = rng.choice(["flip", "flip", "cut", "splice"])
            if kind == "flip":
                broken[at] ^= 1 << rng.randrange(8)
            elif kind == "cut":
                del broken[at : at + rng.randint(1, 64)]
            else:
                broken[at:at] = data[rng.randrange(len(data)) :][: rng.randint(1, 64)]
        try:
            file = VideoFile(bytes(broken))
            indices = sorted(rng.randrange(file.num_frames) for _ in range(5))
            frames = list(file.frames(indices))
            assert [frame.shape for frame in frames] == [(file.height, file.width, 3)] * 5
            assert file.rotation in (0, 90, 180, 270)
            assert 0 < file.fps < float("inf")
        except MediaError:
            refused += 1
    assert 100 < refused < 300
    assert capfd.readouterr() == ("", "")


# --- what stays open


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def running_threads() -> int:
    """Native ones too; 0 where they cannot be counted."""
    return len(os.listdir("/proc/self/task")) if os.path.exists("/proc/self/task") else 0


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="open files are counted in Linux's /proc")
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_files_are_closed_again(tmp_path):
    path = tmp_path / "video.mp4"
    path.write_bytes(clip())
    list(VideoFile(path).frames([0]))
    gc.collect()  # of the encoders that made the clips
    files, threads = open_files(), running_threads()
    videos = [VideoFile(path) for _ in range(1000)]
    unopened = [video.frames([0, 59]) for video in videos]
    assert open_files() == files
    frames = unopened[0]
    next(frames)
    assert open_files() == files + 1
    frames.close()
    assert (open_files(), running_threads()) == (files, threads)
    assert len(list(unopened[1])) == 2
    assert videos[0].rotation == 0
    assert (open_files(), running_threads()) == (files, threads)
    path.write_bytes(clip(kind="mpegts"))  # no longer the file whose index was read
    failing = unopened[2]
    with pytest.raises(MediaError, match="frame 0 "):
        next(failing)
    assert (open_files(), running_threads()) == (files, threads)


def test_few_frames_are_alive_at_once():
    def alive() -> int:
        return sum(type(thing) is av.VideoFrame for thing in gc.get_objects())

    # Looking at every object of the process takes long.
    frames = enumerate(VideoFile(clip(200)).frames(range(0, 200, 3)))
    most = max(alive() for i, _ in frames if i % 16 == 0)
    assert 0 < most < 10


def test_progress_shows_a_bar_and_leaves_no_thread(capfd):
    file = VideoFile(clip())
    gc.collect()
    threads = running_threads()
    assert len(list(file.frames([0, 30, 59], progress=True))) == 3
    assert "3/3" in capfd.readouterr().err
    assert running_threads() == threads
    assert len(list(file.frames([0, 30, 59]))) == 3
    assert capfd.readouterr().err == ""


def test_importing_the_reader_does_not_import_pyav():
    code = "import kimi_jax_prep.media.video_file, sys; print('av' in sys.modules, 'tqdm' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (run.stdout.strip(), run.stderr) == ("False False", "")


def test_reading_changes_no_setting_of_the_process():
    before = (av.logging.get_level(), list(warnings.filters), os.environ.copy())
    VideoFile(clip()).rotation  # noqa: B018 -- asking is the point
    assert (av.logging.get_level(), list(warnings.filters), os.environ.copy()) == before
