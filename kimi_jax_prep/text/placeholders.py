"""Which placeholder of a text stands for which medium, what replaces it, and how many ids it becomes.

Pure: text and numbers, no pixels, no tokenizer. Placeholders and media have one order, the text's, because the model
fills the media's ids, in their order, with the patches of the media, in theirs.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kimi_jax_prep.errors import TextError

MEDIA_PAD = "<|media_pad|>"
"""The one token of an image or video chunk, in every prompt."""


class PromptStyle(NamedTuple):
    """How a model's texts show media. Kinds are "image", "video_chunk" and "video"."""

    name: str
    image_placeholder: str | None
    """Replaced by an image's prompt. None: texts hold the prompt itself, with its `<|media_pad|>`."""
    video_placeholder: str | None
    """Replaced by the prompts of a video's chunks, one after another. None: the model takes no video."""

    @property
    def words(self) -> dict[str, str]:
        """Every placeholder with the kind of its marks: "pad", "image" or "video"."""
        words = {MEDIA_PAD: "pad", self.image_placeholder: "image", self.video_placeholder: "video"}
        return {word: kind for word, kind in words.items() if word is not None}


K25 = PromptStyle("k2.5", None, "<|kimi_k25_video_placeholder|>")
K3 = PromptStyle("k3", "<|kimi_image_placeholder|>", None)
STYLES = {style.name: style for style in (K25, K3)}


class Mark(NamedTuple):
    """One placeholder as it was found: `start` to `end`, in characters of a text or in ids."""

    start: int
    end: int
    kind: str
    """"pad" stays where it is; "image" and "video" are replaced."""


class Slot(NamedTuple):
    """A place in a text (or in ids) and the media that it stands for."""

    start: int
    """Characters of the text (or ids), from here up to before `end`."""
    end: int
    kind: str
    """"pad" stays in the text; "image" and "video" are replaced."""
    medias: tuple[int, ...]
    """Indices of the media; several only where ready-made chunks stand for a video."""
    pads: int = 1
    """`<|media_pad|>` that are there for the medium: 1, or its number of tokens where the text is expanded already."""


@dataclass(frozen=True, slots=True)
class MediaList:
    """What matching needs to know of the media of a call."""

    kinds: Sequence[str]
    runs: Sequence[int | None] | None = None
    """For each medium, the number of the list of chunks that it came in. None: consecutive chunks are one video."""
    tokens: Sequence[int] | None = None
    """For each medium, its number of tokens, to recognise texts that are expanded already. 0 for videos."""


def marks_in_text(text: str, style: PromptStyle) -> list[Mark]:
    """The placeholders of a text, in order."""
    words = style.words
    pattern = re.compile("|".join(map(re.escape, words)))
    return [Mark(word.start(), word.end(), words[word[0]]) for word in pattern.finditer(text)]


def marks_in_ids(ids: Sequence[int], kinds: Mapping[int, str]) -> list[Mark]:
    """The placeholders among token ids, in order.

    Args:
      kinds: of the ids of placeholders.
    """
    return [Mark(k, k + 1, kinds[value]) for k, value in enumerate(ids) if value in kinds]


def match(
    texts: Sequence[str],
    kinds: Sequence[str],
    style: PromptStyle,
    *,
    shares: Sequence[int] | None = None,
    runs: Sequence[int | None] | None = None,
    tokens: Sequence[int] | None = None,
) -> list[tuple[Slot, ...]]:
    """Give every placeholder of these texts its media: `match_marks` of the placeholders that the texts hold."""
    found = [marks_in_text(text, style) for text in texts]
    return match_marks(found, MediaList(kinds, runs, tokens), style, shares=shares)


def match_marks(
    marks: Sequence[Sequence[Mark]], media: MediaList, style: PromptStyle, *, shares: Sequence[int] | None = None
) -> list[tuple[Slot, ...]]:
    """Give every placeholder its media.

    `<|media_pad|>` and an image placeholder stand for one image, `<|media_pad|>` also for one ready-made chunk. A video
    placeholder stands for one video, or for the chunks of one: those of one list, or else all up to the next medium
    that is no chunk. Where single `<|media_pad|>` do not fit the media, a run of them may stand for one medium: exactly
    as many as the medium has tokens.

    Args:
      marks: of each text.
      shares: how many of the media belong to each text; without it they are dealt out in order.

    Raises:
      TextError: placeholders and media differ in number or order.
    """
    if shares is None:
        return _match_together(marks, 0, media, style, "the text has" if len(marks) == 1 else "the texts have")
    slots, first = [], 0
    for t, (own, share) in enumerate(zip(marks, shares, strict=True)):
        name = "the text has" if len(marks) == 1 else f"text[{t}] has"
        cut = slice(first, first + share)
        part = MediaList(media.kinds[cut], media.runs and media.runs[cut], media.tokens and media.tokens[cut])
        slots += _match_together([own], first, part, style, name)
        first += share
    return slots


def replaced(text: str, slots: Iterable[Slot], prompts: Sequence[str]) -> str:
    """The text with prompts in place of those placeholders that do not stay.

    Args:
      slots: of `match`, for this text.
      prompts: what stands for each medium, indexed as the slots' `medias`.
    """
    parts, at = [], 0
    for slot in slots:
        if slot.kind != "pad":
            parts += [text[at : slot.start], *(prompts[i] for i in slot.medias)]
            at = slot.end
    return "".join([*parts, text[at:]])


def replaced_ids(ids: Sequence[int], slots: Iterable[Slot], prompts: Mapping[int, Sequence[int]]) -> list[int]:
    """As `replaced`, for token ids.

    Args:
      prompts: the ids that stand for each medium whose placeholder is replaced.
    """
    longer: list[int] = []
    at = 0
    for slot in slots:
        if slot.kind != "pad":
            longer += ids[at : slot.start]
            for i in slot.medias:
                longer += prompts[i]
            at = slot.end
    return [*longer, *ids[at:]]


def moved(place: int, slots: Iterable[Slot], prompts: Sequence[str]) -> int:
    """Where a character of the text is after `replaced`. Inside a placeholder: where its replacement ends."""
    shift = 0
    for slot in slots:
        if slot.kind == "pad" or place <= slot.start:
            continue
        length = sum(len(prompts[i]) for i in slot.medias)
        if place < slot.end:
            return slot.start + shift + length
        shift += length - (slot.end - slot.start)
    return place + shift


def expanded(
    ids: Sequence[int],
    pad_id: int,
    counts: Sequence[int],
    *,
    fill: Sequence[int] | None = None,
    present: Sequence[int] | None = None,
) -> tuple[list[int], list[tuple[int, int]]]:
    """Every `pad_id` as many times as its medium has tokens. Works on ids: no long text of pads is ever tokenized.

    Args:
      ids: of one text.
      counts: ids to write for each medium, in order; ones leave the ids as they are.
      fill: the id to write for each medium, in place of `pad_id`.
      present: how many `pad_id` there are for each medium; by default one.

    Returns:
      The ids, and where each medium is in them: (start, end), end not included.

    Raises:
      TextError: the ids hold another number of `pad_id` than the text.
    """
    found = [k for k, value in enumerate(ids) if value == pad_id]
    present = present or [1] * len(counts)
    if len(found) != sum(present):
        raise TextError(
            f"the tokenizer returns {len(found)} ids of `{MEDIA_PAD}` for a text with {sum(present)}; `{MEDIA_PAD}` "
            "must be one of its special tokens."
        )
    longer: list[int] = []
    spans: list[tuple[int, int]] = []
    at = first = 0
    for there, count, value in zip(present, counts, fill or [pad_id] * len(counts), strict=True):
        start, end = found[first], found[first + there - 1] + 1
        longer += ids[at:start]
        spans.append((len(longer), len(longer) + count))
        longer += [value] * count
        at, first = end, first + there
    return [*longer, *ids[at:]], spans


def may_be_expanded(marks: Iterable[Sequence[Mark]]) -> bool:
    """Whether `<|media_pad|>` follow one another, so that matching needs the media's numbers of tokens."""
    return any(_run_length(own, k) > 1 for own in marks for k in range(len(own)))


def stretched(values: Sequence[int], before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]) -> list[int]:
    """A value for each id after `expanded`, from one for each id before.

    Args:
      before, after: the spans of the media.
    """
    longer: list[int] = []
    at = 0
    for (start, end), (first, last) in zip(before, after, strict=True):
        longer += values[at:start]
        longer += [values[start]] * (last - first)
        at = end
    return [*longer, *values[at:]]


def _match_together(
    marks: Sequence[Sequence[Mark]], first: int, media: MediaList, style: PromptStyle, name: str
) -> list[tuple[Slot, ...]]:
    """As `match_marks`, for texts that share these media, which are counted from `first`."""
    slots, fault = _one_by_one(marks, first, media, style)
    if slots is None and media.tokens is not None:
        slots, fault_of_run = _run_by_run(marks, first, media)
        fault = fault_of_run or fault
    if slots is not None:
        return slots
    found, have = Counter(mark.kind for own in marks for mark in own), Counter(media.kinds)
    counts = [f"{found[kind]} `{word}`" for word, kind in style.words.items()]
    medias = [_counted(have["image"], "image")]
    if style.video_placeholder is not None:
        medias += [_counted(have["video"], "video"), _counted(have["video_chunk"], "video chunk")]
    raise TextError(
        f"{name} {_listed(counts)}, but the call has {_listed(medias)}. Placeholders and media must have the same "
        f"order: {_RULES[style.name]}{fault}"
    )


_RULES = {
    "k2.5": f"each image and each ready-made chunk needs one `{MEDIA_PAD}`, each video one "
    f"`{K25.video_placeholder}`, and so does the list of the chunks of a video.",
    "k3": f"each image needs one `{K3.image_placeholder}` (or a finished prompt with its `{MEDIA_PAD}`).",
}

_Matched = tuple[list[tuple[Slot, ...]] | None, str]


def _one_by_one(marks: Sequence[Sequence[Mark]], first: int, media: MediaList, style: PromptStyle) -> _Matched:
    """Slots where every mark is a placeholder; or None, and what the first misfit is."""
    words = {kind: word for word, kind in style.words.items()}
    slots: list[list[Slot]] = [[] for _ in marks]
    at = 0
    for own, mark in ((own, mark) for own, found in zip(slots, marks, strict=True) for mark in found):
        taken = _taken(mark.kind, media, at)
        if taken == 0:
            if at >= len(media.kinds):
                return None, ""
            return None, f" The first mismatch is medias[{first + at}] ({media.kinds[at]}) for `{words[mark.kind]}`."
        own.append(Slot(*mark, medias=tuple(range(first + at, first + at + taken))))
        at += taken
    return ([tuple(own) for own in slots] if at == len(media.kinds) else None), ""


def _run_by_run(marks: Sequence[Sequence[Mark]], first: int, media: MediaList) -> _Matched:
    """Slots where adjacent `<|media_pad|>` may stand for one medium; or None, and which run has a wrong length."""
    tokens = media.tokens or ()
    slots: list[list[Slot]] = [[] for _ in marks]
    at = 0
    for own, found in zip(slots, marks, strict=True):
        k = 0
        while k < len(found):
            mark, length = found[k], _run_length(found, k)
            taken = _taken(mark.kind, media, at)
            if taken == 0:
                return None, ""
            if mark.kind != "pad" or length == 1:
                own.append(Slot(*mark, medias=tuple(range(first + at, first + at + taken))))
                k, at = k + 1, at + taken
                continue
            if tokens[at] > length or (tokens[at] < length and _taken("pad", media, at + 1) == 0):
                return None, (
                    f" A run of {length} `{MEDIA_PAD}` is at the place of medias[{first + at}], which has "
                    f"{tokens[at]} tokens; write 1 or {tokens[at]}."
                )
            end = k + tokens[at]
            own.append(Slot(mark.start, found[end - 1].end, "pad", (first + at,), tokens[at]))
            k, at = end, at + 1
    return ([tuple(own) for own in slots] if at == len(media.kinds) else None), ""


def _run_length(marks: Sequence[Mark], k: int) -> int:
    """How many pads follow one another without anything between, from the k-th mark on."""
    end = k + 1
    while end < len(marks) and marks[end].kind == "pad" == marks[k].kind and marks[end].start == marks[end - 1].end:
        end += 1
    return end - k


def _taken(kind: str, media: MediaList, at: int) -> int:
    """How many media, from `at` on, a placeholder of this kind takes; 0 if the next one is not for it."""
    due = media.kinds[at] if at < len(media.kinds) else None
    if kind != "video":
        return int(due == "image" or (due == "video_chunk" and kind == "pad"))
    if due == "video":
        return 1
    end = at
    while end < len(media.kinds) and media.kinds[end] == "video_chunk" and _run(media, end) == _run(media, at):
        end += 1
    return end - at


def _run(media: MediaList, i: int) -> int | None:
    return None if media.runs is None else media.runs[i]


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
