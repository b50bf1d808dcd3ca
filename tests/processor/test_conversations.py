"""Conversations: split videos in the history, media that can be read once, chat templates with names."""

import base64
import io
import os
import threading

import pytest
from bits import assert_bit_equal
from numbered_video import video
from small_kimi import IMAGE3, K3, TEMPLATE, TOKENIZER, VIDEO, film, ids_of, make_tokenizer, picture, processor

import kimi_jax_prep as kjp
from kimi_jax_prep.processor import KimiImageProcessor, KimiProcessor


def chunks_of(medium) -> list[dict]:
    return KimiImageProcessor().split_video_chunks(medium)


def said(*parts, role="user") -> dict:
    return {"role": role, "content": [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]}


FIRST, SECOND = film(6), film(9, width=60, height=60)


@pytest.mark.parametrize(
    "messages",
    [
        [said(*chunks_of(FIRST), "and", *chunks_of(SECOND))],
        [said(*chunks_of(FIRST)), said("a film", role="assistant"), said(*chunks_of(SECOND), "and this?")],
    ],
    ids=["one message", "two messages"],
)
def test_two_split_videos_with_only_text_between(messages):
    one = processor()
    whole = []
    videos = iter([FIRST, SECOND])
    for message in messages:
        parts = message["content"]
        starts = [
            k
            for k, part in enumerate(parts)
            if part["type"] == "video_chunk" and (k == 0 or parts[k - 1]["type"] == "text")
        ]
        content = [
            next(videos) if k in starts else part
            for k, part in enumerate(parts)
            if part["type"] == "text" or k in starts
        ]
        whole.append({**message, "content": content})
    got, want = one(messages=messages, return_tensors="np"), one(messages=whole, return_tensors="np")
    assert got.media_spans == want.media_spans
    for name in want:
        assert_bit_equal(got[name], want[name], what=name)


def test_split_videos_beside_a_text_come_in_lists():
    one = processor()
    first, second = chunks_of(FIRST), chunks_of(SECOND)
    want = one(text=f"{VIDEO} or {VIDEO}", medias=[FIRST, SECOND], return_tensors="np")
    for medias in ([first, second], [[first, second]]):
        got = one(text=f"{VIDEO} or {VIDEO}", medias=medias, return_tensors="np")
        assert_bit_equal(got["input_ids"], want["input_ids"], what="ids")
        assert_bit_equal(got["pixel_values"], want["pixel_values"], what="pixels")
    with pytest.raises(kjp.TextError, match=r"2 `<\|kimi_k25_video_placeholder\|>`.*list of the chunks of a video"):
        one(text=f"{VIDEO} or {VIDEO}", medias=[*first, *second])


def test_the_rate_of_a_video_url_may_be_inside_of_it():
    url = "data:video/mp4;base64," + base64.b64encode(video(20, rate=10)).decode()
    one = processor()
    inside = one(messages=[said({"type": "video_url", "video_url": {"url": url, "fps": 40.0}})], return_tensors="np")
    beside = one(messages=[said({"type": "video_url", "video_url": {"url": url}, "fps": 40.0})], return_tensors="np")
    without = one(messages=[said({"type": "video_url", "video_url": {"url": url}})], return_tensors="np")
    assert inside["grid_thws"].tolist() == beside["grid_thws"].tolist() != without["grid_thws"].tolist()


class ReadOnce(io.RawIOBase):
    """A response of a server: it can be read once, and not sought."""

    def __init__(self, data: bytes) -> None:
        self.left, self.reads = data, 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        self.reads += 1
        data, self.left = self.left, b""
        return data if size < 0 else data[:size]


def png(image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize("wrapped", [False, True])
def test_k3_reads_each_medium_once(wrapped):
    response = ReadOnce(png(picture()))
    medium = {"type": "image", "image": response} if wrapped else response
    got = processor(K3)(text=IMAGE3, medias=[medium], return_tensors="np")
    want = processor(K3)(text=IMAGE3, medias=[picture()], return_tensors="np")
    assert response.reads == 1
    for name in want:
        assert_bit_equal(got[name], want[name], what=name)


def test_k3_takes_a_picture_from_a_pipe():
    data = png(picture())
    read_end, write_end = os.pipe()

    def write() -> None:
        with os.fdopen(write_end, "wb") as sink:
            sink.write(data)

    writer = threading.Thread(target=write)
    writer.start()
    with os.fdopen(read_end, "rb") as pipe:
        got = processor(K3)(messages=[said({"type": "image", "image": pipe})], chat_template=IMAGE3)
    writer.join()
    assert "image 40x30<|" in TOKENIZER.decode(got["input_ids"][0])


NAMED = {"default": TEMPLATE, "tool_use": "with tools", "short": "{{ messages[0].content }}"}
HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("where", ["tokenizer", "processor"])
def test_templates_with_names(where):
    tokenizer = make_tokenizer(template=NAMED if where == "tokenizer" else None)
    one = KimiProcessor(KimiImageProcessor(), tokenizer, chat_template=NAMED if where == "processor" else None)
    assert one.apply_chat_template(HELLO) == processor().apply_chat_template(HELLO)
    assert one.apply_chat_template(HELLO, chat_template="short") == "hello"
    assert one.apply_chat_template(HELLO, chat_template="tool_use") == "with tools"
    assert one.apply_chat_template(HELLO, tools=[{"type": "function", "function": {"name": "f"}}]) == "with tools"
    assert one(messages=HELLO, chat_template="short")["input_ids"] == [ids_of("hello")]
    with pytest.raises(kjp.ConfigError, match=r"'long', which is neither .*'default', 'tool_use', 'short'"):
        one.apply_chat_template(HELLO, chat_template="long")


def test_names_without_a_default_are_listed():
    one = KimiProcessor(KimiImageProcessor(), make_tokenizer(template={"a": "x", "b": "y"}))
    with pytest.raises(kjp.ConfigError, match=r"no default chat template.*'a', 'b'"):
        one(messages=HELLO)
    with pytest.raises(kjp.ConfigError, match="`chat_template` is 'tool_use', which is neither"):
        processor()(messages=HELLO, chat_template="tool_use")


# transformers does not close the files of named templates that it reads.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_named_templates_survive_saving(tmp_path):
    KimiProcessor(KimiImageProcessor(), make_tokenizer(), chat_template=NAMED).save_pretrained(tmp_path)
    assert KimiProcessor.from_pretrained(tmp_path).apply_chat_template(HELLO, chat_template="short") == "hello"
