"""What stands for media in a text: which placeholder is whose, what replaces it, and how many ids it becomes.

Pure: text and numbers, no pixels, no tokenizer. Placeholders and media are matched in one order, the text's, because
the model fills places in the order of the ids with patches in the order of the media.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
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


K25 = PromptStyle("k2.5", None, "<|kimi_k25_video_placeholder|>")
K3 = PromptStyle("k3", "<|kimi_image_placeholder|>", None)
STYLES = {style.name: style for style in (K25, K3)}


class Slot(NamedTuple):
    """One placeholder in a text and the media that it stands for."""

    start: int
    """Characters of the text, from here up to before `end`."""
    end: int
    kind: str
    """"pad" stays in the text; "image" and "video" are replaced."""
    medias: tuple[int, ...]
    """Indices of the media; several only where ready-made chunks stand for a video."""


def match(
    texts: Sequence[str], kinds: Sequence[str], style: PromptStyle, *, shares: Sequence[int] | None = None
) -> list[tuple[Slot, ...]]:
    """Give every placeholder its media.

    `<|media_pad|>` and an image placeholder stand for one image, `<|media_pad|>` also for one ready-made chunk. A video
    placeholder stands for one video, or for all ready-made chunks up to the next medium that is none.

    Args:
      texts: one or more.
      kinds: of all media, in order.
      shares: how many of the media belong to each text; without it they are dealt out in order.

    Raises:
      TextError: placeholders and media differ in number or order.
    """
    if shares is None:
        return _match_together(texts, kinds, 0, style, "the text has" if len(texts) == 1 else "the texts have")
    slots, first = [], 0
    for t, (text, share) in enumerate(zip(texts, shares, strict=True)):
        name = "the text has" if len(texts) == 1 else f"text[{t}] has"
        slots += _match_together([text], kinds[first : first + share], first, style, name)
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


def expanded(
    ids: Sequence[int], pad_id: int, counts: Sequence[int], *, fill: Sequence[int] | None = None
) -> tuple[list[int], list[tuple[int, int]]]:
    """Every `pad_id` as many times as its medium has tokens. Works on ids: no long text of pads is ever tokenized.

    Args:
      ids: of one text.
      counts: tokens of each medium, in order; ones leave the ids as they are.
      fill: the id to write for each medium, in place of `pad_id`.

    Returns:
      The ids, and where each medium is in them: (start, end), end not included.

    Raises:
      TextError: the ids hold another number of `pad_id` than there are media.
    """
    found = [k for k, value in enumerate(ids) if value == pad_id]
    if len(found) != len(counts):
        raise TextError(
            f"the tokenizer makes {len(found)} `{MEDIA_PAD}` ids of a text with {len(counts)}; `{MEDIA_PAD}` must be "
            "one of its special tokens."
        )
    longer: list[int] = []
    spans: list[tuple[int, int]] = []
    at = 0
    for k, count, value in zip(found, counts, fill or [pad_id] * len(counts), strict=True):
        longer += ids[at:k]
        spans.append((len(longer), len(longer) + count))
        longer += [value] * count
        at = k + 1
    return [*longer, *ids[at:]], spans


def _match_together(
    texts: Sequence[str], kinds: Sequence[str], first: int, style: PromptStyle, name: str
) -> list[tuple[Slot, ...]]:
    """As `match`, for texts that share these media, which are counted from `first`."""
    placeholders = {MEDIA_PAD: "pad", style.image_placeholder: "image", style.video_placeholder: "video"}
    pattern = re.compile("|".join(re.escape(word) for word in placeholders if word is not None))
    slots: list[list[Slot]] = [[] for _ in texts]
    at, order = 0, ""
    words = [(own, word) for own, text in zip(slots, texts, strict=True) for word in pattern.finditer(text)]
    for own, word in words:
        kind = placeholders[word[0]]
        taken = _taken(kind, kinds, at)
        if taken == 0:
            if at < len(kinds):
                order = f" The first that does not fit is medias[{first + at}] ({kinds[at]}) for `{word[0]}`."
            break
        own.append(Slot(word.start(), word.end(), kind, tuple(range(first + at, first + at + taken))))
        at += taken
    else:
        if at == len(kinds):
            return [tuple(own) for own in slots]
    found, have = Counter(word[0] for _, word in words), Counter(kinds)
    media = [f"{have['image']} images"]
    if style.video_placeholder is not None:
        media += [f"{have['video']} videos", f"{have['video_chunk']} video chunks"]
    counts = [f"{found[word]} `{word}`" for word in placeholders if word is not None]
    raise TextError(
        f"{name} {_listed(counts)} but the media are {_listed(media)}. They come in one order;"
        f"{_RULES[style.name]}{order}"
    )


_RULES = {
    "k2.5": f" each image and each ready-made chunk needs one `{MEDIA_PAD}`, each video or run of chunks one "
    f"`{K25.video_placeholder}`.",
    "k3": f" each image needs one `{K3.image_placeholder}` (or a ready prompt with its `{MEDIA_PAD}`).",
}


def _taken(kind: str, kinds: Sequence[str], at: int) -> int:
    """How many media, from `at` on, a placeholder of this kind takes; 0 if the next one is not for it."""
    due = kinds[at] if at < len(kinds) else None
    if kind != "video":
        return int(due == "image" or (due == "video_chunk" and kind == "pad"))
    end = at
    while end < len(kinds) and kinds[end] == "video_chunk":
        end += 1
    return 1 if due == "video" else end - at


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
