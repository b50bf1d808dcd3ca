"""Texts and ids that hold as many pads as their media have tokens already."""

import numpy as np
import pytest
from bits import assert_bit_equal
from hypothesis import given, settings
from hypothesis import strategies as st
from small_kimi import (
    IMAGE,
    IMAGE3,
    K3,
    PAD,
    PAD_ID,
    SPECIAL,
    TOKENIZER,
    VIDEO,
    film,
    ids_of,
    make_tokenizer,
    picture,
    processor,
)

import kimi_jax_prep as kjp

WIDE, TALL = picture(100, 57), picture(29, 64, seed=1)
TOKENS = (12, 6)
EXPANDED = f"a{IMAGE.replace(PAD, PAD * 12)}b{IMAGE.replace(PAD, PAD * 6)}"


def test_the_sizes_of_these_pictures():
    assert kjp.preprocess([WIDE, TALL]).num_tokens == TOKENS


@pytest.mark.parametrize("expand", [True, False])
def test_an_expanded_text_stays(expand):
    got = processor()(text=EXPANDED, medias=[WIDE, TALL], expand=expand)
    assert got["input_ids"] == [ids_of(EXPANDED)]
    assert [end - start for start, end in got.media_spans[0]] == list(TOKENS)
    assert all(got["input_ids"][0][a:b] == [PAD_ID] * (b - a) for a, b in got.media_spans[0])
    assert_bit_equal(got["pixel_values"], kjp.preprocess([WIDE, TALL]).pixel_values, what="pixels")


def test_one_medium_may_be_expanded_and_another_not():
    text = f"{IMAGE.replace(PAD, PAD * 12)}{IMAGE}{VIDEO}"
    medias = [WIDE, TALL, film(2)]
    want = processor()(text=f"{IMAGE}{IMAGE}{VIDEO}", medias=medias)
    got = processor()(text=text, medias=medias)
    assert got["input_ids"] == want["input_ids"]
    assert got.media_spans == want.media_spans
    short = processor()(text=text, medias=medias, expand=False)
    assert [b - a for a, b in short.media_spans[0]] == [12, 1, 1]


@pytest.mark.parametrize("number", [2, 11, 13, 24])
def test_any_other_number_is_an_error_with_both(number):
    text = IMAGE.replace(PAD, PAD * number)
    with pytest.raises(
        kjp.TextError, match=rf"A run of {number} .* of medias\[0\], which has 12 tokens; write 1 or 12"
    ):
        processor()(text=text, medias=[WIDE])
    with pytest.raises(kjp.TextError, match=r"of medias\[1\], which has 6 tokens; write 1 or 6"):
        processor()(text=f"{IMAGE}{IMAGE.replace(PAD, PAD * 7)}", medias=[WIDE, TALL])


def test_texts_of_a_batch_with_lists_of_their_own():
    texts = [EXPANDED, "alone", IMAGE]
    got = processor()(text=texts, medias=[[WIDE, TALL], [], [TALL]], padding=True)
    assert [[b - a for a, b in own] for own in got.media_spans] == [[12, 6], [], [6]]
    with pytest.raises(kjp.TextError, match=r"text\[2\] has 5 .* A run of 5 .* of medias\[2\], which has 6 tokens"):
        processor()(text=["x", EXPANDED, PAD * 5], medias=[[], [WIDE, TALL], [TALL]])


def test_overrides_count_for_the_number():
    image = picture(600, 400)
    count = processor().image_processor.media_tokens_calculator(image, in_patch_limit=64)
    text = IMAGE.replace(PAD, PAD * count)
    assert processor()(text=text, medias=[image], in_patch_limit=64)["input_ids"] == [ids_of(text)]
    with pytest.raises(kjp.TextError, match=f"A run of {count} "):
        processor()(text=text, medias=[image])


@pytest.mark.parametrize("kind", ["list", "rows", "np", "pt"])
def test_ids_stand_for_a_text(kind):
    text = f"a{IMAGE}b{IMAGE}"
    ids = ids_of(text)
    given = {"list": ids, "rows": [ids], "np": np.array(ids), "pt": None}[kind]
    if kind == "pt":
        given = pytest.importorskip("torch", reason="torch is an extra").tensor([ids])
    want = processor()(text=text, medias=[WIDE, TALL], return_tensors="np")
    got = processor()(input_ids=given, medias=[WIDE, TALL], return_tensors="np")
    assert got.media_spans == want.media_spans
    for name in want:
        assert_bit_equal(got[name], want[name], what=name)
    assert (
        processor()(input_ids=list(map(np.int64, ids)), medias=[WIDE, TALL])["input_ids"] == want["input_ids"].tolist()
    )
    assert processor()(input_ids=[np.array(ids)], medias=[WIDE, TALL])["input_ids"] == want["input_ids"].tolist()
    again = processor()(input_ids=got["input_ids"], medias=[WIDE, TALL], return_tensors="np")
    assert again["input_ids"].tolist() == want["input_ids"].tolist()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.sampled_from(["x ", "image", "video", "long"]), max_size=4), min_size=1, max_size=3))
def test_ids_are_as_their_text(texts):
    words = {"image": IMAGE, "video": VIDEO, "long": IMAGE.replace(PAD, PAD * 6)}
    media = {"image": WIDE, "video": film(5), "long": TALL}
    written = ["".join(words.get(piece, piece) for piece in pieces) for pieces in texts]
    medias = [[media[piece] for piece in pieces if piece in media] for pieces in texts]
    one = processor()
    want = one(text=written, medias=medias, padding=True)
    rows = [ids_of(text) for text in written]
    got = one(input_ids=rows, medias=medias, padding=True)
    assert got["input_ids"] == want["input_ids"]
    assert got["attention_mask"] == want["attention_mask"]
    assert got.media_spans == want.media_spans
    # Padded ids with their mask are the same text.
    length = max(map(len, rows))
    padded = [[TOKENIZER.pad_token_id] * (length - len(row)) + row for row in rows]
    mask = [[0] * (length - len(row)) + [1] * len(row) for row in rows]
    assert one(input_ids=padded, attention_mask=mask, medias=medias, padding=True)["input_ids"] == want["input_ids"]


def test_ids_of_k3_get_their_prompts():
    tokenizer = make_tokenizer((*SPECIAL, IMAGE3))
    one = processor(K3, tokenizer=tokenizer)
    ids = tokenizer(f"a{IMAGE3}b", add_special_tokens=False)["input_ids"]
    got = one(input_ids=ids, medias=[WIDE], return_tensors="np")
    want = one(text=f"a{IMAGE3}b", medias=[WIDE], return_tensors="np")
    assert got["input_ids"].tolist() == want["input_ids"].tolist()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("ids", ["text", [[1.5]], [["a"]], 3, {"a": 1}], ids=str)
def test_what_is_no_ids(ids):
    with pytest.raises(
        TypeError, match="`input_ids` must be a list of ints, a list of such lists, or an integer array; got "
    ):
        processor()(input_ids=ids)


def test_ids_come_alone():
    with pytest.raises(TypeError, match="either `text` or `messages` \\(or `input_ids`\\)"):
        processor()(input_ids=[1], text="a")
    with pytest.raises(TypeError, match="`attention_mask` is for `input_ids`"):
        processor()(text="a", attention_mask=[[1]])
    with pytest.raises(kjp.TextError, match=r"`attention_mask` has rows of \[2\] and `input_ids` of \[1\] ids"):
        processor()(input_ids=[1], attention_mask=[1, 1])
    with pytest.raises(kjp.TextError, match="`input_ids` is an empty list"):
        processor()(input_ids=[])
