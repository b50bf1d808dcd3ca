"""`KimiImageProcessor`: the checkpoint's image processor for transformers, with the same calls, keys and bits.

Thin: sizes come from `_geometry`, pixels from the engine, which is shared by all processors of a config and never
visible to pickle, deepcopy or `save_pretrained`.
"""

import copy
import difflib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers.image_processing_base import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor

from kimi_jax_prep._config import KIMI_K25, MediaProcConfig
from kimi_jax_prep._engine import shared_preprocessor
from kimi_jax_prep._errors import ConfigError, PlanError
from kimi_jax_prep._geometry import chunk_prompt
from kimi_jax_prep._tables import output_dtype
from kimi_jax_prep.media import open_medium

RETURN_TENSORS = ("np", "pt", "jax", None)
# What one call may change: sizes only, so that the background, mean and std stay those of the checkpoint.
OVERRIDES = ("in_patch_limit", "patch_limit_on_one_side", "fixed_output_tokens", "in_patch_limit_each_frame")
_MOST_PATCHES_ON_ONE_SIDE = 512
_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder", "_from_auto")
_CONFIG_FILES = ("preprocessor_config.json", "processor_config.json")


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
        """The config as the checkpoint's dict; a copy."""
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
          medias: one medium or an iterable of media, see `kimi_jax_prep.media`. None of them gives no keys.
          return_tensors: "np" or None for NumPy arrays, "pt" for torch tensors, "jax" for jax.Arrays.
          **overrides: `OVERRIDES`, for this call only.

        Returns:
          `pixel_values` (N, 3, 14, 14) in the processor's dtype and `grid_thws` (media, 3) int64 ("jax": int32, or
          int64 under x64). NumPy and torch results are writable and the caller's own.

        Raises:
          PrepError: with the index of the medium at fault; also for unknown `return_tensors`.
          TypeError: an unknown keyword.
          ImportError: "pt" without torch.
        """
        kind = _return_kind(return_tensors)
        config = self._overridden(overrides)
        medias = [medias] if _is_one_medium(medias) else list(medias)
        if not medias:
            return BatchFeature({})
        batch = shared_preprocessor(config, dtype=self.dtype)(medias)
        values, grids = kind(batch.pixel_values), kind(batch.grid_thws)
        return BatchFeature({"pixel_values": values, "grid_thws": grids})

    def media_tokens_calculator(self, media: Any) -> int:
        """Tokens of one medium, from its header: nothing is decoded."""
        return open_medium(media).plan(self.config).num_tokens

    def get_resize_config(self, media: Any) -> dict[str, int]:
        """Sizes of one medium, from its header, in the checkpoint's words. Lengths are in pixels."""
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
          **kwargs: the hub's options (`revision`, ...), which a local folder ignores; others as for the constructor.

        Raises:
          FileNotFoundError: the folder holds neither file.
          ConfigError: the file is not a config, with the file's name.
        """
        kwargs.pop("trust_remote_code", None)
        path = Path(pretrained_model_name_or_path)
        if not path.exists():
            return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        for option in _HUB_OPTIONS:
            kwargs.pop(option, None)
        file = path if path.is_file() else next((path / f for f in _CONFIG_FILES if (path / f).is_file()), None)
        if file is None:
            raise FileNotFoundError(
                f"{path} holds none of {', '.join(_CONFIG_FILES)}: copy the checkpoint's preprocessor_config.json "
                "there, or make the processor from a preset: KimiImageProcessor(media_proc_cfg=kimi_jax_prep.KIMI_K25)."
            )
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as err:
            raise ConfigError(f"{file} is not JSON: {err}") from err
        if isinstance(values, dict) and isinstance(values.get("image_processor"), dict):
            values = values["image_processor"]
        if not isinstance(values, dict):
            raise ConfigError(f"{file} holds a {type(values).__name__}; expected a JSON object.")
        try:
            return cls.from_dict(values, **kwargs)
        except ConfigError as err:
            raise ConfigError(f"{file}: {err}") from err

    @classmethod
    def from_dict(cls, image_processor_dict: Mapping[str, Any], **kwargs: Any) -> Any:
        """Make a processor from the contents of `preprocessor_config.json`; `kwargs` are keys on top of them."""
        return_unused = kwargs.pop("return_unused_kwargs", False)
        processor = cls(**copy.deepcopy(dict(image_processor_dict)), **kwargs)
        return (processor, {}) if return_unused else processor

    def to_dict(self) -> dict[str, Any]:
        """The checkpoint's dialect, plain JSON types, unknown keys in their places."""
        values = self.config.to_dict() | {"image_processor_type": type(self).__name__}
        return values if self.dtype == "float32" else values | {"dtype": self.dtype}

    def _overridden(self, overrides: Mapping[str, Any]) -> MediaProcConfig:
        for name in overrides:
            if name not in OVERRIDES:
                near = difflib.get_close_matches(name, OVERRIDES, n=1)
                hint = (
                    f"; did you mean {near[0]!r}?" if near else f"; expected one of {', '.join(map(repr, OVERRIDES))}."
                )
                raise TypeError(f"preprocess() got an unexpected keyword argument {name!r}{hint}")
        side = overrides.get("patch_limit_on_one_side")
        config = replace(self.config, **overrides) if overrides else self.config
        if side is not None and side > _MOST_PATCHES_ON_ONE_SIDE:
            raise PlanError(f"`patch_limit_on_one_side` is {side}; the model's positions end at 512 patches.")
        return config


def _is_one_medium(medias: Any) -> bool:
    one = (str, bytes, bytearray, memoryview, Mapping, os.PathLike)
    return isinstance(medias, one) or hasattr(medias, "shape") or not isinstance(medias, Iterable)


def _return_kind(return_tensors: Any) -> Any:
    name = getattr(return_tensors, "value", return_tensors)  # transformers' TensorType
    if name not in RETURN_TENSORS:
        valid = ", ".join(map(repr, RETURN_TENSORS))
        raise PlanError(f"`return_tensors` is {return_tensors!r}; expected one of {valid}.")
    return {"np": _as_numpy, None: _as_numpy, "pt": _torch(name), "jax": _as_jax}[name]


def _as_numpy(array: np.ndarray) -> np.ndarray:
    return array


def _torch(name: str | None) -> Any:
    if name != "pt":
        return None
    try:
        import torch
    except ImportError as err:
        raise ImportError("return_tensors='pt' needs torch: pip install 'kimi-jax-prep[torch]'") from err

    def as_torch(array: np.ndarray) -> Any:
        if array.dtype.name == "bfloat16":  # which NumPy's bridge does not know
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    return as_torch


def _as_jax(array: np.ndarray) -> Any:
    import jax

    if array.dtype == np.int64 and not jax.config.read("jax_enable_x64"):
        array = array.astype(np.int32)  # as JAX would, but without its warning; grids are far below the limit
    return jax.device_put(array)
