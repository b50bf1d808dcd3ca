"""`KimiImageProcessor`: the checkpoint's image processor for transformers, with the same calls, keys and bits.

Sizes come from `plan`, pixels from the engine, which all processors of one config share. Pickle, deepcopy and
`save_pretrained` see the settings only.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers.image_processing_base import BatchFeature

from kimi_jax_prep.batch import PatchBatch
from kimi_jax_prep.engine.preprocessor import shared_preprocessor
from kimi_jax_prep.errors import MediaError, PlanError
from kimi_jax_prep.media.opening import open_media, split_video_chunks
from kimi_jax_prep.plan import chunk_prompt, plan_image
from kimi_jax_prep.processor.keywords import (
    OVERRIDES,
    TRANSFORMERS_OVERRIDES,
    KimiImageProcessorKwargs,
    overridden,
)
from kimi_jax_prep.processor.outputs import as_list, flattened, is_video, transformers_names
from kimi_jax_prep.processor.pretrained import SavedSettings
from kimi_jax_prep.processor.tensors import converter
from kimi_jax_prep.tables.lut import output_dtype

__all__ = ["KimiImageProcessor", "KimiImageProcessorKwargs", "as_list"]


class KimiImageProcessor(SavedSettings):
    """Turns images and ready-made video chunks into `pixel_values` (N, 3, 14, 14) and `grid_thws` (media, 3).

    Every setting is an attribute that may be changed: it is checked at once and holds from the next call on.

    Args:
      media_proc_cfg: the checkpoint's dict of that name, a `MediaProcConfig`, or the name of a preset, such as "k3".
        K2.5's config by default.
      config: another name of `media_proc_cfg`.
      dtype: of `pixel_values`: "float32" (the default), "bfloat16", "float16" or "uint8", or the same dtype of NumPy,
        JAX or torch.
      names: dialect of the outputs (see `preprocess`) and of saved files: "checkpoint" or "transformers".
      do_rescale, do_normalize: both False mean `dtype="uint8"`.
      **kwargs: options of `MediaOptions`; keys of the config, by the checkpoint's names or by transformers'; and other
        keys of `preprocessor_config.json`, which are kept for `save_pretrained`.

    Raises:
      ConfigError: the config is incomplete, contradictory or holds an impossible value.
      PlanError: an unknown dtype, an impossible option.
      TypeError: a misspelt keyword.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> BatchFeature:
        """The same as `preprocess`."""
        return self.preprocess(*args, **kwargs)

    def preprocess(  # type: ignore[override]  # the checkpoint names its argument `medias`
        self,
        medias: Any = None,
        return_tensors: Any = None,
        *,
        images: Any = None,
        do_rescale: bool | None = None,
        do_normalize: bool | None = None,
        **overrides: Any,
    ) -> BatchFeature:
        """Patches and grids of media.

        Args:
          medias: one medium, an iterable of media (see `kimi_jax_prep.media`), or an array of images with four axes. An
            empty one gives no keys, as K3's own processor does.
          return_tensors: "np" or None for NumPy arrays, "pt" for torch tensors, "jax" for jax.Arrays.
          images: another name of `medias`.
          do_rescale, do_normalize: both False for bytes, to be normalized on the device. One table does both. None
            means what the processor's dtype says.
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
          TypeError: an unknown keyword, or both `medias` and `images`.
          ImportError: "pt" without torch, a video file without PyAV.
          RuntimeError: "jax" in a process that was forked after JAX had started.
        """
        if medias is not None and images is not None:
            raise TypeError("`medias` and `images` are two names of one argument; give one of them.")
        convert = converter(return_tensors)
        medias = as_list(medias if images is None else images)
        if self.names == "transformers":
            medias = flattened(medias)
        batch = self.to_batch(medias, do_rescale=do_rescale, do_normalize=do_normalize, **overrides)
        if not medias:
            return BatchFeature({})
        return BatchFeature({key: convert(value) for key, value in self.by_name(batch, medias).items()})

    def to_batch(
        self,
        medias: Sequence[Any],
        *,
        do_rescale: bool | None = None,
        do_normalize: bool | None = None,
        **overrides: Any,
    ) -> PatchBatch:
        """The same as `preprocess`, with sizes, token counts and prompts: for callers that also process text.

        Raises: as `preprocess`.
        """
        config, options = overridden(self.config, self.options, overrides)
        dtype = self._dtype_of_call(do_rescale, do_normalize)
        for i, media in enumerate(medias):
            if isinstance(media, list | tuple):
                raise MediaError(f"medias[{i}]: got a {type(media).__name__}; all media come in one flat list.")
        if not medias:  # text alone must not initialize a device
            patches = np.zeros((0, 3, config.patch_size, config.patch_size), output_dtype(dtype))
            return PatchBatch(patches, np.zeros((0, 3), np.int64), (), (), ())
        prep = shared_preprocessor(config, dtype=dtype)
        return prep(medias, **dataclasses.asdict(options))

    def by_name(self, batch: PatchBatch, medias: Sequence[Any], names: str | None = None) -> dict[str, np.ndarray]:
        """Results of these media by the names of the outputs in a dialect, by default the processor's own."""
        if (names or self.names) == "checkpoint":
            return {"pixel_values": batch.pixel_values, "grid_thws": batch.grid_thws}
        return transformers_names(batch, medias)

    def media_tokens_calculator(self, media: Any, **overrides: Any) -> int:
        """Number of tokens of one medium, from its header: nothing is decoded. For a video, the sum of its chunks.

        Args:
          **overrides: as for `preprocess`.

        Raises: as `kimi_jax_prep.media.open_media`.
        """
        config, options = overridden(self.config, self.options, overrides)
        return sum(medium.plan(config).num_tokens for medium in open_media(media, config, options))

    def get_resize_config(self, media: Any, **overrides: Any) -> dict[str, int]:
        """Sizes of one medium, from its header, with the checkpoint's keys. Widths and heights are in pixels.

        Raises: as `kimi_jax_prep.media.open_media`; also for a video, which has several: see `split_video_chunks`.
        """
        config, options = overridden(self.config, self.options, overrides)
        opened = open_media(media, config, options)
        if is_video(media) and media["type"] == "video":
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
        """(width, height) of one image in pixels, before any resize: the input of its plan.

        Raises: as `kimi_jax_prep.media.open_media`.
        """
        config, options = overridden(self.config, self.options, overrides)
        return open_media(media, config, options)[0].size

    def get_number_of_image_patches(
        self, height: int, width: int, images_kwargs: Mapping[str, Any] | None = None
    ) -> int:
        """Patches of an image of this size, in pixels.

        Args:
          images_kwargs: as for `preprocess`; those that have nothing to do with sizes are ignored.

        Raises:
          PrepError: a side is not a positive whole number, or an override is impossible.
        """
        sizes = (*OVERRIDES, *TRANSFORMERS_OVERRIDES, "patch_size", "merge_size", "do_resize", "do_pad")
        known = {name: value for name, value in (images_kwargs or {}).items() if name in sizes}
        config, _ = overridden(self.config, self.options, known)
        return plan_image(width=width, height=height, config=config).num_patches

    def split_video_chunks(self, video: Any, *, fps: float | None = None, **options: Any) -> list[dict[str, Any]]:
        """A video as the chunks that `preprocess` takes: see `kimi_jax_prep.split_video_chunks`."""
        chosen = dataclasses.asdict(self.options) | options
        return split_video_chunks(video, config=self.config, fps=fps, **chosen)

    @staticmethod
    def make_chunk_prompt(timestamp_text: str) -> str:
        """The text that stands for a video chunk starting at this time."""
        return chunk_prompt(timestamp_text)

    @staticmethod
    def make_image_prompt(width: int, height: int) -> str:
        """K3's text that stands for an image of this size: pixels of the original, before any resize."""
        return f"<|media_begin|>image {width}x{height}<|media_content|><|media_pad|><|media_end|>"

    def _dtype_of_call(self, do_rescale: bool | None, do_normalize: bool | None) -> str:
        """The dtype of one call's patches: the processor's, or bytes where neither step is wanted."""
        rescale, normalize = (self.do_rescale if flag is None else flag for flag in (do_rescale, do_normalize))
        if rescale is not normalize or not isinstance(rescale, bool):
            raise PlanError(
                f"`do_rescale` is {do_rescale!r} and `do_normalize` is {do_normalize!r}: one table does both, so both "
                "are True, or both are False for bytes that are normalized later."
            )
        if rescale and self.dtype == "uint8":
            raise PlanError(
                "`do_rescale` and `do_normalize` are True, but the processor's dtype is 'uint8', bytes that are not "
                "normalized; set another dtype."
            )
        return self.dtype if rescale else "uint8"
