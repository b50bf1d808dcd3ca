"""Text and media together, with a real small tokenizer: counts, spans, batches, messages, folders."""

import base64
import copy
import io
import pickle

import numpy as np
import pytest
from bits import assert_bit_equal
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from test_video_file import video
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, ProcessorMixin

import kimi_jax_prep as kjp
from kimi_jax_prep import reference
from kimi_jax_prep._placeholders import expand_pads, fill_slots, find_slots, truncate
from kimi_jax_prep.processor import KimiImageProcessor, KimiProcessor

K25, K3 = kjp.KIMI_K25, kjp.KIMI_K3
IMAGE = "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>"
VIDEO = "<|kimi_k25_video_placeholder|>"
K3_IMAGE = "<|kimi_image_placeholder|>"
SPECIAL = ["<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>", VIDEO, K3_IMAGE, "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{% if c.type in ('image', 'image_url') %}IMAGE"
    "{% elif c.type in ('video', 'video_url') %}" + VIDEO + "{% elif c.type == 'text' %}{{ c.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    "{% if shout is defined %}{{ shout }}{% endif %}{% if tools %}{{ tools | length }} tools{% endif %}"
)


def tokenizer(image: str = IMAGE) -> PreTrainedTokenizerFast:
    small = Tokenizer(models.BPE())
    small.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    small.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<pad>", *SPECIAL], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    small.train_from_iterator(["what is in this picture and that one", "the video shows 00:00:01.500"] * 20, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=small,
        pad_token="<pad>",
        additional_special_tokens=SPECIAL,
        chat_template=TEMPLATE.replace("IMAGE", image),
    )


TOKENIZER, TOKENIZER_K3 = tokenizer(), tokenizer(K3_IMAGE)
PAD = TOKENIZER.convert_tokens_to_ids("<|media_pad|>")


def picture(width: int, height: int, *, mode: str = "RGB", seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, len(mode)), np.uint8)
    return Image.fromarray(pixels)


def frames(count: int, seed: int = 0) -> dict:
    return {"type": "video", "video": [picture(60, 40, seed=seed + k) for k in range(count)]}


def k25(**options) -> KimiProcessor:
    return KimiProcessor(KimiImageProcessor(K25, **options), TOKENIZER)


def k3() -> KimiProcessor:
    return KimiProcessor(KimiImageProcessor(K3), TOKENIZER_K3)


def check(got, texts: list[str], rows: list[list], config) -> None:
    """Ids outside the spans are those of the text; every span is as long as its medium has tokens."""
    want = reference.preprocess([row for its_rows in rows for row in its_rows], config)
    assert_bit_equal(np.asarray(got["pixel_values"]), want.pixel_values, what="patches")
    assert_bit_equal(np.asarray(got["grid_thws"]), want.grid_thws, what="grids")
    tokens = iter(want.num_tokens)
    for i, (text, its_rows) in enumerate(zip(texts, rows, strict=True)):
        ids, mask = list(got["input_ids"][i]), list(got["attention_mask"][i])
        assert len(ids) == len(mask)
        spans = got["media_spans"][i]
        assert [end - start for start, end in spans] == [next(tokens) for _ in its_rows]
        assert all(set(ids[start:end]) == {PAD} for start, end in spans)
        folded = list(ids)
        for start, end in reversed(spans):
            folded[start:end] = [PAD]
            mask[start:end] = [1]
        assert [token for token, real in zip(folded, mask, strict=True) if real] == TOKENIZER(text)["input_ids"]
        assert ids.count(PAD) == sum(end - start for start, end in spans)


def test_one_text_with_images():
    images = [picture(100, 57), picture(300, 200, seed=1)]
    text = f"what is {IMAGE} and {IMAGE}"
    got = k25()(text=text, medias=images)
    check(got, [text], [images], K25)
    assert list(got) == ["input_ids", "attention_mask", "pixel_values", "grid_thws", "media_spans"]
    assert isinstance(k25(), ProcessorMixin)
    assert isinstance(got["input_ids"][0], list)
    assert got["media_spans"] == k25()(text, images)["media_spans"]


def test_unexpanded_texts_keep_one_pad_for_each_medium():
    images = [picture(100, 57), picture(300, 200, seed=1)]
    text = f"what is {IMAGE} and {IMAGE}"
    got = k25()(text=text, medias=images, expand=False)
    assert got["input_ids"] == [TOKENIZER(text)["input_ids"]]
    assert [end - start for start, end in got["media_spans"][0]] == [1, 1]
    assert "media_spans" not in k25()(text=text, medias=images, return_spans=False)


def chunk_texts(processor: KimiProcessor, video: dict) -> tuple[str, list]:
    chunks = processor.image_processor.split_video_chunks(video)
    return "".join(chunk["prompt"] for chunk in chunks), chunks


def test_videos_become_the_prompts_of_their_chunks():
    processor = k25()
    data = video(60)
    medias = [frames(9), picture(50, 40), {"type": "video", "video": data}]
    text = f"first {VIDEO} then {IMAGE} then {VIDEO}."
    got = processor(text=text, medias=medias)
    (first, first_chunks), (last, last_chunks) = (chunk_texts(processor, medias[k]) for k in (0, 2))
    whole = f"first {first} then {IMAGE} then {last}."
    check(got, [whole], [[*first_chunks, medias[1], *last_chunks]], K25)
    assert (len(first_chunks), len(last_chunks)) == (3, 3)


def test_a_ready_made_chunk_stands_for_a_pad():
    chunks = kjp.split_video_chunks(frames(6)["video"])
    text = "".join(chunk["prompt"] for chunk in chunks)
    check(k25()(text=text, medias=chunks), [text], [chunks], K25)


def test_k3_images_are_told_by_their_size():
    processor = k3()
    images = [picture(100, 57, mode="RGBA"), picture(5000, 300, seed=1)]
    text = f"what is {K3_IMAGE} and {K3_IMAGE}"
    prompts = [
        f"<|media_begin|>image {w}x{h}<|media_content|><|media_pad|><|media_end|>" for w, h in ((100, 57), (5000, 300))
    ]
    check(processor(text=text, medias=images), ["what is {} and {}".format(*prompts)], [images], K3)
    for bad in (frames(3), {"type": "video_chunk", "video_chunk": [images[0]]}):
        with pytest.raises(kjp.MediaError, match="has a video; K3 takes images only"):
            processor(text=K3_IMAGE, medias=[bad])


def test_k3_sizes_are_turned_with_the_pixels():
    exif = Image.Exif()
    exif[0x0112] = 6
    stream = io.BytesIO()
    picture(60, 30).save(stream, "PNG", exif=exif)
    for turned, size in ((False, "60x30"), (True, "30x60")):
        got = k3()(text=K3_IMAGE, medias=[stream.getvalue()], exif_transpose=turned)
        assert f"image {size}<" in TOKENIZER_K3.decode(got["input_ids"][0])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["np", "pt", "jax", None])
def test_batches_of_texts(side, kind):
    if kind == "pt":
        pytest.importorskip("torch", reason="torch is an extra")
    processor = k25()
    images = [picture(100, 57), picture(300, 200, seed=1), picture(30, 30, seed=2)]
    texts = [f"{IMAGE} and {IMAGE}", "no picture at all", f"the last one {IMAGE}"]
    lists = [images[:2], [], images[2:]]
    for medias in (lists, [images[:2], None, images[2:]], images):
        got = processor(text=texts, medias=medias, padding=True, padding_side=side, return_tensors=kind)
        values = {name: np.asarray(got[name]) for name in ("pixel_values", "grid_thws", "input_ids", "attention_mask")}
        if kind == "jax":
            assert values["input_ids"].dtype == np.int32
            values["grid_thws"] = values["grid_thws"].astype(np.int64)
        check({**values, "media_spans": got["media_spans"]}, texts, lists, K25)
        shapes = {values[name].shape for name in ("input_ids", "attention_mask")}
        assert len(shapes) == 1
    with pytest.raises(kjp.MediaError, match="padding=True"):
        processor(text=texts, medias=lists, return_tensors="np")


def test_text_alone_has_no_pixels():
    got = k25()(text=["one", "and two"], return_tensors=None)
    assert set(got) == {"input_ids", "attention_mask", "media_spans"}
    assert got["media_spans"] == [[], []]
    assert got["input_ids"] == TOKENIZER(["one", "and two"])["input_ids"]


@pytest.mark.parametrize(
    ("text", "medias", "message"),
    [
        (IMAGE, [], r"the text has 1 `<\|media_pad\|>` for 0 images"),
        ("nothing", [picture(30, 30)], r"has 0 `<\|media_pad\|>` for 1 images"),
        (IMAGE * 3, [picture(30, 30)] * 2, r"has 3 `<\|media_pad\|>` for 2 images"),
        (IMAGE + " a stranger's <|media_pad|>", [picture(30, 30)], r"has 2 `<\|media_pad\|>` for 1 images"),
        (VIDEO, [picture(30, 30)], r"has 0 `<\|media_pad\|>` for 1 images"),
        (VIDEO + IMAGE, [picture(30, 30)], r"has 1 `<\|kimi_k25_video_placeholder\|>` for 0 videos"),
        (IMAGE, [picture(30, 30), frames(2)], r"has 0 `<\|kimi_k25_video_placeholder\|>` for 1 videos"),
        (IMAGE + K3_IMAGE, [picture(30, 30)], r"has 1 `<\|kimi_image_placeholder\|>` for 0 media"),
    ],
)
def test_wrong_numbers_of_placeholders_give_both_numbers(text, medias, message):
    with pytest.raises(kjp.MediaError, match=message):
        k25()(text=text, medias=medias)
    with pytest.raises(kjp.MediaError, match=message.replace("the text has", "text 1 has")):
        k25()(text=["fine", text], medias=[[], medias])


def test_wrong_numbers_in_a_batch():
    with pytest.raises(kjp.MediaError, match="2 placeholders for 1 media"):
        k25()(text=[IMAGE, IMAGE], medias=[picture(30, 30)])
    with pytest.raises(kjp.MediaError, match="1 lists of media for 2 texts"):
        k25()(text=[IMAGE, "none"], medias=[[picture(30, 30)]])
    with pytest.raises(kjp.MediaError, match=r"has 1 `<\|media_pad\|>` for 0 media"):
        k3()(text=IMAGE, medias=[])


@pytest.mark.parametrize("side", ["left", "right"])
def test_truncation_never_cuts_a_medium(side, monkeypatch):
    monkeypatch.setattr(TOKENIZER, "truncation_side", side)
    processor, image = k25(), picture(100, 57)
    text = f"some words {IMAGE} and some more of them"
    whole = processor(text=text, medias=[image])
    ((start, end),) = whole["media_spans"][0]
    room = len(whole["input_ids"][0]) - (start if side == "left" else 0)
    least = room if side == "left" else end
    got = processor(text=text, medias=[image], truncation=True, max_length=least)
    assert len(got["input_ids"][0]) == least
    ((new_start, new_end),) = got["media_spans"][0]
    assert set(got["input_ids"][0][new_start:new_end]) == {PAD}
    assert new_end - new_start == end - start
    with pytest.raises(kjp.MediaError, match=f"truncation to {least - 1} tokens would cut off a medium"):
        processor(text=text, medias=[image], truncation=True, max_length=least - 1)


def test_padding_to_lengths():
    got = k25()(text="a", padding="max_length", max_length=50, return_tensors="np")
    assert got["input_ids"].shape == (1, 50)
    got = k25()(text=["a", "much longer text"], padding=True, pad_to_multiple_of=16, return_tensors="np")
    assert got["input_ids"].shape[1] % 16 == 0


def test_overrides_hold_for_pixels_and_counts():
    image, processor = picture(600, 500), k25()
    got = processor(text=IMAGE, medias=image, in_patch_limit=64)
    want = KimiImageProcessor(K25)(image, in_patch_limit=64)
    assert_bit_equal(got["grid_thws"], want["grid_thws"], what="grids")
    ((start, end),) = got["media_spans"][0]
    assert end - start == want["grid_thws"].prod() // 4
    bytes_ = processor(text=IMAGE, medias=image, do_rescale=False, do_normalize=False)["pixel_values"]
    assert bytes_.dtype == np.uint8
    named = KimiProcessor(KimiImageProcessor(K25, names="transformers"), TOKENIZER)(text=IMAGE, medias=image)
    assert "image_grid_thw" in named


@pytest.mark.parametrize(("name", "near"), [("paddin", "padding"), ("in_patch_limt", "in_patch_limit"), ("images", "")])
def test_unknown_keywords(name, near):
    with pytest.raises(TypeError, match=f"{name!r}.*{near}"):
        k25()(text="a", **{name: 1})


def url(image: Image.Image) -> str:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def test_messages_hold_text_and_media():
    processor = k25()
    images = [picture(100, 57, seed=k) for k in range(3)]
    messages = [
        {"role": "system", "content": "be brief"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "see "},
                {"type": "image", "image": images[0]},
                {"type": "video", "video": frames(5)["video"], "fps": 2.0},
                {"type": "image_url", "image_url": {"url": url(images[1])}},
                {"type": "image_url", "image_url": url(images[2])},
            ],
        },
    ]
    before = copy.deepcopy(messages)
    prompts, chunks = chunk_texts(processor, {**frames(5), "fps": 2.0})
    text = f"system: be brief<|im_end|>user: see {IMAGE}{prompts}{IMAGE}{IMAGE}<|im_end|>"
    for options, end in (({}, "assistant: "), ({"add_generation_prompt": False}, "")):
        got = processor(messages=messages, **options)
        check(got, [text + end], [[images[0], *chunks, *images[1:]]], K25)
    more = processor(messages=messages, tools=[{}, {}], chat_template_kwargs={"shout": "HEY"})
    assert TOKENIZER.decode(more["input_ids"][0]).endswith("assistant: HEY2 tools")
    assert messages == before
    assert processor.apply_chat_template(messages) == text.replace(prompts, VIDEO)
    assert (
        processor.apply_chat_template(messages, tokenize=True)["input_ids"] == processor(messages=messages)["input_ids"]
    )

    both = processor(messages=[messages, [{"role": "user", "content": "hello"}]], padding=True)
    assert [len(spans) for spans in both["media_spans"]] == [3 + len(chunks), 0]


def test_messages_are_checked():
    processor = k25()
    for part, message in (
        ({"type": "image"}, "needs the key 'image'"),
        ({"type": "image", "image": "a/path.png"}, r"pathlib\.Path"),
        ({"type": "image_url", "image_url": "https://example.com/a.png"}, "not fetched"),
    ):
        with pytest.raises(kjp.MediaError, match=message):
            processor(messages=[{"role": "user", "content": [part]}])
    with pytest.raises(TypeError, match="either them or"):
        processor(text="a", messages=[])
    with pytest.raises(TypeError, match="pass `text`"):
        processor()
    bare = tokenizer()
    bare.chat_template = None
    with pytest.raises(kjp.ConfigError, match="chat_template="):
        KimiProcessor(KimiImageProcessor(), bare)(messages=[{"role": "user", "content": "a"}])
    given = KimiProcessor(KimiImageProcessor(), bare, chat_template="{{ messages[0].content }}")
    assert given(messages=[{"role": "user", "content": "a"}])["input_ids"] == TOKENIZER(["a"])["input_ids"]


def test_a_tokenizer_without_the_pad_is_refused():
    other = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>")), unk_token="<unk>"
    )
    with pytest.raises(kjp.ConfigError, match=r"no token `<\|media_pad\|>`"):
        KimiProcessor(KimiImageProcessor(), other)


@pytest.mark.parametrize("config", [K25, K3], ids=["k25", "k3"])
def test_folders_pickles_and_copies_give_the_same(tmp_path, config):
    processor = KimiProcessor(KimiImageProcessor(config, dtype="bfloat16"), TOKENIZER_K3 if config is K3 else TOKENIZER)
    text = f"what is {K3_IMAGE if config is K3 else IMAGE}"
    want = processor(text=text, medias=[picture(100, 57)])
    processor.save_pretrained(tmp_path)
    others = [KimiProcessor.from_pretrained(tmp_path), pickle.loads(pickle.dumps(processor)), copy.deepcopy(processor)]
    for other in others:
        got = other(text=text, medias=[picture(100, 57)])
        assert (got["input_ids"], got["media_spans"]) == (want["input_ids"], want["media_spans"])
        assert_bit_equal(got["pixel_values"].view(np.uint16), want["pixel_values"].view(np.uint16), what="patches")
        assert other.chat_template == processor.chat_template
    smaller = KimiProcessor.from_pretrained(tmp_path, in_patch_limit=4, trust_remote_code=False, revision=None)
    assert len(smaller(text=text, medias=[picture(100, 57)])["pixel_values"]) < len(want["pixel_values"])
    assert processor.decode(want["input_ids"][0]).startswith("what is ")
    assert processor.batch_decode(want["input_ids"])[0].startswith("what is ")
    assert {"input_ids", "pixel_values", "grid_thws"} <= set(processor.model_input_names)


PIECES = st.lists(st.sampled_from(["words", "image", "video", "more words"]), max_size=7)


@settings(deadline=None, max_examples=30, derandomize=True)
@given(st.lists(PIECES, min_size=1, max_size=3), st.sampled_from(["left", "right"]))
def test_any_mixture(pieces, side):
    processor = k25()
    texts, filled, medias, rows = [], [], [], []
    for k, its_pieces in enumerate(pieces):
        text, whole, its_medias, its_rows = "", "", [], []
        for i, piece in enumerate(its_pieces):
            if piece == "image":
                its_medias.append(picture(20 + 30 * i, 40 + 20 * k, seed=i))
                its_rows.append(its_medias[-1])
                text, whole = text + IMAGE, whole + IMAGE
            elif piece == "video":
                its_medias.append(frames(1 + 3 * i, seed=i))
                prompts, chunks = chunk_texts(processor, its_medias[-1])
                its_rows += chunks
                text, whole = text + VIDEO, whole + prompts
            else:
                text, whole = text + piece, whole + piece
        texts.append(text + ".")
        filled.append(whole + ".")
        medias.append(its_medias)
        rows.append(its_rows)
    got = processor(text=texts, medias=medias, padding=True, padding_side=side)
    if any(rows):
        check(got, filled, rows, K25)
    else:
        assert "pixel_values" not in got


def test_slots_and_spans_alone():
    assert find_slots(f"a {IMAGE} b {VIDEO}{K3_IMAGE}") == ["<|media_pad|>", VIDEO, K3_IMAGE]
    assert fill_slots(f"a {VIDEO} {K3_IMAGE}", [r"\1", "y"]) == r"a \1 y"
    assert expand_pads([5, 9, 9, 6], pad_id=9, counts=[2, 3]) == ([5, 9, 9, 9, 9, 9, 6], [(1, 3), (3, 6)])
    with pytest.raises(kjp.MediaError, match=r"has 2 .* for 1 media"):
        expand_pads([9, 9], pad_id=9, counts=[2])
    assert truncate([1, 2, 3], [], max_length=5, side="left") == ([1, 2, 3], [])
    assert truncate([1, 9, 9, 3], [(1, 3)], max_length=3, side="left") == ([9, 9, 3], [(0, 2)])
