"""`KimiImageProcessor`: the checkpoint's image processor for transformers, with the same calls, keys and bits.

Thin: sizes come from `_geometry`, pixels from the engine, which is shared by all processors of a config and never
visible to pickle, deepcopy or `save_pretrained`.
"""

import collections
import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers.image_processing_base import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor

from kimi_jax_prep.batch import PatchBatch
from kimi_jax_prep.checks import check_keywords
from kimi_jax_prep.config import KIMI_K25, MediaProcConfig
from kimi_jax_prep.engine.preprocessor import shared_preprocessor
from kimi_jax_prep.errors import ConfigError, MediaError, PlanError, PrepError
from kimi_jax_prep.media.chunks import split_video_chunks
from kimi_jax_prep.media.opening import open_media
from kimi_jax_prep.media.options import OPTIONS, MediaOptions
from kimi_jax_prep.plan import chunk_prompt, plan_image
from kimi_jax_prep.processor.keywords import (
    CALL_KEYWORDS,
    CONFIG_KEYS,
    OURS,
    OVERRIDES,
    TRANSFORMERS_OVERRIDES,
    KimiImagesKwargs,
    refuse_misspelt,
    sizes_of,
    without_fixed,
)
from kimi_jax_prep.processor.pretrained import config_file, names_a_path, read_config, same_model
from kimi_jax_prep.processor.tensors import converter
from kimi_jax_prep.tables.lut import output_dtype

NAMES = ("checkpoint", "transformers")
_WRITTEN_BY_TRANSFORMERS = ("image_processor_type", "processor_class", "feature_extractor_type")
_MOST_PATCHES_ON_ONE_SIDE = 512


class KimiImageProcessor(BaseImageProcessor):
    """Pictures and ready-made video chunks to `pixel_values` (N, 3, 14, 14) and `grid_thws` (media, 3).

    Args:
      media_proc_cfg: the checkpoint's dict of that name, or a `MediaProcConfig`; without it K2.5's.
      dtype: of `pixel_values`: "float32", "bfloat16", "float16" or "uint8".
      names: of the outputs: "checkpoint" or "transformers", see `preprocess`.
      **kwargs: options of `MediaOptions`; and other keys of `preprocessor_config.json`, which are kept for
        `save_pretrained`.

    Raises:
      ConfigError: the config is incomplete, contradictory or holds an impossible value.
      PlanError: an unknown dtype, an impossible option.
      TypeError: a misspelt keyword.
    """

    valid_kwargs = KimiImagesKwargs

    def __init__(
        self,
        media_proc_cfg: Mapping[str, Any] | MediaProcConfig | None = None,
        *,
        dtype: str = "float32",
        names: str = "checkpoint",
        **kwargs: Any,
    ) -> None:
        super().__init__()
        output_dtype(dtype)
        if names not in NAMES:
            raise ConfigError(f"`names` is {names!r}; expected one of {', '.join(map(repr, NAMES))}.")
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        for name in _WRITTEN_BY_TRANSFORMERS:
            kwargs.pop(name, None)
        refuse_misspelt(kwargs)
        if media_proc_cfg is None:
            media_proc_cfg = MediaProcConfig.from_dict(kwargs) if kwargs else KIMI_K25
        elif isinstance(media_proc_cfg, MediaProcConfig):
            if kwargs:
                media_proc_cfg = MediaProcConfig.from_dict(media_proc_cfg.to_dict() | kwargs)
        else:
            media_proc_cfg = MediaProcConfig.from_dict({**kwargs, "media_proc_cfg": media_proc_cfg})
        self.config = media_proc_cfg
        self.dtype = dtype
        self.names = names
        self.options = MediaOptions(**options)

    @property
    def model_input_names(self) -> list[str]:
        """Keys of the outputs."""
        return self.input_names()

    def input_names(self, names: str | None = None) -> list[str]:
        """Keys of the outputs; `names` in place of the processor's own."""
        if (names or self.names) == "checkpoint":
            return ["pixel_values", "grid_thws"]
        return ["pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw", "num_chunks_per_video"]

    @property
    def patch_size(self) -> int:
        """Pixels along a patch's side."""
        return self.config.patch_size

    @property
    def merge_size(self) -> int:
        """Patches along a token's side: transformers' name for `merge_kernel_size`."""
        return self.config.merge_kernel_size

    @property
    def temporal_patch_size(self) -> int:
        """Most frames of one chunk: transformers' name for `temporal_merge_kernel_size`."""
        return self.config.temporal_merge_kernel_size

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
        self,
        medias: Any,
        return_tensors: Any = None,
        *,
        do_rescale: bool = True,
        do_normalize: bool = True,
        **overrides: Any,
    ) -> BatchFeature:
        """Patches and grids of media.

        Args:
          medias: one medium or an iterable of media, see `kimi_jax_prep.media`. An empty one gives no keys, as K3's
            own processor does.
          return_tensors: "np" or None for NumPy arrays, "pt" for torch tensors, "jax" for jax.Arrays.
          do_rescale, do_normalize: both False for bytes, to be normalized on the device. One table does both.
          **overrides: keys of `OVERRIDES` (or `max_patches` and `size`, as transformers names two of them) and of
            `MediaOptions`, for this call only. The former are counts of patches or tokens, and no side may exceed 512
            patches, where the model's positions end.

        Returns:
          `pixel_values` (N, 3, 14, 14) in the processor's dtype and `grid_thws` (rows, 3) int64 ("jax": int32, or
          int64 under x64), a row for each image and each chunk of a video. With `names="transformers"`:
          `pixel_values` and `image_grid_thw` of the images, `pixel_values_videos`, `video_grid_thw` and
          `num_chunks_per_video` (videos,) of the rest, as far as there are any. NumPy and torch results are writable
          and the caller's own.

        Raises:
          PrepError: with the index of the medium at fault; also for unknown `return_tensors` and impossible overrides.
          FileNotFoundError: a path does not exist; its index is in the message.
          TypeError: an unknown keyword.
          ImportError: "pt" without torch, a video file without PyAV.
          RuntimeError: "jax" in a process that was forked after JAX had started.
        """
        convert = converter(return_tensors)
        medias = as_list(medias)
        if self.names == "transformers":
            # Its processors pass pictures on in one list for each text, or as one array.
            nested = (m if isinstance(m, list | tuple) else [m] for m in medias)
            medias = [m for each in nested for m in each]
            medias = [m for each in medias for m in (each if getattr(each, "ndim", 0) == 4 else [each])]
        batch = self.to_batch(medias, do_rescale=do_rescale, do_normalize=do_normalize, **overrides)
        if not medias:
            return BatchFeature({})
        return BatchFeature({key: convert(value) for key, value in self.by_name(batch, medias).items()})

    def to_batch(
        self, medias: Sequence[Any], *, do_rescale: bool = True, do_normalize: bool = True, **overrides: Any
    ) -> PatchBatch:
        """The same as `preprocess`, with sizes, token counts and prompts: for whoever also has text to make.

        Raises: as `preprocess`.
        """
        config, options = self._overridden(overrides)
        if do_rescale is not do_normalize or not isinstance(do_rescale, bool):
            raise PlanError(
                f"`do_rescale` is {do_rescale!r} and `do_normalize` is {do_normalize!r}: one table does both, so both "
                "are True, or both are False for bytes that are normalized later."
            )
        for i, media in enumerate(medias):
            if isinstance(media, list | tuple):
                raise MediaError(f"medias[{i}]: got a {type(media).__name__}; all media come in one flat list.")
        dtype = self.dtype if do_rescale else "uint8"
        if not medias:  # text alone must not wake a device
            patches = np.zeros((0, 3, config.patch_size, config.patch_size), output_dtype(dtype))
            return PatchBatch(patches, np.zeros((0, 3), np.int64), (), (), ())
        prep = shared_preprocessor(config, dtype=dtype)
        return prep(medias, **dataclasses.asdict(options))

    def by_name(self, batch: PatchBatch, medias: Sequence[Any], names: str | None = None) -> dict[str, np.ndarray]:
        """Results of these media by the names of the outputs; `names` in place of the processor's own."""
        if (names or self.names) == "checkpoint":
            return {"pixel_values": batch.pixel_values, "grid_thws": batch.grid_thws}
        return _transformers_names(batch, [not _is_video(media) for media in medias])

    def media_tokens_calculator(self, media: Any, **overrides: Any) -> int:
        """Tokens of one medium, from its header: nothing is decoded. A video's are those of all its chunks.

        Args:
          **overrides: as for `preprocess`.

        Raises: as `kimi_jax_prep.media.open_media`.
        """
        config, options = self._overridden(overrides)
        return sum(medium.plan(config).num_tokens for medium in open_media(media, config, options))

    def get_resize_config(self, media: Any, **overrides: Any) -> dict[str, int]:
        """Sizes of one medium, from its header, in the checkpoint's words. Widths and heights are in pixels.

        Raises: as `kimi_jax_prep.media.open_media`; also for a video, which has several: see `split_video_chunks`.
        """
        config, options = self._overridden(overrides)
        opened = open_media(media, config, options)
        if _is_video(media) and media["type"] == "video":
            raise MediaError("a video has a size for each of its chunks; ask for those of `split_video_chunks(video)`.")
        plan = opened[0].plan(config)
        return {
            "num_tokens": plan.num_tokens,
            "new_width": plan.width,
            "new_height": plan.height,
            "pad_width": plan.pad_right,
            "pad_height": plan.pad_bottom,
            "sampled_nframes": plan.grid_thw[0],
        }

    def image_size(self, media: Any, **overrides: Any) -> tuple[int, int]:
        """(width, height) of one image in pixels, before any resize: what its plan is made from.

        Raises: as `kimi_jax_prep.media.open_media`.
        """
        config, options = self._overridden(overrides)
        return open_media(media, config, options)[0].size

    def get_number_of_image_patches(
        self, height: int, width: int, images_kwargs: Mapping[str, Any] | None = None
    ) -> int:
        """Patches of an image of this size, in pixels.

        Args:
          images_kwargs: as the overrides of `preprocess`; others are ignored.

        Raises:
          PlanError: a side is not a positive whole number, or an override is impossible.
        """
        known = {k: v for k, v in (images_kwargs or {}).items() if k in (*OVERRIDES, *TRANSFORMERS_OVERRIDES)}
        config, _ = self._overridden(known)
        return plan_image(width=width, height=height, config=config).num_patches

    def split_video_chunks(self, video: Any, *, fps: float | None = None, **options: Any) -> list[dict[str, Any]]:
        """A video as the chunks that `preprocess` takes: see `kimi_jax_prep.split_video_chunks`."""
        chosen = dataclasses.asdict(self.options) | options
        return split_video_chunks(video, config=self.config, fps=fps, **chosen)

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
        values = {k: v for k, v in image_processor_dict.items() if k not in _WRITTEN_BY_TRANSFORMERS}
        given = {name: values.pop(name) for name in OURS if name in values}
        given |= {name: kwargs.pop(name) for name in OURS if name in kwargs}
        config = MediaProcConfig.from_dict(values)
        if "media_proc_cfg" in kwargs:
            config = same_model(config, kwargs.pop("media_proc_cfg"))
        if {"max_patches", "size"} & kwargs.keys():
            theirs = {name: kwargs.pop(name) for name in ("max_patches", "size") if name in kwargs}
            kwargs = {**kwargs, **sizes_of(theirs)}
        changed = {name: kwargs.pop(name) for name in CONFIG_KEYS if name in kwargs}
        refuse_misspelt(kwargs)
        processor = cls(replace(config, **changed), **given)
        return (processor, kwargs) if return_unused else processor

    def to_dict(self) -> dict[str, Any]:
        """The checkpoint's dialect, plain JSON types, unknown keys in their places; our own settings where changed."""
        values = self.config.to_dict() | {"image_processor_type": type(self).__name__}
        if self.dtype != "float32":
            values["dtype"] = self.dtype
        if self.names != "checkpoint":
            values["names"] = self.names
        return values | self.options.changed()

    def __getstate__(self) -> dict[str, Any]:
        # Pickle writes a shared object otherwise than two equal ones. As one text, equal configs give equal bytes
        # whoever made them, and so equal hashes in `datasets`.
        return vars(self) | {"config": json.dumps(self.config.to_dict(), sort_keys=True)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update({**state, "config": MediaProcConfig.from_dict(json.loads(state["config"]))})

    def _overridden(self, overrides: Mapping[str, Any]) -> tuple[MediaProcConfig, MediaOptions]:
        """Config and options of one call."""
        if not overrides:
            return self.config, self.options
        overrides = without_fixed(overrides)
        check_keywords(overrides, CALL_KEYWORDS)
        sizes = {name: overrides[name] for name in (*OVERRIDES, *TRANSFORMERS_OVERRIDES) if name in overrides}
        options = self.options.replace(**{name: value for name, value in overrides.items() if name in OPTIONS})
        config = replace(self.config, **sizes_of(sizes))
        if config.patch_limit_on_one_side > max(_MOST_PATCHES_ON_ONE_SIDE, self.config.patch_limit_on_one_side):
            raise PlanError(
                f"`patch_limit_on_one_side` is {config.patch_limit_on_one_side}; the model's positions end at "
                f"{_MOST_PATCHES_ON_ONE_SIDE} patches."
            )
        return config, options


def _is_video(media: Any) -> bool:
    return isinstance(media, Mapping) and media.get("type") in ("video", "video_chunk")


def _transformers_names(batch: PatchBatch, is_image: Sequence[bool]) -> dict[str, np.ndarray]:
    """Outputs by transformers' names, images apart from videos. Without a copy where there is only one kind."""
    rows = np.array([is_image[source] for source in batch.sources])
    patches = np.repeat(rows, [plan.num_patches for plan in batch.plans])
    outputs = {}
    if rows.any():
        outputs["pixel_values"] = batch.pixel_values if rows.all() else batch.pixel_values[patches]
        outputs["image_grid_thw"] = batch.grid_thws[rows]
    if not rows.all():
        outputs["pixel_values_videos"] = batch.pixel_values[~patches] if rows.any() else batch.pixel_values
        outputs["video_grid_thw"] = batch.grid_thws[~rows]
        chunks = collections.Counter(source for source in batch.sources if not is_image[source])
        outputs["num_chunks_per_video"] = np.array([chunks[source] for source in sorted(chunks)], np.int64)
    return outputs


def as_list(medias: Any) -> list[Any]:
    """Media as a list; one medium becomes a list of one."""
    one = (str, bytes, bytearray, memoryview, Mapping, os.PathLike)
    # Arrays have a shape, open files can be read, and vLLM's pictures have their bytes beside them: all of them could
    # also be iterated over, with nonsense coming out.
    if (
        isinstance(medias, one)
        or hasattr(medias, "shape")
        or hasattr(medias, "read")
        or hasattr(medias, "original_bytes")
        or not isinstance(medias, Iterable)
    ):
        return [medias]
    return list(medias)
