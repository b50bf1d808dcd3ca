"""`KimiImageProcessor`: the checkpoint's image processor for transformers, with the same calls, keys and bits.

Thin: sizes come from `_geometry`, pixels from the engine, which is shared by all processors of a config and never
visible to pickle, deepcopy or `save_pretrained`.
"""

import difflib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from transformers.image_processing_base import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor

from kimi_jax_prep._config import KIMI_K25, MediaProcConfig
from kimi_jax_prep._engine import shared_preprocessor
from kimi_jax_prep._errors import ConfigError, MediaError, PlanError, PrepError
from kimi_jax_prep._geometry import chunk_prompt
from kimi_jax_prep._pretrained import config_file, names_a_path, read_config
from kimi_jax_prep._tables import output_dtype
from kimi_jax_prep._tensors import converter
from kimi_jax_prep.media import open_medium

# What one call may change: sizes only, so that the background, mean and std stay those of the checkpoint.
OVERRIDES = (
    "in_patch_limit",
    "patch_limit_on_one_side",
    "fixed_output_tokens",
    "in_patch_limit_each_frame",
    "in_patch_limit_video",
)
_MOST_PATCHES_ON_ONE_SIDE = 512
_CONFIG_KEYS = tuple(f.name for f in fields(MediaProcConfig) if not f.name.startswith("unknown_"))


class KimiImageProcessor(BaseImageProcessor):
    """Pictures and ready-made video chunks to `pixel_values` (N, 3, 14, 14) and `grid_thws` (media, 3).

    Args:
      media_proc_cfg: the checkpoint's dict of that name, or a `MediaProcConfig`; without it K2.5's.
      dtype: of `pixel_values`: "float32", "bfloat16", "float16" or "uint8".
      **kwargs: other keys of `preprocessor_config.json`; they are kept for `save_pretrained`.

    Raises:
      ConfigError: the config is incomplete, contradictory or holds an impossible value.
    """

    model_input_names = ["pixel_values", "grid_thws"]  # noqa: RUF012  # transformers reads it from the class

    def __init__(
        self,
        media_proc_cfg: Mapping[str, Any] | MediaProcConfig | None = None,
        *,
        dtype: str = "float32",
        **kwargs: Any,
    ) -> None:
        super().__init__()
        output_dtype(dtype)
        for ours in ("image_processor_type", "processor_class", "feature_extractor_type"):
            kwargs.pop(ours, None)
        if media_proc_cfg is None:
            media_proc_cfg = MediaProcConfig.from_dict(kwargs) if kwargs else KIMI_K25
        elif isinstance(media_proc_cfg, MediaProcConfig):
            if kwargs:
                media_proc_cfg = MediaProcConfig.from_dict(media_proc_cfg.to_dict() | kwargs)
        else:
            media_proc_cfg = MediaProcConfig.from_dict({**kwargs, "media_proc_cfg": media_proc_cfg})
        self.config = media_proc_cfg
        self.dtype = dtype

    @property
    def media_proc_cfg(self) -> dict[str, Any]:
        """The config as the checkpoint's dict; a copy, so that changing it changes nothing."""
        return self.config.to_dict()["media_proc_cfg"]

    @property
    def num_frames_per_chunk(self) -> int:
        """Most frames of one video chunk."""
        return self.config.temporal_merge_kernel_size

    def __call__(self, images: Any, *args: Any, **kwargs: Any) -> BatchFeature:
        """The same as `preprocess`."""
        return self.preprocess(images, *args, **kwargs)

    def preprocess(  # type: ignore[override]  # the checkpoint names its argument `medias`
        self, medias: Any, return_tensors: Any = None, **overrides: Any
    ) -> BatchFeature:
        """Patches and grids of media.

        Args:
          medias: one medium or an iterable of media, see `kimi_jax_prep.media`. An empty one gives no keys, as K3's
            own processor does.
          return_tensors: "np" or None for NumPy arrays, "pt" for torch tensors, "jax" for jax.Arrays.
          **overrides: keys of `OVERRIDES`, for this call only. They are counts of patches or tokens, and no side may
            exceed 512 patches, where the model's positions end.

        Returns:
          `pixel_values` (N, 3, 14, 14) in the processor's dtype and `grid_thws` (media, 3) int64 ("jax": int32, or
          int64 under x64). NumPy and torch results are writable and the caller's own.

        Raises:
          PrepError: with the index of the medium at fault; also for unknown `return_tensors` and impossible overrides.
          FileNotFoundError: a path does not exist; its index is in the message.
          TypeError: an unknown keyword.
          ImportError: "pt" without torch.
          RuntimeError: "jax" in a process that was forked after JAX had started.
        """
        convert = converter(return_tensors)
        config = self._overridden(overrides)
        medias = [medias] if _is_one_medium(medias) else list(medias)
        if not medias:
            return BatchFeature({})
        for i, media in enumerate(medias):
            if isinstance(media, list | tuple):
                raise MediaError(f"medias[{i}]: got a {type(media).__name__}; all media come in one flat list.")
        batch = shared_preprocessor(config, dtype=self.dtype)(medias)
        return BatchFeature({"pixel_values": convert(batch.pixel_values), "grid_thws": convert(batch.grid_thws)})

    def media_tokens_calculator(self, media: Any) -> int:
        """Tokens of one medium, from its header: nothing is decoded.

        Raises: as `kimi_jax_prep.media.open_medium`.
        """
        return open_medium(media).plan(self.config).num_tokens

    def get_resize_config(self, media: Any) -> dict[str, int]:
        """Sizes of one medium, from its header, in the checkpoint's words. Widths and heights are in pixels.

        Raises: as `kimi_jax_prep.media.open_medium`.
        """
        plan = open_medium(media).plan(self.config)
        return {
            "num_tokens": plan.num_tokens,
            "new_width": plan.width,
            "new_height": plan.height,
            "pad_width": plan.pad_right,
            "pad_height": plan.pad_bottom,
            "sampled_nframes": plan.grid_thw[0],
        }

    @staticmethod
    def make_chunk_prompt(timestamp_text: str) -> str:
        """The text of one video chunk that starts at this time."""
        return chunk_prompt(timestamp_text)

    @staticmethod
    def make_image_prompt(width: int, height: int) -> str:
        """K3's text of one image; pixels of the image as it was, before any resize."""
        return f"<|media_begin|>image {width}x{height}<|media_content|><|media_pad|><|media_end|>"

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike[str], *args: Any, **kwargs: Any
    ) -> "KimiImageProcessor":
        """Read a folder, a file, or a repository of the hub that transformers can reach.

        Args:
          pretrained_model_name_or_path: a folder that holds `preprocessor_config.json` (or `processor_config.json` with
            an `image_processor` key), one of these files, or the hub's name of a repository.
          **kwargs: as for `from_dict`, and transformers' options for the hub. Of these a local folder heeds
            `subfolder` only.

        Raises:
          FileNotFoundError: there is no such folder or file, or the folder holds neither file.
          ConfigError: the file is not a config; the message begins with the file's name.
        """
        kwargs.pop("trust_remote_code", None)  # there is none
        path = Path(pretrained_model_name_or_path)
        if not path.exists():
            if names_a_path(pretrained_model_name_or_path):
                raise FileNotFoundError(f"there is no folder or file {str(path)!r}.")
            return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        file = config_file(path, kwargs.pop("subfolder", ""))
        values = read_config(file)
        try:
            return cls.from_dict(values, **kwargs)
        except PrepError as err:
            raise ConfigError(f"{file}: {err}") from err

    @classmethod
    def from_dict(cls, image_processor_dict: Mapping[str, Any], **kwargs: Any) -> Any:
        """Make a processor from the contents of `preprocessor_config.json`.

        Args:
          image_processor_dict: in the checkpoint's or in transformers' dialect.
          **kwargs: `dtype`, `media_proc_cfg` or keys of it, in place of what the dict says. Others are left unused, as
            transformers does, unless they look like one of these misspelt.

        Returns:
          A processor; with `return_unused_kwargs=True` also the dict of keywords that were not used.

        Raises:
          ConfigError: the result is not a config.
          TypeError: a misspelt keyword.
        """
        return_unused = kwargs.pop("return_unused_kwargs", False)
        named = {name: kwargs.pop(name) for name in ("media_proc_cfg", "dtype") if name in kwargs}
        changed = {name: kwargs.pop(name) for name in _CONFIG_KEYS if name in kwargs}
        for name in kwargs:
            near = difflib.get_close_matches(name, (*_CONFIG_KEYS, "media_proc_cfg", "dtype"), n=1, cutoff=0.8)
            if near:
                raise TypeError(f"got an unexpected keyword argument {name!r}; did you mean {near[0]!r}?")
        processor = cls(**{**image_processor_dict, **named})
        if changed:
            processor.config = replace(processor.config, **changed)
        return (processor, kwargs) if return_unused else processor

    def to_dict(self) -> dict[str, Any]:
        """The checkpoint's dialect, plain JSON types, unknown keys in their places; `dtype` only if not float32."""
        values = self.config.to_dict() | {"image_processor_type": type(self).__name__}
        return values if self.dtype == "float32" else values | {"dtype": self.dtype}

    def __getstate__(self) -> dict[str, Any]:
        # Pickle writes a shared object otherwise than two equal ones. As one text, equal configs give equal bytes
        # whoever made them, and so equal hashes in `datasets`.
        return vars(self) | {"config": json.dumps(self.config.to_dict(), sort_keys=True)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update({**state, "config": MediaProcConfig.from_dict(json.loads(state["config"]))})

    def _overridden(self, overrides: Mapping[str, Any]) -> MediaProcConfig:
        for name in overrides:
            if name not in OVERRIDES:
                near = difflib.get_close_matches(name, (*OVERRIDES, "return_tensors"), n=1)
                valid = ", ".join(map(repr, OVERRIDES))
                hint = f"did you mean {near[0]!r}?" if near else f"expected one of {valid}."
                raise TypeError(f"preprocess() got an unexpected keyword argument {name!r}; {hint}")
        config = replace(self.config, **overrides) if overrides else self.config
        if "patch_limit_on_one_side" in overrides and config.patch_limit_on_one_side > _MOST_PATCHES_ON_ONE_SIDE:
            raise PlanError(
                f"`patch_limit_on_one_side` is {config.patch_limit_on_one_side}; the model's positions end at "
                f"{_MOST_PATCHES_ON_ONE_SIDE} patches."
            )
        return config


def _is_one_medium(medias: Any) -> bool:
    one = (str, bytes, bytearray, memoryview, Mapping, os.PathLike)
    # Arrays have a shape and open files can be read; both could also be iterated over, with nonsense coming out.
    return (
        isinstance(medias, one)
        or hasattr(medias, "shape")
        or hasattr(medias, "read")
        or not isinstance(medias, Iterable)
    )
