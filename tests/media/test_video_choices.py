"""Any choice of frames, from any container, is what decoding everything gives."""

import io
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered_video import HEIGHT, WIDTH, number, numbered, video

from kimi_jax_prep import MediaError
from kimi_jax_prep.media.video_file import VideoFile

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
    with pytest.raises(MediaError, match="frame 20 cannot be decoded"):
        list(file.frames([19, 20, 21]))
