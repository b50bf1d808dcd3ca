"""Placeholders, token rows and messages: text and numbers alone."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_jax_prep.errors import PlanError, TextError
from kimi_jax_prep.text.messages import is_batch, split_messages
from kimi_jax_prep.text.placeholders import K3, K25, MEDIA_PAD, Slot, expanded, match, replaced
from kimi_jax_prep.text.rows import Lengths, TokenRow, cut, lengths_of, padded

PAD, VIDEO, IMAGE3 = MEDIA_PAD, K25.video_placeholder, K3.image_placeholder


def medias_of(texts, kinds, style=K25, **options):
    return [[slot.medias for slot in own] for own in match(texts, kinds, style, **options)]


def test_a_slot_is_a_place_in_the_text_and_its_media():
    assert match([f"ab{PAD}c"], ["image"], K25) == [(Slot(2, 2 + len(PAD), "pad", (0,)),)]
    assert match([f"{IMAGE3}{PAD}"], ["image", "image"], K3)[0][0].kind == "image"


@pytest.mark.parametrize(
    ("text", "kinds", "medias"),
    [
        ("", [], []),
        (f"{PAD}{PAD}", ["image", "image"], [(0,), (1,)]),
        (f"{VIDEO} {PAD}", ["video", "image"], [(0,), (1,)]),
        (PAD, ["video_chunk"], [(0,)]),
        (f"{VIDEO}{PAD}", ["video_chunk", "video_chunk", "image"], [(0, 1), (2,)]),
        (f"{PAD}{VIDEO}", ["video_chunk", "video_chunk"], [(0,), (1,)]),
        (f"{VIDEO}{VIDEO}", ["video_chunk", "video"], [(0,), (1,)]),
    ],
)
def test_media_are_matched_in_the_order_of_the_text(text, kinds, medias):
    assert medias_of([text], kinds) == [medias]


def test_one_list_is_dealt_out_and_shares_are_kept():
    assert medias_of([PAD, "", f"{PAD}{PAD}"], ["image"] * 3) == [[(0,)], [], [(1,), (2,)]]
    assert medias_of([PAD, "", f"{PAD}{PAD}"], ["image"] * 3, shares=[1, 0, 2]) == [[(0,)], [], [(1,), (2,)]]
    with pytest.raises(TextError, match=r"text\[0\] has 1 .* 2 images"):
        match([PAD, f"{PAD}{PAD}"], ["image"] * 3, K25, shares=[2, 1])


@pytest.mark.parametrize(
    ("text", "kinds", "message"),
    [
        (f"{PAD}{PAD}", ["image"], r"2 `<\|media_pad\|>` and 0 .* but the call has 1 image, 0 videos and 0 video"),
        ("", ["image"], r"0 `<\|media_pad\|>` and 0 .* 1 image"),
        (PAD, [], r"1 `<\|media_pad\|>` and 0 .* 0 images"),
        (PAD, ["video"], r"1 `<\|media_pad\|>` .* 1 video .*medias\[0\] \(video\) for `<\|media_pad\|>`"),
        (VIDEO, ["image"], r"medias\[0\] \(image\) for `<\|kimi_k25_video_placeholder\|>`"),
        (f"{PAD}{VIDEO}", ["video", "image"], r"1 .* and 1 .* 1 image, 1 video .*medias\[0\]"),
        (f"{VIDEO}{VIDEO}", ["video_chunk"] * 4, r"2 `<\|kimi_k25_video_placeholder\|>`.* 4 video chunks"),
        (f"{IMAGE3}", ["image"], r"0 `<\|media_pad\|>`"),
    ],
)
def test_wrong_numbers_and_orders_are_errors_with_both_numbers(text, kinds, message):
    with pytest.raises(TextError, match=r"(?s)" + message):
        match([text], kinds, K25)


def test_k3_has_placeholders_and_finished_prompts():
    assert medias_of([f"{IMAGE3}x{PAD}"], ["image", "image"], K3) == [[(0,), (1,)]]
    assert medias_of([VIDEO], [], K3) == [[]]  # no token of K3's
    with pytest.raises(TextError, match=r"1 `<\|media_pad\|>` and 1 `<\|kimi_image_placeholder\|>`, .* 1 image\."):
        match([f"{IMAGE3}{PAD}"], ["image"], K3)


def test_only_placeholders_that_do_not_stay_are_replaced():
    text = f"a{PAD}b{VIDEO}c"
    (slots,) = match([text], ["image", "video_chunk", "video_chunk"], K25)
    assert replaced(text, slots, ["never", f"1{PAD}", f"2{PAD}"]) == f"a{PAD}b1{PAD}2{PAD}c"
    # A prompt that looks like a placeholder is not replaced again.
    (slots,) = match([VIDEO], ["video"], K25)
    assert replaced(VIDEO, slots, [f"{VIDEO}{PAD}"]) == f"{VIDEO}{PAD}"


@given(st.lists(st.integers(0, 5)), st.data())
def test_expanding_keeps_all_other_ids(ids, data):
    pads = ids.count(0)
    counts = data.draw(st.lists(st.integers(1, 7), min_size=pads, max_size=pads))
    before = list(ids)
    longer, spans = expanded(ids, 0, counts)
    assert ids == before
    assert [end - start for start, end in spans] == counts
    assert all(longer[start:end] == [0] * (end - start) for start, end in spans)
    inside = {k for start, end in spans for k in range(start, end)}
    assert [i for k, i in enumerate(longer) if k not in inside] == [i for i in ids if i != 0]
    for start, end in reversed(spans):
        longer[start:end] = [0]
    assert longer == ids


def test_expanding_writes_another_id_where_asked():
    assert expanded([1, 0, 2, 0], 0, [2, 3], fill=[0, 9]) == ([1, 0, 0, 2, 9, 9, 9], [(1, 3), (4, 7)])


def test_a_tokenizer_that_loses_pads_is_an_error():
    with pytest.raises(TextError, match=r"1 ids of `<\|media_pad\|>` for a text with 2"):
        expanded([0, 1], 0, [3, 4])


# Rows: 10 and 11 are the tokenizer's own, 0 is the medium.
ROW = TokenRow([10, 1, 2, 0, 0, 3, 4, 11], [(3, 5)], [1] * 8)


@pytest.mark.parametrize(
    ("side", "ends", "length", "ids", "spans"),
    [
        ("right", (0, 0), 8, ROW.ids, [(3, 5)]),
        ("right", (0, 0), 5, [10, 1, 2, 0, 0], [(3, 5)]),
        ("right", (1, 1), 6, [10, 1, 2, 0, 0, 11], [(3, 5)]),
        ("left", (0, 0), 5, [0, 0, 3, 4, 11], [(0, 2)]),
        ("left", (1, 1), 6, [10, 0, 0, 3, 4, 11], [(1, 3)]),
    ],
)
def test_cutting_moves_spans_and_keeps_the_tokenizers_own_ids(side, ends, length, ids, spans):
    lengths = Lengths(truncation=True, max_length=length, truncation_side=side)
    assert cut(ROW, lengths, before=ends[0], after=ends[1]) == TokenRow(ids, spans, [1] * length)


@pytest.mark.parametrize(("side", "length"), [("right", 4), ("right", 2), ("left", 4), ("left", 1)])
def test_a_medium_is_never_cut(side, length):
    with pytest.raises(TextError, match=rf"8 ids.*`max_length` = {length} .* of a medium, 3 to 5"):
        cut(ROW, Lengths(truncation=True, max_length=length, truncation_side=side))


def test_the_tokenizers_own_ids_are_never_cut():
    with pytest.raises(TextError, match="the tokenizer adds 2 ids of its own"):
        cut(TokenRow([10, 1, 11], [], [1] * 3), Lengths(truncation=True, max_length=1), before=1, after=1)


def test_without_truncation_nothing_is_cut():
    assert cut(ROW, Lengths(max_length=2)) == ROW


SHORT = TokenRow([1, 0], [(1, 2)], [1, 1])


def test_padding_moves_spans_on_the_left_side_only():
    right = padded([ROW, SHORT], Lengths(padding="longest"), 7)
    assert right[0] == ROW
    assert right[1] == TokenRow([1, 0, 7, 7, 7, 7, 7, 7], [(1, 2)], [1, 1, 0, 0, 0, 0, 0, 0])
    left = padded([SHORT], Lengths(padding="max_length", max_length=4, padding_side="left"), 7)
    assert left == [TokenRow([7, 7, 1, 0], [(3, 4)], [0, 0, 1, 1])]
    (multiple,) = padded([SHORT], Lengths(padding="longest", pad_to_multiple_of=3), 7)
    assert multiple.ids == [1, 0, 7]
    assert padded([ROW], Lengths(padding="max_length", max_length=4), None) == [ROW]
    assert padded([ROW, SHORT], Lengths(), None) == [ROW, SHORT]
    with pytest.raises(PlanError, match="needs a `pad_token`"):
        padded([ROW, SHORT], Lengths(padding="longest"), None)


class Sided:
    padding_side, truncation_side, model_max_length = "left", "left", 10


def test_where_a_call_is_silent_the_tokenizer_decides():
    assert lengths_of(Sided(), {}) == Lengths(None, False, 10, None, "left", "left")
    given = {"padding": True, "truncation": "longest_first", "max_length": 5, "padding_side": "right"}
    assert lengths_of(Sided(), given) == Lengths("longest", True, 5, None, "right", "left")
    assert lengths_of(object(), {"padding": "do_not_pad", "truncation": False}) == Lengths()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"padding": "longst"}, "`padding` is 'longst'; expected one of .*longest"),
        ({"truncation": "only_second"}, "`truncation` is 'only_second'"),
        ({"max_length": 0}, "`max_length` is 0"),
        ({"pad_to_multiple_of": 1.5}, "`pad_to_multiple_of` is 1.5"),
        ({"padding_side": "top"}, "`padding_side` is 'top'; expected one of left, right"),
        ({"padding": "max_length"}, "needs `max_length`"),
        ({"padding": []}, r"`padding` is \[\]"),
    ],
)
def test_impossible_lengths_are_errors(given, message):
    with pytest.raises(PlanError, match=message):
        lengths_of(object(), given)


def test_messages_give_up_their_media_and_stay_as_they_were():
    url = "data:image/png;base64," + "A" * 1000
    messages = [
        {"role": "system", "content": "be brief"},
        {
            "role": "user",
            "name": "ann",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image", "image": b"1", "detail": "high"},
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "image_url", "image_url": url},
                {"type": "image", "url": url},
                {"type": "video", "video": b"2", "fps": 3.0},
                {"type": "video_url", "video_url": {"url": "data:video/mp4,x"}},
                {"type": "video_chunk", "video_chunk": [b"3"], "prompt": "p"},
                {"type": "video_chunk", "video_chunk": [b"4"], "prompt": "q"},
                {"type": "image"},
                "plain",
            ],
        },
        {"role": "assistant", "tool_calls": [{"id": 1}]},
    ]
    before = copy.deepcopy(messages)
    slim, medias = split_messages(messages)
    assert messages == before
    assert medias == [
        {"type": "image", "image": b"1"},
        *[{"type": "image", "image": url}] * 3,
        {"type": "video", "video": b"2", "fps": 3.0},
        {"type": "video", "video": "data:video/mp4,x"},
        messages[1]["content"][7:9],
        None,
    ]
    assert slim[0] == messages[0]
    assert slim[2] == messages[2]
    assert "AAA" not in repr(slim)
    kinds = [part.get("type") for part in slim[1]["content"][:-1]]
    assert kinds == ["text", "image", "image_url", "image_url", "image", "video", "video_url", "video", "image"]
    assert slim[1]["content"][2] == {"type": "image_url", "image_url": {"url": ""}}
    assert slim[1]["content"][-1] == "plain"
    assert slim[1]["name"] == "ann"


def test_what_is_no_conversation_is_an_error():
    assert is_batch([[{"role": "user"}]])
    assert not is_batch([{"role": "user"}])
    with pytest.raises(TextError, match=r"messages\[0\] is a str"):
        split_messages(["hello"])
    with pytest.raises(TextError, match="at least one message"):
        split_messages([])
