"""The keywords of `KimiImageProcessor` and its calls, by the checkpoint's names and by transformers'."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from transformers.processing_utils import ImagesKwargs

from kimi_jax_prep.checks import check_keywords
from kimi_jax_prep.config import MediaProcConfig, from_transformers, with_keys
from kimi_jax_prep.errors import ConfigError, PlanError, PrepError
from kimi_jax_prep.media.options import OPTIONS, MediaOptions

# What a single call may change: sizes only. Background, mean and std stay those of the checkpoint.
OVERRIDES = (
    "in_patch_limit",
    "patch_limit_on_one_side",
    "fixed_output_tokens",
    "in_patch_limit_each_frame",
    "in_patch_limit_video",
)
# The first two by transformers' names.
TRANSFORMERS_OVERRIDES = ("max_patches", "size")
# transformers' and the checkpoint's second names of config keys.
ALIASES = {
    "max_patches": "in_patch_limit",
    "merge_size": "merge_kernel_size",
    "temporal_patch_size": "temporal_merge_kernel_size",
    "fps": "sample_fps",
    "num_frames_per_chunk": "temporal_merge_kernel_size",
}
# Keywords that a call accepts only with the processor's own value.
SAME_VALUE = ("patch_size", "merge_size", "image_mean", "image_std")
# transformers' keywords for steps that cannot be changed here, with the values that describe what is done.
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
CALL_KEYWORDS = (
    *OVERRIDES,
    *OPTIONS,
    "return_tensors",
    "do_rescale",
    "do_normalize",
    *TRANSFORMERS_OVERRIDES,
    *SAME_VALUE,
)
CONFIG_KEYS = tuple(f.name for f in fields(MediaProcConfig) if not f.name.startswith("unknown_"))
OURS = ("dtype", "names", *OPTIONS)
"""Settings of the processor beside its config."""
_FRAMES = {"in_patch_limit_each_frame"}
_MOST_PATCHES_ON_ONE_SIDE = 512


class KimiImageProcessorKwargs(ImagesKwargs, total=False):
    """Keywords that transformers' processors may pass on; transformers checks them against this class."""

    max_patches: int
    patch_size: int
    merge_size: int
    in_patch_limit: int
    patch_limit_on_one_side: int
    fixed_output_tokens: int | None
    in_patch_limit_each_frame: int | None
    in_patch_limit_video: int | None
    allow_paths: bool
    max_pixels: int | None
    max_total_pixels: int | None
    max_frames: int | None
    exif_transpose: bool
    sixteen_bit: str
    formats: Any
    progress: bool


def overridden(
    config: MediaProcConfig, options: MediaOptions, overrides: Mapping[str, Any]
) -> tuple[MediaProcConfig, MediaOptions]:
    """Config and options of a call with these keywords.

    Raises:
      PrepError: an impossible value, or a keyword that asks for something a call cannot change.
      TypeError: an unknown keyword.
    """
    overrides = {name: value for name, value in overrides.items() if not _says_nothing(name, value)}
    overrides = without_fixed(overrides)
    check_keywords(overrides, CALL_KEYWORDS)
    for name in SAME_VALUE:
        if name in overrides:
            _check_same(config, name, overrides[name])
    options = options.replace(**{name: value for name, value in overrides.items() if name in OPTIONS})
    sizes = {name: overrides[name] for name in (*OVERRIDES, *TRANSFORMERS_OVERRIDES) if name in overrides}
    changed = with_keys(config, sizes_of(sizes))
    if changed.patch_limit_on_one_side > max(_MOST_PATCHES_ON_ONE_SIDE, config.patch_limit_on_one_side):
        raise PlanError(
            f"`patch_limit_on_one_side` is {changed.patch_limit_on_one_side}; the model's positions end at "
            f"{_MOST_PATCHES_ON_ONE_SIDE} patches."
        )
    return changed, options


def without_fixed(keywords: Mapping[str, Any], *, error: type[PrepError] = PlanError) -> dict[str, Any]:
    """The keywords without those of `FIXED`, which must be None or describe what is done.

    Raises:
      PrepError: one asks for something else.
    """
    for name in FIXED.keys() & keywords.keys():
        check_fixed(name, keywords[name], error=error)
    return {name: value for name, value in keywords.items() if name not in FIXED}


def check_fixed(name: str, value: Any, *, error: type[PrepError]) -> None:
    """Refuse a value of a `FIXED` keyword that does not describe what is done.

    Raises:
      PrepError: of the given class.
    """
    if value is not None and value not in FIXED[name] and str(value) not in FIXED[name]:
        raise error(f"`{name}` is {value!r}; only {FIXED[name][0]!r} is possible: it is what the checkpoint does.")


def sizes_of(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides by the checkpoint's names. The budget of a frame stays unless it is given.

    Raises:
      ConfigError: both names of one size, with different values; a `size` with other keys.
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
    """Refuse keywords that resemble one of ours; transformers and the hub have many of their own.

    Raises:
      TypeError: naming the one that was meant.
    """
    for name in keywords:
        near = nearest_setting(name)
        if near is not None:
            raise TypeError(f"got an unexpected keyword argument {name!r}; did you mean {near!r}?")


def nearest_setting(name: str) -> str | None:
    """The setting that a name resembles, unless it is one."""
    valid = (*CONFIG_KEYS, *OURS, *ALIASES, *FIXED, "media_proc_cfg")
    near = difflib.get_close_matches(name, valid, n=1, cutoff=0.9)
    return near[0] if near and name not in valid else None


def _says_nothing(name: str, value: Any) -> bool:
    """None for a keyword of transformers means that the caller leaves the choice to the processor."""
    return value is None and (
        name in TRANSFORMERS_OVERRIDES or name in SAME_VALUE or name in ImagesKwargs.__annotations__
    )


def _check_same(config: MediaProcConfig, name: str, value: Any) -> None:
    key = ALIASES.get(name, name)
    if getattr(with_keys(config, {key: value}), key) != getattr(config, key):
        raise PlanError(
            f"`{name}` is {value!r}, but {getattr(config, key)!r} for this processor, and a call cannot change it; set "
            f"it on the processor or make another one."
        )
