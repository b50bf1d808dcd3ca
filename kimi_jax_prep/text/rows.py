"""Rows of token ids: truncated or padded to a length, with the spans of media and the assistant's turns kept right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kimi_jax_prep.checks import positive_int
from kimi_jax_prep.errors import PlanError, TextError

KEYWORDS = ("padding", "truncation", "max_length", "pad_to_multiple_of", "padding_side", "truncation_side")
_PADDING = {"False": None, "None": None, "do_not_pad": None, "True": "longest", "longest": "longest"}
_PADDING["max_length"] = "max_length"
_TRUNCATION = {"False": False, "None": False, "do_not_truncate": False, "True": True, "longest_first": True}
_TRUNCATION["only_first"] = True
_SIDES = {"left": "left", "right": "right"}
IGNORED = -100
"""The label that losses of torch and transformers leave out."""
# transformers has such a number where a tokenizer has no limit.
_NO_LIMIT = 10**20


class TokenRow(NamedTuple):
    """Ids of one text and where its media are."""

    ids: list[int]
    spans: list[tuple[int, int]]
    """(start, end) in `ids`, end not included."""
    mask: list[int]
    """1 for ids of the text, 0 for padding."""
    assistant: list[int] | None = None
    """1 for ids of the assistant's turns, 0 for all others; None where nobody asked for them."""

    @property
    def labels(self) -> list[int]:
        """The ids that a model learns to write: those of the assistant's turns, without media; `IGNORED` elsewhere."""
        learned = list(self.assistant or [0] * len(self.ids))
        for start, end in self.spans:
            learned[start:end] = [0] * (end - start)
        return [value if learn else IGNORED for value, learn in zip(self.ids, learned, strict=True)]


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long the rows of a call are to be."""

    padding: str | None = None
    """None, "longest" or "max_length"."""
    truncation: bool = False
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    padding_side: str = "right"
    truncation_side: str = "right"


def lengths_of(tokenizer: Any, given: Mapping[str, Any]) -> Lengths:
    """The lengths that a call asks for, by the keywords of transformers' tokenizers; by default the tokenizer's own.

    Args:
      given: some of `KEYWORDS`.

    Raises:
      PlanError: a value that is not among the valid ones, or padding="max_length" without a length.
    """
    padding = _one_of("padding", given.get("padding"), _PADDING)
    truncation = _one_of("truncation", given.get("truncation"), _TRUNCATION)
    numbers = {name: given.get(name) for name in ("max_length", "pad_to_multiple_of")}
    numbers = {name: None if value is None else positive_int(name, value) for name, value in numbers.items()}
    own = getattr(tokenizer, "model_max_length", None)
    if numbers["max_length"] is None and own is not None and own < _NO_LIMIT:
        numbers["max_length"] = int(own)
    if padding == "max_length" and numbers["max_length"] is None:
        raise PlanError("padding='max_length' needs `max_length`; the tokenizer has no limit of its own.")
    sides = {
        name: _one_of(name, given.get(name) or getattr(tokenizer, name, "right"), _SIDES)
        for name in ("padding_side", "truncation_side")
    }
    return Lengths(padding, truncation, **numbers, **sides)


def cut(row: TokenRow, lengths: Lengths, *, before: int = 0, after: int = 0) -> TokenRow:
    """The row, truncated to `max_length` where that is asked for.

    Args:
      before, after: number of ids at its ends that the tokenizer adds to every text; these stay.

    Raises:
      TextError: a medium would lose ids, or only the tokenizer's own ids are left to cut.
    """
    if not lengths.truncation or lengths.max_length is None or len(row.ids) <= lengths.max_length:
        return row
    excess = len(row.ids) - lengths.max_length
    start = before if lengths.truncation_side == "left" else len(row.ids) - after - excess
    end = start + excess
    if start < before or end > len(row.ids) - after:
        raise TextError(
            f"`max_length` is {lengths.max_length}, but the tokenizer adds {before + after} ids of its own to every "
            "text; raise `max_length` or use add_special_tokens=False."
        )
    for first, last in row.spans:
        if first < end and last > start:
            raise TextError(
                f"the text has {len(row.ids)} ids; truncating it to `max_length` = {lengths.max_length} would remove "
                f"ids {start} to {end}, which overlap the ids of a medium, {first} to {last}. Raise `max_length`, "
                "shorten the text, or make the media smaller with `in_patch_limit`."
            )
    moved = [(a - excess, b - excess) if a >= end else (a, b) for a, b in row.spans]
    assistant = None if row.assistant is None else row.assistant[:start] + row.assistant[end:]
    return TokenRow(row.ids[:start] + row.ids[end:], moved, row.mask[:start] + row.mask[end:], assistant)


def padded(rows: Sequence[TokenRow], lengths: Lengths, pad_id: int | None) -> list[TokenRow]:
    """Rows padded to one length, where that is asked for. Rows longer than `max_length` stay as they are.

    Raises:
      PlanError: a row needs padding and the tokenizer has no `pad_token`.
    """
    if lengths.padding is None:
        return list(rows)
    if lengths.padding == "longest" or lengths.max_length is None:
        length = max(len(row.ids) for row in rows)
    else:
        length = lengths.max_length
    if lengths.pad_to_multiple_of is not None:
        length += -length % lengths.pad_to_multiple_of
    return [_padded(row, length - len(row.ids), lengths.padding_side, pad_id) for row in rows]


def _padded(row: TokenRow, missing: int, side: str, pad_id: int | None) -> TokenRow:
    if missing <= 0:
        return row
    if pad_id is None:
        raise PlanError("padding needs a `pad_token`, and the tokenizer has none; set `tokenizer.pad_token`.")
    more = [pad_id] * missing
    none = [0] * missing
    if side == "right":
        assistant = None if row.assistant is None else row.assistant + none
        return TokenRow(row.ids + more, row.spans, row.mask + none, assistant)
    moved = [(start + missing, end + missing) for start, end in row.spans]
    assistant = None if row.assistant is None else none + row.assistant
    return TokenRow(more + row.ids, moved, none + row.mask, assistant)


def _one_of(name: str, value: Any, valid: Mapping[str, Any]) -> Any:
    word = str(getattr(value, "value", value))  # transformers has enums for these
    if word not in valid:
        raise PlanError(f"`{name}` is {value!r}; expected one of {', '.join(valid)}.")
    return valid[word]
