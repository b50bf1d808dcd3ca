"""What stands for media in a text, and in its token ids: slots, prompts, expansion, spans. Knows no tokenizer.

K2.5: an image is one `<|media_pad|>` (its chat template writes the words around it), a video one
`<|kimi_k25_video_placeholder|>`, which becomes the prompts of its chunks with a pad each. K3: an image is one
`<|kimi_image_placeholder|>`, which becomes a prompt with the image's size and one pad. Source: the checkpoints' own
processors.
"""

import re
from collections.abc import Iterator, Sequence

from kimi_jax_prep._errors import MediaError

MEDIA_PAD = "<|media_pad|>"
VIDEO_PLACEHOLDER = "<|kimi_k25_video_placeholder|>"
IMAGE_PLACEHOLDER = "<|kimi_image_placeholder|>"
_SLOTS = re.compile("|".join(map(re.escape, (MEDIA_PAD, VIDEO_PLACEHOLDER, IMAGE_PLACEHOLDER))))
Span = tuple[int, int]


def find_slots(text: str) -> list[str]:
    """The placeholders in a text, in order."""
    return _SLOTS.findall(text)


def fill_slots(text: str, prompts: Sequence[str]) -> str:
    """The text with each placeholder replaced by the prompt of its medium.

    Args:
      prompts: one for each placeholder, in order.
    """
    waiting = iter(prompts)
    return _SLOTS.sub(lambda _: next(waiting), text)


def check_counts(found: int, expected: int, *, placeholder: str, media: str, where: str) -> None:
    """Refuse a text whose placeholders are not as many as its media.

    Raises:
      MediaError: giving both numbers.
    """
    if found != expected:
        raise MediaError(
            f"{where} has {found} `{placeholder}` for {expected} {media}; there is one for each. A text by a stranger "
            "may hold placeholders of its own: take them out first."
        )


def expand_pads(ids: Sequence[int], *, pad_id: int, counts: Sequence[int]) -> tuple[list[int], list[Span]]:
    """Token ids with each pad repeated as often as its medium has tokens.

    Args:
      ids: of one text, a pad for each medium.
      pad_id: of `<|media_pad|>`.
      counts: tokens of each medium, in order; 1 leaves a pad as it is.

    Returns:
      The ids, and for each medium where its pads are: half-open ranges of positions.

    Raises:
      MediaError: there are not as many pads as media.
    """
    check_counts(list(ids).count(pad_id), len(counts), placeholder=MEDIA_PAD, media="media", where="the tokenized text")
    waiting = iter(counts)
    expanded: list[int] = []
    spans: list[Span] = []
    for token in ids:
        if token == pad_id:
            start = len(expanded)
            expanded += [pad_id] * next(waiting)
            spans.append((start, len(expanded)))
        else:
            expanded.append(token)
    return expanded, spans


def truncate(ids: Sequence[int], spans: Sequence[Span], *, max_length: int, side: str) -> tuple[list[int], list[Span]]:
    """At most so many ids, cut on one side.

    Raises:
      MediaError: that would cut a medium's tokens off.
    """
    cut = max(len(ids) - max_length, 0)
    begin, end = (cut, len(ids)) if side == "left" else (0, len(ids) - cut)
    for start, stop in spans:
        if start < begin or stop > end:
            raise MediaError(
                f"truncation to {max_length} tokens would cut off a medium (tokens {start} to {stop} of {len(ids)}); "
                "allow more tokens, or give less text or smaller media."
            )
    return list(ids[begin:end]), [(start - begin, stop - begin) for start, stop in spans]


def shares(counts: Sequence[int]) -> Iterator[slice]:
    """One list cut into parts of these lengths."""
    start = 0
    for count in counts:
        yield slice(start, start + count)
        start += count
