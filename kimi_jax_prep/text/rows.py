"""Rows of token ids: cut to a length, padded to one, with the places of media kept right."""

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
# transformers has such a number where a tokenizer has no limit.
_NO_LIMIT = 10**20


class TokenRow(NamedTuple):
    """Ids of one text and where its media are."""

    ids: list[int]
    spans: list[tuple[int, int]]
    """(start, end) in `ids`, end not included."""
    mask: list[int]
    """1 for ids of the text, 0 for padding."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """What a call asks of lengths."""

    padding: str | None = None
    """None, "longest" or "max_length"."""
    truncation: bool = False
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    padding_side: str = "right"
    truncation_side: str = "right"


def lengths_of(tokenizer: Any, given: Mapping[str, Any]) -> Lengths:
    """What a call asks for in the words of transformers' tokenizers; where it is silent, the tokenizer's own.

    Args:
      given: some of `KEYWORDS`.

    Raises:
      PlanError: a value that is not among the valid ones, or "max_length" where nobody names one.
    """
    padding = _one_of("padding", given.get("padding"), _PADDING)
    truncation = _one_of("truncation", given.get("truncation"), _TRUNCATION)
    numbers = {name: given.get(name) for name in ("max_length", "pad_to_multiple_of")}
    numbers = {name: None if value is None else positive_int(name, value) for name, value in numbers.items()}
    own = getattr(tokenizer, "model_max_length", None)
    if numbers["max_length"] is None and own is not None and own < _NO_LIMIT:
        numbers["max_length"] = int(own)
    if padding == "max_length" and numbers["max_length"] is None:
        raise PlanError("padding='max_length' needs `max_length`: the tokenizer has no limit of its own.")
    sides = {
        name: _one_of(name, given.get(name) or getattr(tokenizer, name, "right"), _SIDES)
        for name in ("padding_side", "truncation_side")
    }
    return Lengths(padding, truncation, **numbers, **sides)


def cut(row: TokenRow, lengths: Lengths, *, before: int = 0, after: int = 0) -> TokenRow:
    """The row, at most `max_length` long if it is to be truncated.

    Args:
      before, after: ids at its ends that the tokenizer adds to every text; these stay.

    Raises:
      TextError: a medium would lose ids, or there is nothing else to cut.
    """
    if not lengths.truncation or lengths.max_length is None or len(row.ids) <= lengths.max_length:
        return row
    excess = len(row.ids) - lengths.max_length
    start = before if lengths.truncation_side == "left" else len(row.ids) - after - excess
    end = start + excess
    if start < before or end > len(row.ids) - after:
        raise TextError(f"`max_length` is {lengths.max_length}, but {before + after} ids are the tokenizer's own.")
    for first, last in row.spans:
        if first < end and last > start:
            raise TextError(
                f"the text has {len(row.ids)} ids; cutting it to `max_length` = {lengths.max_length} would take ids "
                f"{start} to {end} and with them a medium's, {first} to {last}. Raise `max_length`, shorten the text, "
                "or make the media smaller with `in_patch_limit`."
            )
    moved = [(a - excess, b - excess) if a >= end else (a, b) for a, b in row.spans]
    return TokenRow(row.ids[:start] + row.ids[end:], moved, row.mask[:start] + row.mask[end:])


def padded(rows: Sequence[TokenRow], lengths: Lengths, pad_id: int | None) -> list[TokenRow]:
    """Rows of one length, if that is asked for. A longer one than "max_length" stays as it is.

    Raises:
      PlanError: there is something to pad, and the tokenizer has no id for it.
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
        raise PlanError("the tokenizer has no `pad_token`, so nothing can be padded; give it one.")
    if side == "right":
        return TokenRow(row.ids + [pad_id] * missing, row.spans, row.mask + [0] * missing)
    moved = [(start + missing, end + missing) for start, end in row.spans]
    return TokenRow([pad_id] * missing + row.ids, moved, [0] * missing + row.mask)


def _one_of(name: str, value: Any, valid: Mapping[str, Any]) -> Any:
    word = str(getattr(value, "value", value))  # transformers has enums for these
    if word not in valid:
        raise PlanError(f"`{name}` is {value!r}; expected one of {', '.join(valid)}.")
    return valid[word]
