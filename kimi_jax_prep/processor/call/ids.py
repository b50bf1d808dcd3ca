"""Texts and token ids of a call: what the caller passes, and what the tokenizer makes of it."""

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from kimi_jax_prep.errors import ConfigError, PlanError, TextError
from kimi_jax_prep.text.placeholders import MEDIA_PAD


def known_id(tokenizer: Any, token: str) -> int | None:
    """The id of a token, or None if the tokenizer does not know it."""
    number = tokenizer.convert_tokens_to_ids(token)
    return None if number == tokenizer.unk_token_id else number


def token_id(tokenizer: Any, token: str) -> int:
    """The id of a token.

    Raises:
      ConfigError: the tokenizer does not know it.
    """
    number = known_id(tokenizer, token)
    if number is None:
        raise ConfigError(
            f"the tokenizer does not know `{token}`, so it is not Kimi's. Load the checkpoint's own, or add the token: "
            f"tokenizer.add_special_tokens({{'additional_special_tokens': ['{token}']}})."
        )
    return number


def as_texts(text: Any) -> list[str]:
    """`text` as a list.

    Raises:
      TypeError: it is neither a str nor a list of them.
      TextError: an empty list.
    """
    texts = [text] if isinstance(text, str) else text
    if not isinstance(texts, list | tuple) or not all(isinstance(one, str) for one in texts):
        raise TypeError(f"`text` must be a str or a list of str; got {type(text).__name__}.")
    if not texts:
        raise TextError("`text` is an empty list.")
    return list(texts)


def as_ids(input_ids: Any, attention_mask: Any) -> list[list[int]]:
    """`input_ids` as lists without padding.

    Args:
      input_ids: ids of one text or of several: lists, or an array of any library.
      attention_mask: of the same shape, 0 for padding; or None.

    Raises:
      TypeError: they are no ids.
      TextError: none at all, or a mask of another shape.
    """
    rows, masks = _as_rows("input_ids", input_ids), None
    if not rows:
        raise TextError("`input_ids` is an empty list.")
    if attention_mask is not None:
        masks = _as_rows("attention_mask", attention_mask)
        if list(map(len, masks)) != list(map(len, rows)):
            raise TextError(
                f"`attention_mask` has rows of {list(map(len, masks))} and `input_ids` of {list(map(len, rows))} ids."
            )
        rows = [
            [value for value, kept in zip(row, mask, strict=True) if kept]
            for row, mask in zip(rows, masks, strict=True)
        ]
    return rows


def _as_rows(name: str, values: Any) -> list[list[int]]:
    rows = _listed(values)
    if isinstance(rows, list | tuple) and not any(isinstance(row, str | bytes) for row in rows):
        try:
            rows = [_listed(row) for row in rows]
            if rows and not any(isinstance(row, list | tuple) for row in rows):
                rows = [rows]
            return [[operator.index(_listed(value)) for value in row] for row in rows]
        except TypeError:  # no list, or no whole numbers
            pass
    raise TypeError(
        f"`{name}` must be a list of ints, a list of such lists, or an integer array; got {type(values).__name__}."
    )


def _listed(values: Any) -> Any:
    """Arrays of NumPy, JAX and torch as lists."""
    return values.tolist() if hasattr(values, "tolist") else values


def as_array(rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Rows of one length as int64.

    Raises:
      PlanError: they have several lengths.
    """
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        raise PlanError(
            f"the texts have {min(lengths)} to {max(lengths)} ids, so they do not form an array; use padding=True, or "
            "return_tensors=None for lists."
        )
    return np.array(rows, np.int64)


def checked_prompt(prompt: Any, i: int) -> str:
    """The prompt of a ready-made chunk.

    Raises:
      TextError: there is none, or it does not hold one `<|media_pad|>`.
    """
    if not isinstance(prompt, str):
        raise TextError(f"medias[{i}] is a chunk of a video, so it needs 'prompt', the text that stands for it.")
    if prompt.count(MEDIA_PAD) != 1:
        raise TextError(f"medias[{i}]: its 'prompt' has {prompt.count(MEDIA_PAD)} `{MEDIA_PAD}`; expected 1.")
    return prompt


def tokenized(tokenizer: Any, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
    """Ids of each text, with no padding or truncation."""
    encoded = tokenizer(
        list(texts), add_special_tokens=add_special_tokens, padding=False, truncation=False, verbose=False
    )
    return [list(ids) for ids in encoded["input_ids"]]


def assistant_mask(
    tokenizer: Any, text: str, ids: Sequence[int], turns: Sequence[tuple[int, int]], add_special_tokens: bool
) -> list[int]:
    """1 for each id that holds a character of the assistant's turns, else 0.

    Args:
      turns: (start, end) in characters.

    Raises:
      TextError: a tokenizer without offsets merges the end of a turn with what is beside it.
    """
    if getattr(tokenizer, "is_fast", False):
        options = {"padding": False, "truncation": False, "verbose": False}
        encoded = tokenizer(text, add_special_tokens=add_special_tokens, return_offsets_mapping=True, **options)
        return [int(any(a < end and b > start for start, end in turns)) for a, b in encoded["offset_mapping"]]
    # A tokenizer in Python gives no offsets: the text is cut where turns begin and end.
    places = [0, *(place for turn in turns for place in turn), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    own = [tokenized(tokenizer, [piece], False)[0] if piece else [] for piece in pieces]
    bare = [value for piece in own for value in piece]
    before, after = added_ids(bare, ids)
    mask = [k % 2 for k, piece in enumerate(own) for _ in piece]
    return [0] * before + mask + [0] * after


def added_ids(bare: Sequence[int], whole: Sequence[int]) -> tuple[int, int]:
    """How many ids the tokenizer adds before and after a text.

    Args:
      bare: ids of the text alone.
      whole: ids with what the tokenizer adds.

    Raises:
      TextError: the one is no part of the other.
    """
    extra = len(whole) - len(bare)
    for before in range(extra + 1):
        if list(whole[before : before + len(bare)]) == list(bare):
            return before, extra - before
    raise TextError(
        "the tokenizer adds or merges ids inside the text, so their places are not known; use "
        "add_special_tokens=False, or a fast tokenizer."
    )
