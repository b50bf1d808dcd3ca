"""The keywords of `KimiImageProcessor` and its calls, by the checkpoint's names and by transformers'."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from transformers.processing_utils import ImagesKwargs

from kimi_jax_prep._config import MediaProcConfig, from_transformers
from kimi_jax_prep._options import OPTIONS

# What one call may change: sizes only, so that the background, mean and std stay those of the checkpoint.
OVERRIDES = (
    "in_patch_limit",
    "patch_limit_on_one_side",
    "fixed_output_tokens",
    "in_patch_limit_each_frame",
    "in_patch_limit_video",
)
# The first two by transformers' names.
TRANSFORMERS_OVERRIDES = ("max_patches", "size")
CALL_KEYWORDS = (*OVERRIDES, *OPTIONS, "return_tensors", "do_rescale", "do_normalize", *TRANSFORMERS_OVERRIDES)
CONFIG_KEYS = tuple(f.name for f in fields(MediaProcConfig) if not f.name.startswith("unknown_"))
OURS = ("dtype", "names", *OPTIONS)
"""Settings of the processor beside its config."""


class KimiImagesKwargs(ImagesKwargs, total=False):
    """What transformers' processors may pass on: they check it against this."""

    max_patches: int
    in_patch_limit: int
    patch_limit_on_one_side: int
    fixed_output_tokens: int | None
    in_patch_limit_each_frame: int | None
    in_patch_limit_video: int | None
    allow_paths: bool
    max_pixels: int | None
    max_frames: int | None
    exif_transpose: bool
    sixteen_bit: str
    progress: bool


def sizes_of(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides by the checkpoint's names. The budget of a frame stays unless it is given.

    Raises:
      ConfigError: both names of one size, with different values.
    """
    translated = from_transformers(overrides)
    return {name: value for name, value in translated.items() if name in overrides or name in OVERRIDES[:2]}


def refuse_misspelt(keywords: Iterable[str]) -> None:
    """Refuse what looks like one of our keywords; transformers and the hub have many of their own.

    Raises:
      TypeError: naming the one that was meant.
    """
    valid = (*CONFIG_KEYS, *OURS, "media_proc_cfg")
    for name in keywords:
        near = difflib.get_close_matches(name, valid, n=1, cutoff=0.8)
        if near and name not in valid:
            raise TypeError(f"got an unexpected keyword argument {name!r}; did you mean {near[0]!r}?")
