"""Which interface a `KimiProcessor` stands in for: the checkpoint's own processor or transformers' port of it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from transformers.processing_utils import MultiModalData, ProcessorMixin

from kimi_jax_prep.plan import plan_video
from kimi_jax_prep.processor.call.ids import known_id, token_id
from kimi_jax_prep.text.placeholders import K3, K25, MEDIA_PAD, STYLES, PromptStyle


class Outputs(NamedTuple):
    """Defaults of a call, and the names of its results."""

    expand: bool
    """Whether every medium has as many `<|media_pad|>` ids as tokens, or one."""
    return_tensors: str | None
    names: str | None
    """"checkpoint": `grid_thws`. "transformers": `image_grid_thw`. None: as the image processor has it."""


OUTPUTS: dict[str | None, Outputs] = {
    None: Outputs(expand=True, return_tensors=None, names=None),
    "checkpoint": Outputs(expand=False, return_tensors="pt", names="checkpoint"),
    "transformers": Outputs(expand=True, return_tensors=None, names="transformers"),
}
_FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
_TRANSFORMERS_CLASS = "Kimi_K25Processor"
_CHECKPOINT_CLASSES = ("KimiK25Processor", "KimiK3Processor")


def outputs_of_files(contents: Mapping[str, Mapping[str, Any]], *, trust_remote_code: bool = False) -> str | None:
    """The value of `outputs` that stands for the class that a folder asks for.

    `AutoProcessor.from_pretrained` follows `processor_class`, and `auto_map` where there is no such class in
    transformers or the caller trusts remote code. What those classes return is what callers of this folder expect.

    Args:
      contents: of the folder's JSON files, by name.
    """
    files = [contents[name] for name in _FILES if name in contents]
    classes = [file.get("processor_class") for file in files]
    remote = any("AutoProcessor" in (file.get("auto_map") or {}) for file in files)
    if _TRANSFORMERS_CLASS in classes and not (remote and trust_remote_code):
        return "transformers"
    return "checkpoint" if remote or any(name in _CHECKPOINT_CLASSES for name in classes) else None


class TransformersNames(ProcessorMixin):
    """Names and counts of placeholders, as transformers' processors have them."""

    image_processor: Any
    tokenizer: Any
    prompt_style: str | None

    @property
    def style(self) -> PromptStyle:
        """Which placeholders and prompts are used."""
        if self.prompt_style is not None:
            return STYLES[self.prompt_style]
        return K25 if self.image_processor.config.transparent_bg_config is None else K3

    @property
    def media_pad_token_id(self) -> int:
        """The id that stands for a medium, or for each of its tokens."""
        return token_id(self.tokenizer, MEDIA_PAD)

    @property
    def image_token(self) -> str:
        """What stands for an image in a text, by transformers' name."""
        return MEDIA_PAD

    @property
    def video_token(self) -> str | None:
        """What stands for a video in a text, by transformers' name; None for Kimi-K3."""
        return self.style.video_placeholder

    @property
    def image_token_id(self) -> int:
        """The id of `image_token`."""
        return self.media_pad_token_id

    @property
    def video_token_id(self) -> int | None:
        """The id of `video_token`, or None."""
        return None if self.video_token is None else known_id(self.tokenizer, self.video_token)

    def _get_num_multimodal_tokens(
        self,
        image_sizes: Sequence[Sequence[int]] | None = None,
        video_sizes: Sequence[Sequence[int]] | None = None,
        **kwargs: Any,
    ) -> MultiModalData:
        """Tokens of media of these sizes, under the name by which vLLM asks transformers' processors.

        Args:
          image_sizes: (height, width) of each image, in pixels.
          video_sizes: (frames, height, width) of each video, as sampled.
          **kwargs: overrides of the image processor, for images.
        """
        config = self.image_processor.config
        counts: dict[str, list[int]] = {}
        if image_sizes is not None:
            patches = [self.image_processor.get_number_of_image_patches(h, w, kwargs) for h, w in image_sizes]
            fixed, merged = config.fixed_output_tokens, config.merge_kernel_size**2
            counts["num_image_patches"] = patches
            counts["num_image_tokens"] = [number // merged if fixed is None else fixed for number in patches]
        if video_sizes is not None:
            # Sampled already: at the rate of sampling every frame is taken.
            plans = [
                plan_video(num_frames=frames, fps=config.sample_fps, width=w, height=h, config=config)
                for frames, h, w in video_sizes
            ]
            counts["num_video_tokens"] = [sum(chunk.plan.num_tokens for chunk in chunks) for chunks in plans]
        return MultiModalData(**counts)
