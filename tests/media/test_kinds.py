"""What a medium says about itself: records of data sets, parts of messages, columns, and keys that resemble ours."""

import base64
import io
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from bits import assert_bit_equal
from PIL import Image
from transformers.video_utils import VideoMetadata

import kimi_jax_prep as kjp

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8))
FRAMES = [Image.fromarray(np.full((56, 56, 3), 20 * k, np.uint8)) for k in range(6)]


def png() -> bytes:
    stream = io.BytesIO()
    PICTURE.save(stream, "PNG")
    return stream.getvalue()


DATA = png()
WANT = kjp.preprocess([PICTURE]).pixel_values
URL = "data:image/png;base64," + base64.b64encode(DATA).decode()
SAME = {
    "a record of bytes": {"bytes": DATA, "path": None},
    "a record with both": {"bytes": DATA, "path": "elsewhere.png"},
    "a record inside": {"type": "image", "image": {"bytes": DATA, "path": None}},
    "a part of a message": {"type": "image_url", "image_url": {"url": URL, "detail": "high"}},
    "a part with a plain URL": {"type": "image_url", "image_url": URL},
    "keys of engines": {"type": "image", "image": PICTURE, "uuid": "a", "detail": "low"},
    "an Arrow scalar": pa.scalar(DATA),
    "an Arrow record": pa.array([{"bytes": DATA, "path": None}])[0],
    "an Arrow buffer": pa.py_buffer(DATA),
    "encoded bytes as an array": np.frombuffer(DATA, np.uint8),
    "an object scalar": np.array(DATA, object),
}


@pytest.mark.parametrize("name", SAME)
def test_all_are_the_same_image(name):
    assert_bit_equal(kjp.preprocess([SAME[name]]).pixel_values, WANT, what=name)


def test_a_path_in_a_record_follows_the_rules_for_paths(tmp_path):
    path = tmp_path / "picture.png"
    path.write_bytes(DATA)
    with pytest.raises(kjp.MediaError, match="a plain string is not opened"):
        kjp.preprocess([{"bytes": None, "path": str(path)}])
    for record in ({"bytes": None, "path": path}, {"path": path}):
        assert_bit_equal(kjp.preprocess([record]).pixel_values, WANT, what="a path in a record")
    got = kjp.preprocess([{"bytes": None, "path": str(path)}], allow_paths=True).pixel_values
    assert_bit_equal(got, WANT, what="a string in a record")
    with pytest.raises(kjp.MediaError, match="both 'bytes' and 'path' are None"):
        kjp.preprocess([{"bytes": None, "path": None}])


def test_columns_are_lists_of_media():
    column = np.empty(2, object)
    column[:] = [DATA, PICTURE]
    want = np.concatenate([WANT, WANT])
    for medias in (column, pd.Series([DATA, PICTURE]), pa.array([DATA, DATA]), (DATA, PICTURE), iter([DATA, PICTURE])):
        assert_bit_equal(kjp.preprocess(medias).pixel_values, want, what=type(medias).__name__)


def test_frames_in_an_object_array():
    column = np.empty(4, object)
    column[:] = FRAMES[:4]
    want = kjp.preprocess([{"type": "video_chunk", "video_chunk": FRAMES[:4]}]).pixel_values
    got = kjp.preprocess([{"type": "video_chunk", "video_chunk": column}]).pixel_values
    assert_bit_equal(got, want, what="frames in an object array")


@pytest.mark.parametrize(
    ("media", "meant"),
    [
        ({"type": "video", "video": FRAMES, "frames_per_second": 30.0}, "fps"),
        ({"type": "video", "video": FRAMES, "frame_rate": 30.0}, "fps"),
        ({"type": "video", "video": FRAMES, "uuid": "a", "fps": 3.0}, None),
        ({"type": "video", "video": FRAMES, "frame_indices": [0, 1]}, "frames_indices"),
        ({"type": "video", "video": FRAMES, "frames_indexes": [0, 1]}, "frames_indices"),
        ({"type": "video_chunk", "video_chunk": FRAMES[:2], "prompts": "x"}, "prompt"),
        ({"type": "image", "image": PICTURE, "types": 1}, "type"),
    ],
)
def test_keys_that_resemble_ours_are_not_ignored(media, meant):
    if meant is None:
        assert kjp.preprocess([media])
        return
    with pytest.raises(kjp.MediaError, match=rf"medias\[0\]: .*unknown key '.*'; did you mean '{meant}'"):
        kjp.preprocess([media])


SAMPLED = {"fps": 30.0, "frames_indices": [0, 15, 30, 45, 60, 75]}


@pytest.mark.parametrize(
    "media",
    [
        {"type": "video", "video": FRAMES, **SAMPLED},
        {"type": "video", "video": np.stack([np.asarray(f) for f in FRAMES]), **SAMPLED},
        {"type": "video", "video": FRAMES, "video_metadata": SAMPLED},
        {"type": "video", "video": FRAMES, "video_metadata": VideoMetadata(total_num_frames=90, **SAMPLED)},
        {"type": "video", "video": FRAMES, "video_metadata": SimpleNamespace(**SAMPLED)},
        {"type": "video", "video": (FRAMES, {**SAMPLED, "total_num_frames": 90})},
    ],
)
def test_frames_that_were_sampled_elsewhere(media):
    batch = kjp.preprocess([media])
    assert batch.grid_thws.tolist() == [[4, 4, 4], [2, 4, 4]]
    assert [prompt.split("<")[0] for prompt in batch.prompts] == ["00:00:00.000", "00:00:02.000"]
    chunks = [{"type": "video_chunk", "video_chunk": FRAMES[a:b]} for a, b in ((0, 4), (4, 6))]
    assert_bit_equal(batch.pixel_values, kjp.preprocess(chunks).pixel_values, what="no second sampling")


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"fps": 30.0, "frames_indices": [0, 1]}, "2 entries for 6 frames"),
        ({"frames_indices": list(range(6))}, "needs 'fps', the source's"),
        ({"fps": 30.0, "frames_indices": ["a"] * 6}, "a list of whole numbers"),
        ({"fps": 30.0, "frames_indices": [-1] * 6}, "must be 0 or more"),
    ],
)
def test_indices_that_do_not_fit(about, message):
    with pytest.raises(kjp.PrepError, match=rf"medias\[0\]: .*{message}"):
        kjp.preprocess([{"type": "video", "video": FRAMES, **about}])


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0", "HEIC: install pillow-heif"),
        (b"\xff\x0a\0\0", "JPEG XL: install pillow-jxl-plugin"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"),
        (b"\0\0\0\x20ftypisom\0\0", "a video: pass"),
        (b"\x1aE\xdf\xa3\x01", "a video: pass"),
        (b"%PDF-1.7", "PDF: render"),
        (b'<?xml version="1.0"?>\n<svg xmlns="x">', "SVG: render it"),
        (b"<!DOCTYPE html><html>", "HTML: the page of a download that failed"),
        (b'{"error": "not found"}', "JSON: the answer of a server"),
        (b"version https://git-lfs.github.com/spec/v1", "a Git LFS pointer"),
        (b"PK\x03\x04abc", "compressed"),
        (b"nothing known", r"reads\.$"),
    ],
)
def test_what_is_no_image_says_what_it_looks_like(head, what):
    with pytest.raises(kjp.MediaError, match=r"medias\[0\]: this is not an image that .* reads") as caught:
        kjp.preprocess([head])
    assert re.search(what, str(caught.value))


def test_the_dtype_message():
    with pytest.raises(kjp.MediaTypeError, match=r"expected an array of dtype uint8 \(0 to 255\), got float32"):
        kjp.preprocess([np.zeros((4, 4, 3), np.float32)])


def test_a_mapping_without_a_type_says_what_to_add():
    with pytest.raises(kjp.MediaError, match="holds 'video': add 'type': 'video'"):
        kjp.preprocess([{"video": FRAMES}])
