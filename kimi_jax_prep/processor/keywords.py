"""The keywords of `KimiImageProcessor` and its calls, by the checkpoint's names and by transformers'."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from transformers.processing_utils import ImagesKwargs

from kimi_jax_prep.config import MediaProcConfig, from_transformers
from kimi_jax_prep.errors import ConfigError, PlanError
from kimi_jax_prep.media.options import OPTIONS

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
# Keywords of transformers' port for what cannot be otherwise here, with the values that change nothing.
FIXED: dict[str, tuple[Any, ...]] = {
    "do_resize": (True,),
    "do_convert_rgb": (True,),
    "do_pad": (True,),
    "do_center_crop": (False,),
    "resample": (3,),
    "rescale_factor": (1 / 255,),
    "data_format": ("channels_first",),
    "device": ("cpu",),
    "disable_grouping": (True, False),
}
_FRAMES = {"in_patch_limit_each_frame"}
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


def without_fixed(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides without those of transformers' keywords that ask for what is done anyway, or for nothing (None).

    Raises:
      PlanError: one asks for something else.
    """
    rest = {}
    for name, value in overrides.items():
        if name in FIXED:
            if value is not None and value not in FIXED[name] and str(value) not in FIXED[name]:
                raise PlanError(f"`{name}` is {value!r}; {FIXED[name][0]!r} is what is done, and all that can be.")
        elif value is not None or name not in TRANSFORMERS_OVERRIDES:
            rest[name] = value
    return rest


def sizes_of(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides by the checkpoint's names. The budget of a frame stays unless it is given.

    Raises:
      ConfigError: both names of one size, with different values; a `size` in other words.
    """
    size: Any = overrides.get("size")
    if hasattr(size, "max_height") and hasattr(size, "max_width"):  # transformers' SizeDict
        overrides = {**overrides, "size": {"max_height": size.max_height, "max_width": size.max_width}}
    translated = from_transformers(overrides)
    if "size" in translated:
        raise ConfigError(
            f"`size` is {translated['size']!r}; expected {{'max_height': n, 'max_width': n}}, in patches."
        )
    return {name: translated[name] for name in OVERRIDES if name in overrides or name in translated.keys() - _FRAMES}


def refuse_misspelt(keywords: Iterable[str]) -> None:
    """Refuse what looks like one of our keywords; transformers and the hub have many of their own.

    Raises:
      TypeError: naming the one that was meant.
    """
    valid = (*CONFIG_KEYS, *OURS, "media_proc_cfg")
    for name in keywords:
        near = difflib.get_close_matches(name, valid, n=1, cutoff=0.9)
        if near and name not in valid:
            raise TypeError(f"got an unexpected keyword argument {name!r}; did you mean {near[0]!r}?")
