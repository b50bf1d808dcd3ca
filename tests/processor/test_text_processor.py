"""`KimiProcessor` with a small tokenizer of transformers' own kind."""

import copy
import io
import pickle

import jax
import numpy as np
import pytest
from bits import assert_bit_equal
from hypothesis import given, settings
from hypothesis import strategies as st
from small_kimi import (
    IMAGE,
    IMAGE3,
    K3,
    K25,
    PAD,
    PAD_ID,
    SPECIAL,
    TEMPLATE,
    TOKENIZER,
    VIDEO,
    data_url,
    film,
    ids_of,
    make_tokenizer,
    picture,
    processor,
)
from transformers import AutoProcessor, PreTrainedTokenizer
from transformers.utils import TensorType

import kimi_jax_prep as kjp
from kimi_jax_prep.processor import KimiImageProcessor, KimiInputs, KimiProcessor

IMAGE_SPAN = (ids_of(IMAGE).index(PAD_ID), ids_of(IMAGE).index(PAD_ID) + 1)


def assert_same(got: KimiInputs, want: KimiInputs) -> None:
    assert list(got) == list(want)
    assert got.media_spans == want.media_spans
    for name in got:
        assert_bit_equal(got[name], want[name], what=name)


def test_one_text_with_image_and_video():
    video, image = film(), picture(100, 57)
    text = f"see {IMAGE} and {VIDEO}!"
    chunks = KimiImageProcessor().split_video_chunks(video)
    plain = ids_of(text.replace(VIDEO, "".join(chunk["prompt"] for chunk in chunks)))
    batch = kjp.preprocess([image, video], config=K25)

    short = processor()(expand=False, text=text, medias=[image, video])
    assert list(short) == ["input_ids", "attention_mask", "pixel_values", "grid_thws"]
    assert short["input_ids"] == [plain]
    assert short["attention_mask"] == [[1] * len(plain)]
    assert [end - start for start, end in short.media_spans[0]] == [1, 1, 1, 1]
    assert_bit_equal(short["pixel_values"], batch.pixel_values, what="pixel_values")
    assert_bit_equal(short["grid_thws"], batch.grid_thws, what="grid_thws")

    long = processor()(text=text, medias=[image, video], expand=True)
    (ids,), (spans,) = long["input_ids"], long.media_spans
    assert [end - start for start, end in spans] == list(batch.num_tokens)
    assert ids.count(PAD_ID) == sum(batch.num_tokens)
    assert all(ids[start:end] == [PAD_ID] * (end - start) for start, end in spans)
    for start, end in reversed(spans):
        ids[start:end] = [PAD_ID]
    assert ids == plain


PIECES = st.lists(
    st.one_of(
        st.text(alphabet="abc é\n", max_size=6),
        st.tuples(st.just("image"), st.integers(1, 90), st.integers(1, 90)),
        st.tuples(st.just("video"), st.integers(1, 9)),
        st.tuples(st.just("chunk"), st.integers(1, 4)),
    ),
    max_size=5,
)


@settings(max_examples=30, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=3), st.booleans(), st.booleans(), st.sampled_from(["left", "right"]))
def test_any_interleaving(texts, expand, nested, side):
    written, plain, lists = [], [], []
    for pieces in texts:
        words, tokenized, medias = "", "", []
        for piece in pieces:
            if isinstance(piece, str):
                words, tokenized = words + piece, tokenized + piece
            elif piece[0] == "video":
                medias.append(film(piece[1]))
                chunks = KimiImageProcessor().split_video_chunks(medias[-1])
                words, tokenized = words + VIDEO, tokenized + "".join(chunk["prompt"] for chunk in chunks)
            else:
                chunk = {"type": "video_chunk", "video_chunk": film(piece[1])["video"]} if piece[0] == "chunk" else None
                medias.append(chunk or picture(*piece[1:]))
                words, tokenized = words + IMAGE, tokenized + IMAGE
        written.append(words)
        plain.append(ids_of(tokenized))
        lists.append(medias)
    flat = [media for medias in lists for media in medias]
    batch = kjp.preprocess(flat, config=K25)
    got = processor()(text=written, medias=lists if nested else flat, expand=expand, padding=True, padding_side=side)
    counts = iter(batch.num_tokens)
    assert len({len(ids) for ids in got["input_ids"]}) == 1
    for ids, mask, spans, want in zip(got["input_ids"], got["attention_mask"], got.media_spans, plain, strict=True):
        for start, end in spans:
            count = next(counts)
            assert end - start == (count if expand else 1)
            assert ids[start:end] == [PAD_ID] * (end - start)
        kept = [k for k in range(len(ids)) if mask[k]]
        assert not kept or kept == list(range(kept[0], kept[-1] + 1))
        assert not kept or len(kept) == len(ids) or (kept[0] > 0) == (side == "left")
        inside = {k for start, end in spans for k in range(start, end)}
        assert [ids[k] for k in kept if k not in inside] == [i for i in want if i != PAD_ID]
    assert next(counts, None) is None
    if flat:
        assert_bit_equal(got["pixel_values"], batch.pixel_values, what="pixel_values")


def test_k3_prompts_hold_the_size_before_any_resize():
    image, clear = picture(3000, 4000), picture(50, 20, mode="RGBA")
    text = f"a{IMAGE3}b{IMAGE3}"
    prompts = [KimiImageProcessor.make_image_prompt(3000, 4000), KimiImageProcessor.make_image_prompt(50, 20)]
    got = processor(K3)(text=text, medias=[image, clear], expand=True)
    batch = kjp.preprocess([image, clear], config=K3)
    (ids,), (spans,) = got["input_ids"], got.media_spans
    assert [end - start for start, end in spans] == list(batch.num_tokens)
    for start, end in reversed(spans):
        ids[start:end] = [PAD_ID]
    assert ids == ids_of(f"a{prompts[0]}b{prompts[1]}")
    assert_bit_equal(got["pixel_values"], batch.pixel_values, what="pixel_values")
    ready = processor(K3)(expand=False, text=f"a{prompts[0]}b{IMAGE3}", medias=[image, clear])
    assert ready["input_ids"] == [ids]


def test_k3_turns_prompt_and_pixels_alike():
    image = picture(60, 30)
    exif = image.getexif()
    exif[0x0112] = 6
    stream = io.BytesIO()
    image.save(stream, "PNG", exif=exif)
    for turned, size in ((False, "60x30"), (True, "30x60")):
        got = processor(K3)(text=IMAGE3, medias=[stream], exif_transpose=turned)
        assert f"image {size}<|" in TOKENIZER.decode(got["input_ids"][0])
        rows, columns = got["grid_thws"][0, 1:]
        assert bool(rows > columns) == turned


@pytest.mark.parametrize(
    "medium", [film(), {"type": "video_chunk", "video_chunk": [picture()]}], ids=["video", "chunk"]
)
def test_k3_takes_no_video(medium):
    with pytest.raises(kjp.MediaError, match=r"medias\[1\] is a video.*images only"):
        processor(K3)(text=f"{IMAGE3}{VIDEO}", medias=[picture(), medium])


def test_the_config_says_which_model_and_a_keyword_overrules_it():
    assert processor().style.name == "k2.5"
    assert processor(K3).style.name == "k3"
    assert processor(K3, prompt_style="k2.5")(text=VIDEO, medias=[film(2)])["grid_thws"].tolist() == [[2, 4, 4]]
    with pytest.raises(kjp.ConfigError, match=r"`prompt_style` is 'k4'; expected 'k2\.5' or 'k3'"):
        processor(prompt_style="k4")


def test_ready_made_chunks_stand_alone_or_for_a_video():
    video = film(6)
    chunks = KimiImageProcessor().split_video_chunks(video)
    one = processor()
    assert_same(
        one(text=f"{VIDEO} {IMAGE}", medias=[*chunks, picture()], return_tensors="np"),
        one(text=f"{VIDEO} {IMAGE}", medias=[video, picture()], return_tensors="np"),
    )
    ready = "".join(chunk["prompt"] for chunk in chunks)
    bare = [{"type": "video_chunk", "video_chunk": chunk["video_chunk"]} for chunk in chunks]
    assert_same(one(text=ready, medias=bare, return_tensors="np"), one(text=VIDEO, medias=[video], return_tensors="np"))
    with pytest.raises(kjp.TextError, match=r"medias\[0\] is a chunk of a video, so it needs 'prompt'"):
        one(text=VIDEO, medias=bare)
    with pytest.raises(kjp.TextError, match=r"medias\[0\]: its 'prompt' has 2 `<\|media_pad\|>`; expected 1"):
        one(text=VIDEO, medias=[{**bare[0], "prompt": PAD + PAD}])


def test_a_video_processor_of_ones_own_decides_the_frames():
    # Whoever samples otherwise passes chunks; their prompts are taken as they are.
    chunk = {"type": "video_chunk", "video_chunk": [picture()] * 4, "prompt": f"noon {IMAGE}"}
    assert processor()(expand=False, text=VIDEO, medias=[chunk])["input_ids"] == [ids_of(f"noon {IMAGE}")]


@pytest.mark.parametrize("medias", [[[picture()], [], None], [picture()], (m for m in [picture()])], ids=str)
def test_texts_without_media_may_stand_between(medias):
    got = processor()(expand=False, text=[IMAGE, "alone", ""], medias=medias, padding=True, return_tensors="np")
    assert [len(spans) for spans in got.media_spans] == [1, 0, 0]
    assert got["input_ids"].shape == got["attention_mask"].shape == (3, len(ids_of(IMAGE)))
    assert not got["attention_mask"][2].any()


@pytest.mark.parametrize("medias", [None, [], [[]], [None]], ids=str)
def test_text_alone(medias):
    got = processor()(text="hello", medias=medias, return_tensors="np")
    assert list(got) == ["input_ids", "attention_mask"]
    assert got["input_ids"].tolist() == [ids_of("hello")]
    assert got.media_spans == [[]]


@pytest.mark.parametrize("media", [picture(), data_url(picture()), np.asarray(picture())], ids=["pil", "url", "array"])
def test_one_medium_needs_no_list(media):
    got = processor()(text=IMAGE, medias=media)
    assert_bit_equal(got["pixel_values"], kjp.preprocess([picture()]).pixel_values, what="pixel_values")


def test_a_strangers_placeholder_is_counted():
    # The application adds one image; its user writes the model's own token.
    with pytest.raises(kjp.TextError, match=r"2 `<\|media_pad\|>` .* 1 image"):
        processor()(text=f"{IMAGE} now print {PAD}", medias=[picture()])
    with pytest.raises(kjp.TextError, match=r"1 `<\|media_pad\|>` .* 0 images"):
        processor()(messages=[{"role": "user", "content": f"what is {PAD}?"}])


@pytest.mark.parametrize(
    ("text", "medias", "message"),
    [
        ("x", [picture()], r"the text has 0 `<\|media_pad\|>` and 0 .* 1 image"),
        ([IMAGE, IMAGE], [picture()], r"the texts have 2 `<\|media_pad\|>` and 0 .* 1 image"),
        ([IMAGE, IMAGE], [[picture()] * 2, []], r"text\[0\] has 1 .* 2 images"),
        ([IMAGE, IMAGE], [[picture()]], "1 lists of media for 2 texts"),
        (f"{IMAGE}{VIDEO}", [film(), picture()], r"medias\[0\] \(video\) for `<\|media_pad\|>`"),
        ([], None, "empty list"),
    ],
)
def test_numbers_that_differ_are_errors(text, medias, message):
    with pytest.raises(kjp.TextError, match=message):
        processor()(text=text, medias=medias)


def test_media_errors_say_which_medium():
    with pytest.raises(kjp.MediaError, match=r"medias\[1\]: "):
        processor()(text=[IMAGE, IMAGE], medias=[[picture()], [b"broken"]])
    with pytest.raises(kjp.MediaError, match=r"medias\[1\]: "):
        processor()(text=f"{IMAGE}{IMAGE}", medias=[picture(), None])


MESSAGES = [
    {"role": "system", "content": "be brief"},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "compare "},
            {"type": "image", "image": picture()},
            {"type": "image_url", "image_url": {"url": data_url(picture(50, 20))}},
            {"type": "video", **film(6)},
        ],
    },
]
MESSAGES_TEXT = f"<|im_user|>system be brief<|im_end|><|im_user|>user compare {IMAGE}{IMAGE}{VIDEO}\n<|im_end|>"
MESSAGES_MEDIAS = [picture(), picture(50, 20), film(6)]


def test_messages_are_their_text_and_media():
    one = processor()
    want = one(text=MESSAGES_TEXT, medias=MESSAGES_MEDIAS, expand=True, return_tensors="np")
    assert_same(one(messages=MESSAGES, expand=True, return_tensors="np"), want)
    assert one.apply_chat_template(MESSAGES) == MESSAGES_TEXT
    assert_same(one.apply_chat_template(MESSAGES, tokenize=True, expand=True, return_tensors="np"), want)
    bare = copy.deepcopy(MESSAGES)
    for part in bare[1]["content"][1:]:
        for key in set(part) - {"type"}:
            del part[key]
    assert_same(one(messages=bare, medias=MESSAGES_MEDIAS, expand=True, return_tensors="np"), want)
    with pytest.raises(kjp.TextError, match="a part of a message holds no medium"):
        one(messages=bare)
    with pytest.raises(kjp.TextError, match="not in both"):
        one(messages=MESSAGES, medias=MESSAGES_MEDIAS)


def test_template_options_pass_through():
    one = processor()
    short = one.apply_chat_template(MESSAGES, add_generation_prompt=True)
    assert short == MESSAGES_TEXT + "<|im_user|>assistant "
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    options = {"add_generation_prompt": True, "tools": tools, "chat_template_kwargs": {"thinking": True}}
    assert one.apply_chat_template(MESSAGES, **options) == f"tools 1{short}think"
    got = one(messages=MESSAGES, expand=False, **options)
    prompts = "".join(chunk["prompt"] for chunk in KimiImageProcessor().split_video_chunks(film(6)))
    assert got["input_ids"] == [ids_of(f"tools 1{short}think".replace(VIDEO, prompts))]
    assert one.apply_chat_template(MESSAGES, "just this") == "just this"
    assert one(text="x", tools=None)["input_ids"] == one(text="x")["input_ids"]
    with pytest.raises(TypeError, match="'tools': for a chat template, so only with `messages`"):
        one(text="x", tools=tools)


def test_a_batch_of_conversations():
    one = processor()
    alone = [{"role": "user", "content": "hello"}]
    got = one(messages=[MESSAGES, alone], padding=True, return_tensors="np")
    texts = one.apply_chat_template([MESSAGES, alone])
    assert_same(got, one(text=texts, medias=[MESSAGES_MEDIAS, []], padding=True, return_tensors="np"))


def test_without_a_template_the_error_says_what_to_do():
    bare = make_tokenizer(template=None)
    with pytest.raises(kjp.ConfigError, match=r"no chat template: give one as KimiProcessor\(\.\.\., chat_template="):
        processor(tokenizer=bare)(messages=MESSAGES)
    given = KimiProcessor(KimiImageProcessor(), bare, chat_template=TEMPLATE)
    assert given.apply_chat_template(MESSAGES) == MESSAGES_TEXT


@pytest.mark.usefixtures("unchecked")
def test_messages_that_are_none():
    with pytest.raises(TypeError, match="either `text` or `messages`"):
        processor()()
    with pytest.raises(TypeError, match="either `text` or `messages`"):
        processor()(text="x", messages=MESSAGES)
    with pytest.raises(TypeError, match="`messages` must be a list"):
        processor()(messages="hello")
    with pytest.raises(kjp.TextError, match="at least one message"):
        processor()(messages=[])


@pytest.mark.parametrize("text", [3, [3], b"x", {"text": "x"}], ids=str)
@pytest.mark.usefixtures("unchecked")
def test_what_is_no_text(text):
    with pytest.raises(TypeError, match="`text` must be a str or a list of str"):
        processor()(text=text)


def test_nothing_of_the_callers_changes():
    tools, texts = [{"type": "function", "function": {"name": "f"}}], [f"{IMAGE}{VIDEO}", "x"]
    medias = [[picture(), film()], []]
    kept = copy.deepcopy((tools, texts, [sorted(medias[0][1]), len(medias[0][1]["video"])]))
    messages = copy.deepcopy(MESSAGES)
    before = pickle.dumps(messages)
    options = TOKENIZER.padding_side, TOKENIZER.truncation_side, TOKENIZER.chat_template
    one = processor()
    one(text=texts, medias=medias, padding=True, truncation=True, max_length=500, padding_side="left", expand=True)
    one(messages=messages, tools=tools)
    assert (tools, texts, [sorted(medias[0][1]), len(medias[0][1]["video"])]) == kept
    assert pickle.dumps(messages) == before
    assert options == (TOKENIZER.padding_side, TOKENIZER.truncation_side, TOKENIZER.chat_template)


def test_padding_and_truncation_are_the_tokenizers_for_text_alone():
    tokenizer = make_tokenizer(eos=True)
    texts = ["hello world hello world", "a", "describe the image"]
    for side in ("left", "right"):
        tokenizer.padding_side = tokenizer.truncation_side = side
        for options in (
            {},
            {"padding": True},
            {"padding": "max_length", "max_length": 40},
            {"truncation": True, "max_length": 5},
            {"truncation": True, "max_length": 8, "padding": True, "pad_to_multiple_of": 4},
            {"add_special_tokens": False, "truncation": "longest_first", "max_length": 3},
        ):
            want = tokenizer(texts, **options)
            got = processor(tokenizer=tokenizer)(text=texts, **options)
            assert got["input_ids"] == want["input_ids"]
            assert got["attention_mask"] == want["attention_mask"]


def test_truncation_never_cuts_a_medium():
    one, text = processor(), f"{IMAGE} and a long text after it"
    whole = one(text=text, medias=[picture()], expand=True)
    ((start, end),) = whole.media_spans[0]
    short = one(text=text, medias=[picture()], expand=True, truncation=True, max_length=end)
    assert short["input_ids"][0] == whole["input_ids"][0][:end]
    assert short.media_spans == whole.media_spans
    with pytest.raises(
        kjp.TextError, match=rf"truncating it to `max_length` = {end - 1} .* of a medium, {start} to {end}"
    ):
        one(text=text, medias=[picture()], expand=True, truncation=True, max_length=end - 1)


def test_the_tokenizers_own_limit_holds():
    one = processor(tokenizer=make_tokenizer(model_max_length=3))
    assert len(one(text="hello world hello", truncation=True)["input_ids"][0]) == 3
    assert len(one(text="hello world hello")["input_ids"][0]) > 3
    assert len(one(text="a", padding="max_length")["input_ids"][0]) == 3


@pytest.mark.parametrize("kind", ["np", "pt", "jax", TensorType.NUMPY, None], ids=str)
def test_results_are_of_the_kind_asked_for(kind):
    if kind == "pt":
        pytest.importorskip("torch", reason="torch is an extra")
    want = processor()(expand=False, text=[IMAGE, "x"], medias=[picture()], padding=True, return_tensors="np")
    got = processor()(expand=False, text=[IMAGE, "x"], medias=[picture()], padding=True, return_tensors=kind)
    assert list(got) == list(want)
    assert got.media_spans == want.media_spans == [[IMAGE_SPAN], []]
    for name in got:
        assert np.asarray(got[name]).tolist() == want[name].tolist()
    if kind is None:
        assert isinstance(got["input_ids"], list)
    elif kind == "jax":
        assert all(isinstance(value, jax.Array) for value in got.values())
    else:
        assert all(np.asarray(got[name]).dtype == np.int64 for name in ("input_ids", "attention_mask", "grid_thws"))
        got["input_ids"] += 1  # writable


def test_ragged_texts_make_no_array():
    with pytest.raises(kjp.PlanError, match=r"\d to 12 ids, so they do not form an array; use padding=True"):
        processor()(text=[IMAGE, "0123456789ab"], medias=[picture()], return_tensors="np")


def test_overrides_hold_for_pixels_and_counts():
    one, image = processor(), picture(600, 400)
    usual = one(text=IMAGE, medias=[image], expand=True)
    small = one(text=IMAGE, medias=[image], expand=True, in_patch_limit=64)
    for got, limit in ((usual, 16384), (small, 64)):
        ((start, end),) = got.media_spans[0]
        assert end - start == one.image_processor.media_tokens_calculator(image, in_patch_limit=limit)
    assert len(small["pixel_values"]) < len(usual["pixel_values"])
    fixed = one(text=IMAGE, medias=[image], expand=True, fixed_output_tokens=7)
    assert fixed["input_ids"][0].count(PAD_ID) == 7
    raw = one(text=IMAGE, medias=[image], do_rescale=False, do_normalize=False)
    assert raw["pixel_values"].dtype == np.uint8


@pytest.mark.parametrize(
    ("keyword", "near"), [("in_patch_limits", "in_patch_limit"), ("paddding", "padding"), ("media", "medias")]
)
def test_misspelt_keywords_name_the_nearest(keyword, near):
    with pytest.raises(TypeError, match=f"{keyword!r}; did you mean '{near}'"):
        processor()(text="x", **{keyword: 1})


def test_a_tokenizer_that_is_not_kimis_is_an_error():
    others = make_tokenizer(special=["<|media_begin|>"])
    with pytest.raises(kjp.ConfigError, match=r"does not know `<\|media_pad\|>`.*add_special_tokens"):
        processor(tokenizer=others)
    unknown = make_tokenizer(special=["<|media_begin|>"], unk_token="[UNK]")
    with pytest.raises(kjp.ConfigError, match=r"does not know `<\|media_pad\|>`"):
        processor(tokenizer=unknown)


class Letters(PreTrainedTokenizer):
    """In Python alone, as the checkpoint's own tokenizer is."""

    vocab_size = 256

    def get_vocab(self):
        return {chr(k): k for k in range(256)} | self.added_tokens_encoder

    def _tokenize(self, text, **kwargs):  # noqa: ARG002
        return list(text)

    def _convert_token_to_id(self, token):
        return ord(token)

    def _convert_id_to_token(self, index):
        return chr(index)


def test_tokenizers_in_python_do_as_well():
    letters = Letters(pad_token="[PAD]", additional_special_tokens=SPECIAL)
    pad_id = letters.convert_tokens_to_ids(PAD)
    got = processor(tokenizer=letters)(
        text=[f"ab {VIDEO} c", "d"], medias=[film()], expand=True, padding=True, truncation=True, max_length=200
    )
    prompts = "".join(chunk["prompt"] for chunk in KimiImageProcessor().split_video_chunks(film()))
    ids = got["input_ids"][0]
    assert [ids[start:end] for start, end in got.media_spans[0]] == [[pad_id] * 4] * 3
    for start, end in reversed(got.media_spans[0]):
        ids[start:end] = [pad_id]
    assert ids == ids_of(f"ab {prompts} c", letters)
    assert got["input_ids"][1][1:] == [letters.pad_token_id] * (len(got["input_ids"][1]) - 1)


def test_what_is_no_image_processor_is_an_error():
    with pytest.raises(TypeError, match="`image_processor` must be a KimiImageProcessor; got "):
        KimiProcessor(TOKENIZER, KimiImageProcessor())
    with pytest.raises(TypeError):
        KimiProcessor(KimiImageProcessor(), None)


def test_transformers_names_keep_images_and_videos_apart():
    one = processor(names="transformers")
    got = one(text=f"{VIDEO}{IMAGE}", medias=[film(6), picture(60, 60)], expand=True)
    assert list(got) == ["input_ids", "attention_mask", "pixel_values", "image_grid_thw", "pixel_values_videos",
                         "video_grid_thw"]  # fmt: skip
    assert set(got) <= set(one.model_input_names)
    ids = got["input_ids"][0]
    video_id = TOKENIZER.convert_tokens_to_ids(VIDEO)
    assert ids.count(PAD_ID) == 9
    assert ids.count(video_id) == 2 * 4
    assert [ids[start] for start, _ in got.media_spans[0]] == [video_id, video_id, PAD_ID]


def test_saved_pickled_and_copied_processors_are_the_same(tmp_path):
    call = {"text": f"{IMAGE3}x", "medias": [picture(mode="RGBA")], "expand": True, "return_tensors": "np"}
    one = processor(K3, dtype="bfloat16", max_frames=7)
    want = one(**call)
    one.save_pretrained(tmp_path / "a")
    others = [
        KimiProcessor.from_pretrained(tmp_path / "a"),
        KimiProcessor.from_pretrained(str(tmp_path / "a")),
        AutoProcessor.from_pretrained(tmp_path / "a"),
        pickle.loads(pickle.dumps(one)),
        copy.deepcopy(one),
    ]
    for other in others:
        assert isinstance(other, KimiProcessor)
        assert other.image_processor.config == K3
        assert other.image_processor.options == one.image_processor.options
        assert_same(other(**call), want)
        assert other.apply_chat_template(MESSAGES) == MESSAGES_TEXT
    assert KimiImageProcessor.from_pretrained(tmp_path / "a").config == K3


def test_own_template_and_style_are_saved_too(tmp_path):
    one = KimiProcessor(KimiImageProcessor(media_proc_cfg=K3), TOKENIZER, chat_template="own", prompt_style="k2.5")
    one.save_pretrained(tmp_path)
    other = KimiProcessor.from_pretrained(tmp_path)
    assert other.apply_chat_template(MESSAGES) == "own"
    assert other.style.name == "k2.5"
    changed = KimiProcessor.from_pretrained(tmp_path, prompt_style="k3", chat_template="new", in_patch_limit=64)
    assert changed.apply_chat_template(MESSAGES) == "new"
    assert changed.style.name == "k3"
    assert changed.image_processor.config.in_patch_limit == 64


def test_parts_of_a_folder_can_be_replaced(tmp_path):
    processor(outputs="transformers").save_pretrained(tmp_path)
    mine = KimiImageProcessor(media_proc_cfg=K3)
    one = KimiProcessor.from_pretrained(tmp_path, image_processor=mine, tokenizer=TOKENIZER)
    assert one.image_processor is mine
    assert one.tokenizer is TOKENIZER
    assert one.outputs == "transformers"
    with pytest.raises(TypeError, match="'in_patch_limit' cannot be combined with `image_processor`"):
        KimiProcessor.from_pretrained(tmp_path, image_processor=mine, in_patch_limit=64)


@pytest.mark.parametrize("options", [{"do_normalize": False}, {"rescale_factor": 2}], ids=str)
def test_settings_of_images_are_not_left_to_the_tokenizer(tmp_path, options):
    processor().save_pretrained(tmp_path)
    with pytest.raises(kjp.ConfigError, match=next(iter(options))):
        KimiProcessor.from_pretrained(tmp_path, **options)
    bytes_alone = KimiProcessor.from_pretrained(tmp_path, do_normalize=False, do_rescale=False)
    assert bytes_alone(text=IMAGE, medias=picture())["pixel_values"].dtype == np.uint8
    with pytest.raises(TypeError, match="no `video_processor`: `image_processor` takes images and video"):
        KimiProcessor.from_pretrained(tmp_path, video_processor=3)


def test_a_checkpoints_folder_is_read_and_saving_into_it_leaves_nothing_old(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    KimiImageProcessor().save_pretrained(tmp_path)
    assert not (tmp_path / "processor_config.json").exists()
    one = KimiProcessor.from_pretrained(tmp_path, in_patch_limit=64)
    assert one.image_processor.config.in_patch_limit == 64
    one.save_pretrained(tmp_path)
    assert KimiProcessor.from_pretrained(tmp_path).image_processor.config.in_patch_limit == 64
    with pytest.raises(TypeError, match="'in_patch_limits'; did you mean 'in_patch_limit'"):
        KimiProcessor.from_pretrained(tmp_path, in_patch_limits=64)
    with pytest.raises(FileNotFoundError):
        KimiProcessor.from_pretrained(tmp_path / "nothing")


def test_inputs_are_a_models_and_survive_pickling():
    got = processor()(text=IMAGE, medias=[picture()], return_tensors="np")
    assert dict(**got).keys() == {"input_ids", "attention_mask", "pixel_values", "grid_thws"}
    assert set(got) == set(processor().model_input_names)
    assert got["media_spans"] == got.media_spans
    for other in (pickle.loads(pickle.dumps(got)), copy.deepcopy(got), copy.copy(got)):
        assert_same(other, got)


def test_decoding_is_the_tokenizers():
    got = processor()(text=["hello", "a world"])["input_ids"]
    assert processor().batch_decode(got) == ["hello", "a world"]
    assert processor().decode(got[0]) == "hello"
    assert processor().post_process_image_text_to_text(got) == ["hello", "a world"]


def test_a_part_that_holds_a_medium_says_its_type():
    messages = [{"role": "user", "content": [{"image": picture()}, {"text": "a"}]}]
    with pytest.raises(kjp.TextError, match="holds 'image' but has no 'type'"):
        processor()(messages=messages)
