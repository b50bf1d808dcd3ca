"""Frames of video files by index, with PyAV's own encoders. Every frame shows its number."""

import io
import os
import sys
import threading
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_jax_prep import MediaError
from kimi_jax_prep._video_file import VideoFile

BITS = 10
WIDTH, HEIGHT = 16 * BITS, 48


def numbered(k: int) -> np.ndarray:
    """A picture of ten black or white columns: the bits of k."""
    columns = np.array([(k >> bit) & 1 for bit in range(BITS)], np.uint8) * 255
    return np.broadcast_to(columns.repeat(16)[None, :, None], (HEIGHT, WIDTH, 3)).copy()


def number(pixels: np.ndarray) -> int:
    """The number that a decoded picture shows."""
    means = pixels.reshape(HEIGHT, BITS, 16, 3)[:, :, 4:12].mean((0, 2, 3))
    assert ((means < 60) | (means > 195)).all(), means
    return sum(1 << bit for bit in range(BITS) if means[bit] > 128)


def video(
    count: int = 30,
    codec: str = "libx264",
    container: str = "mp4",
    rate: int = 10,
    times: list[int] | None = None,
    rotation: int | None = None,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    pix_fmt: str = "yuv420p",
    **options: str,
) -> bytes:
    stream = io.BytesIO()
    with av.open(stream, "w", format=container) as out:
        track = out.add_stream(codec, rate=rate, options=options)
        track.width, track.height = size
        track.pix_fmt = pix_fmt
        if times is not None:
            track.codec_context.time_base = Fraction(1, 1000)
        if rotation is not None:
            track.set_display_rotation(rotation)
        for k in range(count):
            frame = av.VideoFrame.from_ndarray(numbered(k)[: size[1], : size[0]], format="rgb24")
            if times is not None:
                frame.pts, frame.time_base = times[k], Fraction(1, 1000)
            out.mux(track.encode(frame))
        out.mux(track.encode())
    return stream.getvalue()


VIDEOS = {
    "h264, one keyframe": video(80, g="250"),
    "h264, keyframes often": video(80, g="12"),
    "h264, only keyframes": video(80, g="1"),
    "h264, open groups": video(80, g="12", **{"x264-params": "open-gop=1:bframes=3"}),
    "mpeg4": video(80, codec="mpeg4", g="12"),
    "mpeg4 in avi": video(80, codec="mpeg4", container="avi", g="12"),
    "h264 in matroska": video(80, container="matroska", g="12"),
    "h264 in mpegts": video(80, container="mpegts", g="12"),
    "raw h264": video(80, container="h264", g="12"),
    "vp9 in webm": video(80, codec="libvpx-vp9", container="webm", g="12", deadline="realtime", **{"cpu-used": "8"}),
    "mjpeg in avi": video(80, codec="mjpeg", container="avi", pix_fmt="yuvj420p"),
    "variable rate": video(80, times=[k * 40 + (k % 7) * 5 + (600 if k > 50 else 0) for k in range(80)], g="12"),
    "late start": video(80, times=[5000 + 100 * k for k in range(80)], container="matroska", g="12"),
    "gif": video(80, codec="gif", container="gif", pix_fmt="rgb8"),
}
every_video = pytest.mark.parametrize("data", VIDEOS.values(), ids=VIDEOS)


def numbers(data: bytes | Path, indices: list[int]) -> list[int]:
    return [number(frame) for frame in VideoFile(data).frames(indices)]


@every_video
def test_all_frames_in_order(data):
    file = VideoFile(data)
    assert (file.num_frames, file.width, file.height) == (80, WIDTH, HEIGHT)
    frames = list(file.frames(range(80)))
    assert all(frame.dtype == np.uint8 and frame.shape == (HEIGHT, WIDTH, 3) for frame in frames)
    assert [number(frame) for frame in frames] == list(range(80))


@every_video
@pytest.mark.parametrize(
    "indices",
    [
        [0],
        [79],
        [40],
        [0, 79],
        [0, 20, 39, 59, 79],
        [3, 3, 3, 50, 50],
        [11, 12, 13, 23, 24, 25],
        list(range(0, 80, 7)),
        [],
    ],
    ids=str,
)
def test_chosen_frames_are_those_of_decoding_all(data, indices):
    assert numbers(data, indices) == indices


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.sampled_from(list(VIDEOS)), st.lists(st.integers(0, 79), min_size=1, max_size=12).map(sorted))
def test_any_choice_of_frames(name, indices):
    assert numbers(VIDEOS[name], indices) == indices


def test_far_frames_are_jumped_to(monkeypatch):
    data = video(400, g="10")
    decoded = []
    count = VideoFile._numbered
    monkeypatch.setattr(
        VideoFile, "_numbered", lambda self, *args: (decoded.append(i) or (i, f) for i, f in count(self, *args))
    )
    assert numbers(data, [5, 205, 395]) == [5, 205, 395]
    assert len(decoded) < 40


@every_video
def test_rates(data):
    want = {VIDEOS["variable rate"]: 80 / (79 * 0.04 + 0.61), VIDEOS["raw h264"]: VideoFile(data).fps}.get(data, 10.0)
    assert abs(VideoFile(data).fps - want) < 1.0
    assert 0 < VideoFile(data).fps < 100


def test_a_path_is_read_and_closed(tmp_path):
    path = tmp_path / "video.mp4"
    path.write_bytes(VIDEOS["mpeg4"])
    before = len(os.listdir("/proc/self/fd"))
    files = [VideoFile(path) for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before
    frames = files[0].frames([3, 70])
    assert number(next(frames)) == 3
    frames.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert numbers(path, [70]) == [70]
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(FileNotFoundError):
        VideoFile(tmp_path / "absent.mp4")
    with pytest.raises(IsADirectoryError):
        VideoFile(tmp_path)


@pytest.mark.parametrize("turn", [0, 90, 180, 270])
def test_rotation_flags(turn):
    # FFmpeg counts counter-clockwise.
    data = video(3, rotation=-turn)
    file = VideoFile(data)
    assert file.rotation == turn
    assert (file.width, file.height) == (WIDTH, HEIGHT)
    assert numbers(data, [0, 1, 2]) == [0, 1, 2]
    assert VideoFile(video(3)).rotation == 0


def test_one_frame_needs_no_rate():
    for data in (video(1), video(1, container="h264"), video(1, codec="gif", container="gif", pix_fmt="rgb8")):
        file = VideoFile(data)
        assert file.num_frames == 1
        assert file.fps > 0
        assert [number(frame) for frame in file.frames([0])] == [0]


@pytest.mark.parametrize("pix_fmt", ["yuv444p", "gray", "yuv420p10le"])
def test_other_pixel_formats_become_rgb_bytes(pix_fmt):
    assert numbers(video(6, pix_fmt=pix_fmt, crf="10"), [0, 3, 5]) == [0, 3, 5]


def audio() -> bytes:
    stream = io.BytesIO()
    with av.open(stream, "w", format="mp4") as out:
        track = out.add_stream("aac", rate=48000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.rate = 48000
        out.mux(track.encode(frame))
        out.mux(track.encode())
    return stream.getvalue()


def png() -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (30, 30)).save(stream, "PNG")
    return stream.getvalue()


BROKEN = {
    "text": b"just some text, not a video " * 10,
    "one byte": b"x",
    "zeros": bytes(5000),
    "audio": audio(),
    "a picture": png(),
    "cut before the index": VIDEOS["mpeg4"][: len(VIDEOS["mpeg4"]) // 2],
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_video_is_refused(name, tmp_path, capfd):
    path = tmp_path / "video"
    path.write_bytes(BROKEN[name])
    for source in (BROKEN[name], path):
        with pytest.raises(MediaError):
            VideoFile(source)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("scheme", ["{}", "file:{}", "file://{}"])
def test_lists_of_other_files_open_nothing(tmp_path, scheme):
    target = tmp_path / "secret.ts"
    target.write_bytes(VIDEOS["h264 in mpegts"])
    name = scheme.format(target)
    playlists = {
        "m3u8": f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:8.0,\n{name}\n#EXT-X-ENDLIST\n",
        "ffconcat": f"ffconcat version 1.0\nfile '{name}'\n",
        "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n",
        "mpd": f"<?xml version='1.0'?><MPD><Period><BaseURL>{name}</BaseURL></Period></MPD>",
    }
    for kind, text in playlists.items():
        path = tmp_path / f"list.{kind}"
        path.write_text(text)
        os.utime(target, (1, 1))
        for source in (text.encode(), path):
            with pytest.raises(MediaError):
                list(VideoFile(source).frames([0]))
        assert target.stat().st_atime == 1, kind


def test_a_video_whose_second_half_is_missing_is_refused(tmp_path):
    path = tmp_path / "video.mp4"
    with av.open(str(path), "w", options={"movflags": "faststart"}) as out:
        track = out.add_stream("mpeg4", rate=10)
        track.width, track.height, track.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for k in range(80):
            out.mux(track.encode(av.VideoFrame.from_ndarray(numbered(k), format="rgb24")))
        out.mux(track.encode())
    data = path.read_bytes()  # the index comes first
    assert VideoFile(data).num_frames == 80
    start = data.index(b"mdat")
    with pytest.raises(MediaError, match=r"cut short: .* of its 80 frames"):
        VideoFile(data[: start + (len(data) - start) // 2])


@pytest.mark.parametrize(("codec", "container"), [("mjpeg", "avi"), ("mpeg4", "avi"), ("libx264", "mp4")])
@pytest.mark.parametrize("damage", [0.05, 0.5], ids=["all of it", "its second half"])
def test_a_damaged_frame_is_an_error(codec, container, damage):
    data = bytearray(video(40, codec, container, pix_fmt="yuvj420p" if codec == "mjpeg" else "yuv420p", g="1"))
    with av.open(io.BytesIO(data)) as opened:
        packet = [p for p in opened.demux(video=0) if p.size][20]
    span = range(packet.pos + int(packet.size * damage), packet.pos + packet.size)
    data[span.start : span.stop] = b"\xff\xd9" * (len(span) // 2) + bytes(len(span) % 2)
    file = VideoFile(bytes(data))
    assert [number(frame) for k in (19, 21) for frame in file.frames([k])] == [19, 21]
    with pytest.raises(MediaError, match=r"frame 20 of the video|cannot read the video"):
        list(file.frames([19, 20, 21]))


def test_changes_of_300_kinds_end_in_a_video_or_an_error():
    rng = np.random.default_rng(0)
    whole = [VIDEOS["mpeg4"], VIDEOS["mpeg4 in avi"], VIDEOS["h264 in matroska"]]
    outcomes = {"read": 0, "refused": 0}
    for _ in range(300):
        data = bytearray(whole[rng.integers(3)])
        for _ in range(rng.integers(1, 6)):
            at, size = int(rng.integers(len(data))), int(rng.integers(1, 60))
            match rng.integers(3):
                case 0:
                    data[at] ^= 1 << int(rng.integers(8))
                case 1:
                    del data[at : at + size]
                case _:
                    data[at:at] = rng.bytes(size)
        try:
            file = VideoFile(bytes(data))
            for frame in file.frames(sorted({0, file.num_frames // 2, file.num_frames - 1})):
                assert frame.shape == (file.height, file.width, 3)
            outcomes["read"] += 1
        except MediaError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 10, outcomes


def test_no_threads_are_left_and_progress_is_shown(capsys):
    before = threading.active_count()
    assert numbers(VIDEOS["mpeg4"], [0, 40, 79]) == [0, 40, 79]
    assert threading.active_count() == before
    assert len(list(VideoFile(VIDEOS["mpeg4"]).frames([0, 40, 79], progress=True))) == 3
    assert "3/3" in capsys.readouterr().err


def test_without_pyav_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"kimi-jax-prep\[video\]"):
        VideoFile(VIDEOS["mpeg4"])
