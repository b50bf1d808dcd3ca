"""The arguments of a call: its keywords sorted by whom they concern."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kimi_jax_prep.checks import check_keywords
from kimi_jax_prep.errors import PlanError
from kimi_jax_prep.processor.call.chat import TEMPLATE_KEYWORDS, ChatTemplates
from kimi_jax_prep.processor.interfaces import Outputs
from kimi_jax_prep.processor.keywords import CALL_KEYWORDS, FIXED
from kimi_jax_prep.processor.tensors import converter
from kimi_jax_prep.text import rows as token_rows
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
    "return_mm_token_type_ids",
)
SAMPLING = ("do_sample_frames", "num_frames", "fps")
"""transformers' keywords for which frames of a video are taken. The checkpoint's rule for that is fixed."""
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
    sampling: Mapping[str, Any]
    """Those of `SAMPLING`."""
    video_metadata: Any
    token_types: bool
    """Whether to return `mm_token_type_ids`."""


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
      TypeError: an unknown keyword.
      PlanError: a keyword that is given twice, an impossible length, an unknown `return_tensors`.
      ImportError: torch tensors without torch.
    """
    given = flattened(kwargs)
    template = {name: given[name] for name in TEMPLATE_KEYWORDS if name in given}
    if given.get("audio") is not None:
        raise TypeError("`audio` is not supported: the model takes images and video.")
    known = dict.fromkeys((*ARGUMENTS, *TEXT_KEYWORDS, *TEMPLATE_KEYWORDS, *CALL_KEYWORDS, *FIXED, *SAMPLING))
    rest = [name for name in given if name not in known]
    if rest and templates is not None:
        own = templates.variables(template)
        variables = {name: given.pop(name) for name in rest if name in own}
        if variables:
            template["chat_template_kwargs"] = variables | (template.get("chat_template_kwargs") or {})
    check_keywords(given, known)
    if templates is None and (wrong := [name for name, value in template.items() if value is not None]):
        raise TypeError(f"{', '.join(map(repr, wrong))}: for a chat template, so only with `messages`.")
    by_default = isinstance(return_tensors, str) and return_tensors == DEFAULT and "return_tensors" not in given
    if isinstance(return_tensors, str) and return_tensors == DEFAULT:
        return_tensors = given.get("return_tensors", outputs.return_tensors)
    try:
        convert = converter(return_tensors)
    except ImportError as err:
        if not by_default:
            raise
        raise ImportError(
            f"{err}. This processor stands in for the checkpoint's, which returns torch tensors; pass "
            "return_tensors='np', or load it with outputs=None."
        ) from err
    return Call(
        convert=convert,
        as_lists=return_tensors is None,
        expand=outputs.expand if expand is None else expand,
        names=outputs.names,
        lengths=lengths_of(tokenizer, given),
        special=given.get("add_special_tokens"),
        template=template,
        overrides={n: v for n, v in given.items() if n in (*CALL_KEYWORDS, *FIXED) and n != "return_tensors"},
        sampling={name: given[name] for name in SAMPLING if given.get(name) is not None},
        video_metadata=given.get("video_metadata"),
        token_types=bool(given.get("return_mm_token_type_ids")),
    )


def flattened(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords with those of `text_kwargs`, `images_kwargs` and the like beside them.

    Raises:
      PlanError: a keyword is given twice.
    """
    given = {name: value for name, value in kwargs.items() if name not in _GROUPS}
    for group in _GROUPS:
        for name, value in (kwargs.get(group) or {}).items():
            if name in given:
                raise PlanError(f"{name!r} is given twice, once in `{group}`.")
            given[name] = value
    return given
