"""Videos from file to patches: sampling, chunks, prompts, limits, rotation."""

import base64
import io
import pickle
import subprocess
import sys
from fractions import Fraction

import av
import numpy as np
import pytest
from bits import assert_bit_equal
from numbered_video import HEIGHT, WIDTH, number, numbered, video
from PIL import Image

import kimi_jax_prep as kjp
from kimi_jax_prep import reference
from kimi_jax_prep.media.video_file import VideoFile, _usable_rate
from kimi_jax_prep.processor import KimiImageProcessor

K25, K3 = kjp.KIMI_K25, kjp.KIMI_K3
DATA = video(100, g="12")  # ten seconds: 20 frames are taken


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "video.mp4"
    path.write_bytes(DATA)
    return path


def as_url(data: bytes) -> str:
    return "data:video/mp4;base64," + base64.b64encode(data).decode()


KINDS = {
    "path": lambda path: path,
    "bytes": lambda path: path.read_bytes(),
    "file": lambda path: io.BytesIO(path.read_bytes()),
    "data URL": lambda path: as_url(path.read_bytes()),
    "medium": lambda path: {"type": "video", "video": path},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("config", [K25, K3], ids=["k25", "k3"])
def test_chunks_are_those_of_the_plan(kind, config, path):
    chunks = kjp.split_video_chunks(KINDS[kind](path), config=config)
    plans = kjp.plan_video(num_frames=100, fps=10.0, width=WIDTH, height=HEIGHT, config=config)
    assert [chunk["type"] for chunk in chunks] == ["video_chunk"] * len(plans)
    assert [chunk["prompt"] for chunk in chunks] == [plan.prompt for plan in plans]
    shown = [tuple(number(np.asarray(frame)) for frame in chunk["video_chunk"]) for chunk in chunks]
    assert shown == [plan.frame_indices for plan in plans]
    assert all(frame.mode == "RGB" for chunk in chunks for frame in chunk["video_chunk"])


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "medium"])
@pytest.mark.parametrize("config", [K25, K3], ids=["k25", "k3"])
def test_a_video_among_pictures_is_the_reference_on_its_chunks(kind, config, path):
    picture = Image.fromarray(numbered(77))
    medias = [picture, {"type": "video", "video": KINDS[kind](path)}, picture]
    batch = kjp.preprocess(medias, config=config)
    chunks = kjp.split_video_chunks(path, config=config)
    want = reference.preprocess([picture, *chunks, picture], config)
    assert_bit_equal(batch.pixel_values, want.pixel_values, what="patches")
    assert_bit_equal(batch.grid_thws, want.grid_thws, what="grids")
    assert batch.sources == (0, *(1,) * len(chunks), 2)
    assert batch.prompts == (None, *(chunk["prompt"] for chunk in chunks), None)
    ready = kjp.preprocess([picture, *chunks, picture], config=config)
    assert_bit_equal(batch.pixel_values, ready.pixel_values, what="ready-made chunks")
    assert ready.prompts == batch.prompts


def test_counting_tokens_decodes_nothing(path, monkeypatch):
    processor = KimiImageProcessor(K25)
    medium = {"type": "video", "video": path}
    want = sum(kjp.preprocess([medium]).num_tokens)
    monkeypatch.setattr(VideoFile, "frames", None)
    assert processor.media_tokens_calculator(medium) == want
    with pytest.raises(kjp.MediaError, match="split_video_chunks"):
        processor.get_resize_config(medium)


def test_the_adapter_splits_as_the_function_does(path):
    processor = KimiImageProcessor(K25)
    ours, theirs = processor.split_video_chunks(path), kjp.split_video_chunks(path, config=K25)
    assert [chunk["prompt"] for chunk in ours] == [chunk["prompt"] for chunk in theirs]
    batch = kjp.preprocess(theirs)
    for got in (processor(ours), processor({"type": "video", "video": path})):
        assert_bit_equal(got["pixel_values"], batch.pixel_values, what="patches")
        assert_bit_equal(got["grid_thws"], batch.grid_thws, what="grids")


def test_a_rate_that_is_given_wins(path):
    # A hundred frames in one second: two of them.
    (chunk,) = kjp.split_video_chunks(path, fps=100.0)
    assert [number(np.asarray(frame)) for frame in chunk["video_chunk"]] == [0, 99]
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(kjp.PlanError, match="`fps`"):
            kjp.preprocess([{"type": "video", "video": path, "fps": bad}])


@pytest.mark.parametrize("turn", [0, 90, 180, 270])
def test_rotation_flags_are_followed_only_when_asked(turn):
    data = video(3, rotation=-turn)
    (plain,) = kjp.split_video_chunks(data)
    (turned,) = kjp.split_video_chunks(data, exif_transpose=True)
    for before, after in zip(plain["video_chunk"], turned["video_chunk"], strict=True):
        assert before.size == (WIDTH, HEIGHT)
        want = before.rotate(-turn, expand=True)
        assert_bit_equal(np.asarray(after), np.asarray(want), what=f"turned by {turn}")
    batch = kjp.preprocess([{"type": "video", "video": data}], exif_transpose=True)
    assert_bit_equal(batch.grid_thws, kjp.preprocess([turned]).grid_thws, what="grids")
    assert KimiImageProcessor(exif_transpose=True).media_tokens_calculator(turned) == batch.num_tokens[0]


@pytest.mark.parametrize("fps", [None, 0.0, float("inf")])
def test_a_file_without_a_rate_needs_one(path, monkeypatch, fps):
    # No container that PyAV writes leaves the rate out; broken ones in the field do.
    monkeypatch.setattr("kimi_jax_prep.media.video_file._usable_rate", lambda *_: None)
    if fps is None:
        with pytest.raises(kjp.MediaError, match="give `fps` beside it"):
            kjp.split_video_chunks(path)
    else:
        with pytest.raises(kjp.PlanError, match="`fps`"):
            kjp.split_video_chunks(path, fps=fps)
    assert len(kjp.split_video_chunks(path, fps=10.0)) == 5
    (chunk,) = kjp.split_video_chunks(video(1))
    assert len(chunk["video_chunk"]) == 1


@pytest.mark.parametrize(
    ("rates", "want"),
    [((None, None, None), None), ((0, None, 5.0), 5.0), ((Fraction(30), 25, 1.0), 30.0), ((-1, float("nan"), 2), 2.0)],
)
def test_the_first_usable_rate_counts(rates, want):
    assert _usable_rate(*rates) == want


def test_limits_hold_before_decoding(path, monkeypatch):
    monkeypatch.setattr(VideoFile, "frames", None)
    for options, message in (
        ({"max_frames": 19}, "20 of the video's frames .* `max_frames` = 19"),
        ({"max_pixels": WIDTH * HEIGHT - 1}, f"{WIDTH}x{HEIGHT} is more than `max_pixels`"),
    ):
        with pytest.raises(kjp.MediaError, match=rf"^medias\[1\]: {message}"):
            kjp.preprocess([np.zeros((28, 28, 3), np.uint8), {"type": "video", "video": path}], **options)


def test_a_video_that_breaks_off_is_left_out_whole():
    data = bytearray(video(40, "mpeg4", "avi", g="1"))
    with av.open(io.BytesIO(data)) as opened:
        packet = [p for p in opened.demux(video=0) if p.size][39]
    data[packet.pos + 8 : packet.pos + packet.size] = bytes(packet.size - 8)
    good = Image.fromarray(numbered(5))
    medias = [good, {"type": "video", "video": bytes(data)}, good, {"type": "video", "video": b"no video"}]
    with pytest.raises(kjp.MediaError, match=r"^medias\[1\]: (frame|cannot read)"):
        kjp.preprocess(medias[:3])
    batch = kjp.preprocess(medias, on_error="skip")
    assert batch.sources == (0, 2)
    assert [failure.index for failure in batch.failures] == [1, 3]
    assert_bit_equal(batch.pixel_values, kjp.preprocess([good, good]).pixel_values, what="the rest")
    assert isinstance(pickle.loads(pickle.dumps(batch.failures))[0].error, kjp.MediaError)


@pytest.mark.parametrize(
    ("video", "message"),
    [
        (None, "got NoneType"),
        (Image.new("RGB", (5, 5)), "got Image"),
        ("video.mp4", r"pathlib\.Path"),
        ("https://example.com/video.mp4", "not fetched"),
        (b"", "no bytes"),
        ([], "at least one frame"),
        ([Image.new("L", (5, 6)), Image.new("L", (6, 5))], "one size"),
        ([None], "frame 0: got NoneType"),
        (np.zeros((2, 5, 5, 3), np.float32), "float32"),
        (np.zeros((0, 5, 5, 3), np.uint8), "at least one pixel"),
        (np.zeros((5, 5, 3), np.uint8), r"\(5, 5, 3\)"),
    ],
)
def test_what_is_no_video(video, message):
    with pytest.raises(kjp.MediaError, match=message):
        kjp.split_video_chunks(video)


def test_only_sampled_frames_of_a_list_are_opened():
    frames = [None] * 61
    for k in (0, 20, 40, 60):
        frames[k] = Image.fromarray(numbered(k))
    (chunk,) = kjp.split_video_chunks(frames, fps=30.0)
    assert [number(np.asarray(frame)) for frame in chunk["video_chunk"]] == [0, 20, 40, 60]
    with pytest.raises(kjp.MediaError, match="frame 1: got NoneType"):
        kjp.split_video_chunks(frames)


@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
def test_frames_in_one_array(layout):
    frames = np.stack([numbered(k) for k in range(9)])
    want = kjp.split_video_chunks(list(frames), fps=2.0)
    array = frames if layout == "channels_last" else np.ascontiguousarray(frames.transpose(0, 3, 1, 2))
    for options in ({}, {"input_data_format": layout}):
        got = kjp.split_video_chunks(array, fps=2.0, **options)
        assert [chunk["prompt"] for chunk in got] == [chunk["prompt"] for chunk in want]
        assert_bit_equal(kjp.preprocess(got).pixel_values, kjp.preprocess(want).pixel_values, what=layout)


def test_memory_holds_the_sampled_frames_only():
    # 300 frames of 1.4 MB, of which 60 are taken: 83 MB; all of them would be 415.
    code = """
import io, sys
import av, numpy as np
from PIL import Image
import kimi_jax_prep as kjp
data = sys.stdin.buffer.read()
kjp.split_video_chunks([Image.new("RGB", (28, 28))])
def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024
before = peak()
chunks = kjp.split_video_chunks(data)
print(sum(len(chunk["video_chunk"]) for chunk in chunks), peak() - before)
"""
    stream = io.BytesIO()
    with av.open(stream, "w", format="mp4") as out:
        track = out.add_stream("mpeg4", rate=10)
        track.width, track.height, track.pix_fmt = 800, 600, "yuv420p"
        for k in range(300):
            pixels = np.full((600, 800, 3), k % 256, np.uint8)
            out.mux(track.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        out.mux(track.encode())
    done = subprocess.run(
        [sys.executable, "-c", code], input=stream.getvalue(), capture_output=True, check=True, timeout=120
    )
    taken, megabytes = done.stdout.split()
    assert int(taken) == 60
    assert float(megabytes) < 330  # as arrays and as Pillow's four bytes a pixel: 83 + 110, and the decoder's own
