"""Supervised fine-tuning: what the assistant says is learned, media and padding are not."""

import dataclasses

import pytest
from small_kimi import IMAGE, PAD_ID, SPECIAL, TEMPLATE, TOKENIZER, VIDEO, film, make_tokenizer, picture, processor
from transformers import PreTrainedTokenizerFast

import kimi_jax_prep as kjp
from kimi_jax_prep.processor import KimiImageProcessor, KimiProcessor

BODY = (
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'image' %}" + IMAGE + "{% elif c.type == 'video' %}" + VIDEO + "{% else %}{{ c.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>"
)
MARKED = (
    "{% for m in messages %}<|im_user|>{{ m.role }} {% if m.role == 'assistant' %}{% generation %}" + BODY + ""
    "{% endgeneration %}{% else %}" + BODY + "{% endif %}{% endfor %}"
)
CHAT = [
    {
        "role": "user",
        "content": [{"type": "image", "image": picture(100, 57)}, {"type": "text", "text": "what é is it"}],
    },
    {"role": "assistant", "content": "a picture of noise"},
    {"role": "user", "content": [{"type": "video", **film(6)}, {"type": "text", "text": "and this?"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "see "}, {"type": "image", "image": picture(29, 64)}]},
]
SHORT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hello world"}]


def trainer(**options) -> KimiProcessor:
    return KimiProcessor(KimiImageProcessor(), make_tokenizer(template=MARKED, **options))


def learned(labels: list[int], tokenizer=TOKENIZER) -> str:
    return tokenizer.decode([value for value in labels if value != -100])


def test_labels_are_what_the_assistant_says():
    got = trainer()(messages=CHAT, return_labels=True)
    (ids,), (labels,) = got["input_ids"], got["labels"]
    assert len(ids) == len(labels)
    assert all(label in (-100, value) for label, value in zip(labels, ids, strict=True))
    said = "see <|media_begin|>image<|media_content|><|media_end|><|im_end|>"
    assert learned(labels) == f"a picture of noise<|im_end|>{said}"
    assert PAD_ID not in labels
    assert "assistant_masks" not in got


def test_masks_are_the_tokenizers_where_there_are_no_media():
    one = trainer()
    want = one.tokenizer.apply_chat_template(SHORT, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    got = one.apply_chat_template(SHORT, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    assert got["input_ids"] == [want["input_ids"]]
    assert got["assistant_masks"] == [want["assistant_masks"]]


def test_masks_cover_the_assistants_media_and_move_with_expansion():
    one = trainer()
    for expand in (True, False):
        got = one(messages=CHAT, return_assistant_tokens_mask=True, expand=expand)
        (mask,), (ids,), spans = got["assistant_masks"], got["input_ids"], got.media_spans[0]
        assert [mask[a:b] for a, b in spans[:-1]] == [[0] * (b - a) for a, b in spans[:-1]]
        a, b = spans[-1]
        assert mask[a:b] == [1] * (b - a)
        words = [value for value, said in zip(ids, mask, strict=True) if said and value != PAD_ID]
        assert one.decode(words).startswith("a picture of noise<|im_end|>see ")


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_is_not_learned(side):
    one = trainer()
    alone = [one(messages=chat, return_labels=True) for chat in (CHAT, SHORT)]
    got = one(messages=[CHAT, SHORT], return_labels=True, padding=True, padding_side=side, return_tensors="np")
    assert got["labels"].shape == got["input_ids"].shape
    for k, single in enumerate(alone):
        (want,) = single["labels"]
        missing = got["labels"].shape[1] - len(want)
        row = [-100] * missing + want if side == "left" else want + [-100] * missing
        assert got["labels"][k].tolist() == row


def test_truncation_keeps_labels_in_step_and_never_cuts_a_medium():
    one = trainer()
    whole = one(messages=CHAT, return_labels=True)
    length = len(whole["input_ids"][0]) - 1
    cut = one(messages=CHAT, return_labels=True, truncation=True, max_length=length)
    assert cut["labels"][0] == whole["labels"][0][:length]
    assert cut["input_ids"][0] == whole["input_ids"][0][:length]
    start, end = whole.media_spans[0][-1]
    with pytest.raises(kjp.TextError, match=rf"overlap the ids of a medium, {start} to {end}"):
        one(messages=CHAT, return_labels=True, truncation=True, max_length=start + 1)


def test_a_tokenizer_without_offsets_finds_the_same_turns():
    class NoOffsets(PreTrainedTokenizerFast):
        is_fast = False

    fast = make_tokenizer(template=MARKED)
    slow = NoOffsets(
        tokenizer_object=fast.backend_tokenizer,
        pad_token="[PAD]",
        additional_special_tokens=SPECIAL,
    )
    slow.chat_template = MARKED
    want = KimiProcessor(KimiImageProcessor(), fast)(messages=CHAT, return_labels=True)
    got = KimiProcessor(KimiImageProcessor(), slow)(messages=CHAT, return_labels=True)
    assert got["labels"] == want["labels"]


def test_a_template_that_marks_nothing_is_an_error():
    with pytest.raises(kjp.ConfigError, match=r"does not mark what the assistant writes; put \{% generation %\}"):
        processor(tokenizer=make_tokenizer(template=TEMPLATE))(messages=SHORT, return_labels=True)
    with pytest.raises(TypeError, match="need `messages`: only a chat template marks"):
        processor()(text="a", return_labels=True)


def test_a_tokenizer_that_renders_otherwise_is_an_error():
    class Otherwise(PreTrainedTokenizerFast):
        def apply_chat_template(self, *args, **kwargs):
            return "!" + super().apply_chat_template(*args, **kwargs)

    backend = make_tokenizer().backend_tokenizer
    tokenizer = Otherwise(tokenizer_object=backend, pad_token="[PAD]", chat_template=MARKED)
    one = KimiProcessor(KimiImageProcessor(), tokenizer)
    assert one.apply_chat_template(SHORT).startswith("!")
    with pytest.raises(kjp.TextError, match="writes another text than its template alone"):
        one(messages=SHORT, return_labels=True)


def test_variables_of_the_template_are_keywords():
    one = processor()
    want = one.apply_chat_template(SHORT, add_generation_prompt=True, chat_template_kwargs={"thinking": True})
    assert want.endswith("think")
    assert one.apply_chat_template(SHORT, add_generation_prompt=True, thinking=True) == want
    got = one.apply_chat_template(SHORT, tokenize=True, add_generation_prompt=True, thinking=True)
    assert got["input_ids"] == one(text=want)["input_ids"]
    assert one(messages=SHORT, add_generation_prompt=True, thinking=True)["input_ids"] == got["input_ids"]
    with pytest.raises(TypeError, match="'thinkin'"):
        one(messages=SHORT, thinkin=True)
    with pytest.raises(TypeError, match="'thinking'"):
        one(text="a", thinking=True)
    with pytest.raises(TypeError, match="'thinkin'"):
        one.apply_chat_template(SHORT, thinkin=True)


@pytest.mark.parametrize("key", ["url", "base64", "path", "image"])
def test_parts_hold_media_under_transformers_keys(key, tmp_path):
    from small_kimi import data_url

    url = data_url(picture())
    content = {"url": url, "image": url, "base64": url.partition(",")[2], "path": str(tmp_path / "a.png")}[key]
    picture().save(tmp_path / "a.png")
    messages = [{"role": "user", "content": [{"type": "image", key: content}]}]
    got = processor()(messages=messages, allow_paths=key == "path")
    assert got["pixel_values"].tobytes() == kjp.preprocess([picture()]).pixel_values.tobytes()
    if key == "path":
        with pytest.raises(kjp.MediaError, match="allow_paths"):
            processor()(messages=messages)


def test_sampling_is_the_checkpoints():
    one = processor()
    frames = film(5)["video"]
    want = one(text=VIDEO, videos=frames)
    assert one(text=VIDEO, videos=frames, do_sample_frames=False)["input_ids"] == want["input_ids"]
    assert (
        one(text=IMAGE, images=picture(), num_frames=2, fps=None)["input_ids"]
        == one(text=IMAGE, images=picture())["input_ids"]
    )
    for options in ({"num_frames": 2}, {"fps": 1}, {"do_sample_frames": True}):
        with pytest.raises(kjp.PlanError, match=r"the config's `sample_fps` decides"):
            one(text=VIDEO, videos=frames, **options)
    with pytest.raises(kjp.PlanError, match="do_sample_frames=False: the config's"):
        one(text=VIDEO, medias=[film(5)], do_sample_frames=False)


def test_types_of_tokens_tell_images_from_videos():
    got = processor()(text=f"a{IMAGE}{VIDEO}", medias=[picture(100, 57), film(2)], return_mm_token_type_ids=True)
    (types,), (ids,) = got["mm_token_type_ids"], got["input_ids"]
    (a, b), (c, d) = got.media_spans[0]
    assert len(types) == len(ids)
    assert types[a:b] == [1] * 12
    assert types[c:d] == [2] * 4
    assert sum(types) == 12 + 2 * 4


def test_messages_may_be_dataclasses():
    @dataclasses.dataclass
    class Part:
        type: str
        image: object = None
        text: str | None = None

    @dataclasses.dataclass
    class Message:
        role: str
        content: list
        tool_calls: list | None = None

    parts = [Part("image", image=picture()), Part("text", text="what?")]
    dicts = [{"type": "image", "image": picture()}, {"type": "text", "text": "what?"}]
    got = processor()(messages=[Message("user", parts)])
    assert got["input_ids"] == processor()(messages=[{"role": "user", "content": dicts}])["input_ids"]


def test_keywords_in_groups():
    one, image = processor(), picture(600, 400)
    want = one(text=[IMAGE, "x"], medias=[image], padding=True, in_patch_limit=64)
    got = one(text=[IMAGE, "x"], medias=[image], text_kwargs={"padding": True}, images_kwargs={"in_patch_limit": 64})
    assert got["input_ids"] == want["input_ids"]
    with pytest.raises(kjp.PlanError, match="'padding' is given twice, once in `text_kwargs`"):
        one(text="x", padding=True, text_kwargs={"padding": True})
