"""One call of `KimiProcessor`: its keywords sorted by whom they concern, its texts as rows of token ids."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kimi_jax_prep.checks import check_keywords
from kimi_jax_prep.errors import PlanError, TextError
from kimi_jax_prep.processor.chat import TEMPLATE_KEYWORDS, ChatTemplates
from kimi_jax_prep.processor.dialects import Outputs
from kimi_jax_prep.processor.keywords import CALL_KEYWORDS
from kimi_jax_prep.processor.tensors import converter
from kimi_jax_prep.text import rows as token_rows
from kimi_jax_prep.text.placeholders import MEDIA_PAD
from kimi_jax_prep.text.rows import Lengths, lengths_of

TEXT_KEYWORDS = (*token_rows.KEYWORDS, "add_special_tokens")
ARGUMENTS = (
    "messages",
    "medias",
    "text",
    "return_tensors",
    "input_ids",
    "attention_mask",
    "images",
    "videos",
    "audio",
    "video_metadata",
    "expand",
    "return_assistant_tokens_mask",
    "return_labels",
)
# transformers lets callers sort keywords into these dicts.
_GROUPS = ("common_kwargs", "text_kwargs", "images_kwargs", "videos_kwargs")
DEFAULT = "auto"
"""What transformers passes as `return_tensors` where the caller named nothing."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a call asks for, beside its text and media."""

    convert: Callable[[np.ndarray], Any]
    as_lists: bool
    """Whether ids stay lists."""
    expand: bool
    names: str | None
    lengths: Lengths
    special: bool | None
    """Whether the tokenizer adds its own ids; None: to `text`, not to what a template wrote."""
    template: Mapping[str, Any]
    overrides: Mapping[str, Any]
    """For the image processor."""


def read_call(
    kwargs: Mapping[str, Any],
    *,
    outputs: Outputs,
    expand: bool | None,
    return_tensors: Any,
    tokenizer: Any,
    templates: ChatTemplates | None,
) -> Call:
    """Sort the keywords of a call.

    Args:
      templates: for a call with messages, whose template may read variables of its own.

    Raises:
      TypeError: an unknown keyword, or one that is given twice.
      PlanError: an impossible length, an unknown `return_tensors`.
    """
    given = flattened(kwargs)
    template = {name: given[name] for name in TEMPLATE_KEYWORDS if name in given}
    known = dict.fromkeys((*ARGUMENTS, *TEXT_KEYWORDS, *TEMPLATE_KEYWORDS, *CALL_KEYWORDS))
    rest = [name for name in given if name not in known]
    if rest and templates is not None:
        own = templates.variables(template)
        variables = {name: given.pop(name) for name in rest if name in own}
        if variables:
            template["chat_template_kwargs"] = variables | (template.get("chat_template_kwargs") or {})
    check_keywords(given, known)
    if templates is None and (wrong := [name for name, value in template.items() if value is not None]):
        raise TypeError(f"{', '.join(map(repr, wrong))}: for `messages`, not for `text`.")
    if return_tensors == DEFAULT:
        return_tensors = outputs.return_tensors
    return Call(
        convert=converter(return_tensors),
        as_lists=return_tensors is None,
        expand=outputs.expand if expand is None else expand,
        names=outputs.names,
        lengths=lengths_of(tokenizer, given),
        special=given.get("add_special_tokens"),
        template=template,
        overrides={name: value for name, value in given.items() if name in CALL_KEYWORDS},
    )


def flattened(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords with those of `text_kwargs`, `images_kwargs` and the like beside them.

    Raises:
      TypeError: a keyword is given twice.
    """
    given = {name: value for name, value in kwargs.items() if name not in _GROUPS}
    for group in _GROUPS:
        for name, value in (kwargs.get(group) or {}).items():
            if name in given:
                raise TypeError(f"{name!r} is given twice, once in `{group}`.")
            given[name] = value
    return given


def as_texts(text: Any) -> list[str]:
    """`text` as a list.

    Raises:
      TypeError: it is neither a str nor a list of them.
      TextError: an empty list.
    """
    texts = [text] if isinstance(text, str) else text
    if not isinstance(texts, list | tuple) or not all(isinstance(one, str) for one in texts):
        raise TypeError(f"`text` is a str or a list of them; got {type(text).__name__}.")
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
    if hasattr(values, "tolist"):  # arrays of NumPy, JAX and torch
        values = values.tolist()
    if isinstance(values, list | tuple):
        rows = [value.tolist() if hasattr(value, "tolist") else value for value in values]
        if rows and all(isinstance(value, int) for value in rows):
            rows = [rows]
        if all(isinstance(row, list | tuple) and all(isinstance(value, int) for value in row) for row in rows):
            return [list(row) for row in rows]
    raise TypeError(f"`{name}` is a list of ints, a list of lists, or an integer array; got {type(values).__name__}.")


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
