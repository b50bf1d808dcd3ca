"""`KimiProcessor`: text and media, or chat messages, to all that the model takes.

Media are the image processor's work, ids the tokenizer's. `assembly` puts them together.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import AutoTokenizer

from kimi_jax_prep.checks import check_keywords, one_of
from kimi_jax_prep.errors import ConfigError, TextError
from kimi_jax_prep.media.encoded import encoded
from kimi_jax_prep.media.items import Failures
from kimi_jax_prep.processor.call.arguments import DEFAULT, read_call
from kimi_jax_prep.processor.call.assembly import (
    Assembly,
    kind_of,
    media_of_call,
    prompt_of_messages,
    prompt_of_text,
)
from kimi_jax_prep.processor.call.chat import TEMPLATE_KEYWORDS, ChatTemplates
from kimi_jax_prep.processor.call.ids import as_array, token_id
from kimi_jax_prep.processor.image import KimiImageProcessor
from kimi_jax_prep.processor.inputs import KimiInputs
from kimi_jax_prep.processor.interfaces import OUTPUTS, TransformersNames, outputs_of_files
from kimi_jax_prep.processor.keywords import ALIASES, CALL_KEYWORDS, CONFIG_KEYS, FIXED, OURS, refuse_misspelt
from kimi_jax_prep.text.placeholders import MEDIA_PAD, STYLES
from kimi_jax_prep.text.rows import padded

_OWN_SETTINGS = ("chat_template", "prompt_style", "outputs")
_IMAGE_SETTINGS = {"media_proc_cfg", *CONFIG_KEYS, *OURS, *CALL_KEYWORDS, *ALIASES, *FIXED} - {"return_tensors"}
_HUB = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
# Keywords of transformers' `apply_chat_template` for what is not done here; False is what happens.
_OFF_BY_DEFAULT = ("load_audio_from_video", "sanitize_control_tokens")


class KimiProcessor(TransformersNames):
    """Text and media to `input_ids`, `attention_mask`, `pixel_values` and `grid_thws`.

    Args:
      image_processor: for the media. Its config says which model's prompts are written: Kimi-K3 is the one that paints
        a background behind transparent pixels (`transparent_bg_config`).
      tokenizer: of transformers; it must know `<|media_pad|>`.
      chat_template: for messages, in place of the tokenizer's; a template, or several by name.
      prompt_style: "k2.5" or "k3", in place of what the config says.
      outputs: whose place it takes. "checkpoint": as the checkpoint's own processor, one `<|media_pad|>` for each image
        or chunk, torch tensors unless `return_tensors` says otherwise, `grid_thws`. "transformers": as transformers'
        port, a pad for each token, `image_grid_thw` and `video_grid_thw`. None: a pad for each token, lists and NumPy
        arrays, names as the image processor has them. `from_pretrained` chooses by the folder.

    Raises:
      ConfigError: the tokenizer does not know `<|media_pad|>`; an unknown `prompt_style` or `outputs`.
      TypeError: something else in place of an image processor or a tokenizer.
    """

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        chat_template: str | dict[str, str] | None = None,
        prompt_style: str | None = None,
        outputs: str | None = None,
    ) -> None:
        if not isinstance(image_processor, KimiImageProcessor):
            raise TypeError(f"`image_processor` must be a KimiImageProcessor; got {type(image_processor).__name__}.")
        super().__init__(image_processor, tokenizer, chat_template=chat_template)
        if prompt_style is not None and prompt_style not in STYLES:
            raise ConfigError(f"`prompt_style` is {prompt_style!r}; expected {' or '.join(map(repr, STYLES))}.")
        one_of("outputs", outputs, OUTPUTS, error=ConfigError)
        self.prompt_style = prompt_style
        self.outputs = outputs
        token_id(self.tokenizer, MEDIA_PAD)

    @property
    def media_processor(self) -> KimiImageProcessor:
        """The image processor, by the checkpoint's second name for it."""
        return self.image_processor

    @property
    def model_input_names(self) -> list[str]:
        """Keys of the outputs."""
        names = self.image_processor.input_names(OUTPUTS[self.outputs].names)
        return ["input_ids", "attention_mask", *(name for name in names if name not in self.unused_input_names)]

    @property
    def unused_input_names(self) -> list[str]:
        """What the image processor returns and the model does not take."""
        return ["num_chunks_per_video"]

    def __call__(  # type: ignore[override]  # the checkpoint's arguments come first
        self,
        messages: Any = None,
        medias: Any = None,
        text: Any = None,
        return_tensors: Any = DEFAULT,
        *,
        input_ids: Any = None,
        attention_mask: Any = None,
        images: Any = None,
        videos: Any = None,
        expand: bool | None = None,
        return_assistant_tokens_mask: bool | None = None,
        return_labels: bool | None = None,
        **kwargs: Any,
    ) -> KimiInputs:
        """One batch of model inputs.

        Args:
          messages: a conversation or a list of them for the chat template. Their media are those in parts
            `{"type": "image", "image": ...}`, `image_url`, `video`, `video_url` and `video_chunk`, or come in `medias`,
            `images` and `videos` if all parts leave theirs out.
          medias: media as `kimi_jax_prep.media` has them, in one list for all texts, or a list of lists with one (or
            None) for each text. A list of chunks in place of a medium holds the chunks of one video.
          text: in place of `messages`, one text or a list of them, with a placeholder for each medium. Kimi-K2.5:
            `<|media_pad|>`, in whatever prompt the chat template wrote around it, for an image or a ready-made chunk;
            `<|kimi_k25_video_placeholder|>` for a video, or for the chunks of one. Kimi-K3:
            `<|kimi_image_placeholder|>`, replaced by a prompt with the image's size (a finished prompt with its
            `<|media_pad|>` does as well). Placeholders come in the order of the media. Exactly as many `<|media_pad|>`
            in a row as a medium has tokens also stand for it, and stay.
          return_tensors: "np", "pt", "jax", or None for lists of ids and NumPy arrays of pixels; by default what
            `outputs` says.
          input_ids: in place of `text`, the ids of one text or of several.
          attention_mask: of `input_ids`, with 0 for padding.
          images, videos: in place of `medias`, as transformers has them: one, a list, or a list with a list (or None)
            for each text. They take the placeholders of their kind in order. A list of pictures is the frames of one
            video. With `outputs="checkpoint"` such a call returns what "transformers" says, since the checkpoint's
            processor has no such arguments.
          expand: whether an image or chunk has as many `<|media_pad|>` ids as tokens. With False there is one, which
            the checkpoint's own model and vLLM replace by themselves. By default what `outputs` says.
          return_assistant_tokens_mask: also `assistant_masks`, 1 for what the assistant says in `messages`. The
            template marks it by `{% generation %}`.
          return_labels: also `labels`: the ids where `assistant_masks` is 1 and that stand for no medium, -100 for all
            others.
          **kwargs: of lengths, by the words of transformers' tokenizers: `padding`, `truncation`, `max_length`,
            `pad_to_multiple_of`, `padding_side`, `truncation_side`, `add_special_tokens` (they count expanded ids). Of
            templates: `add_generation_prompt`, `continue_final_message`, `tools`, `documents`, `chat_template`, the
            variables that the template reads, and a dict `chat_template_kwargs` of them. Of videos: `video_metadata`,
            for each of `videos` a mapping or object with `fps` (of the source) and `frames_indices`. Others as for the
            image processor. `return_mm_token_type_ids=True` adds `mm_token_type_ids`: 1 for images, 2 for videos, 0
            for text. `text_kwargs`, `images_kwargs`, `videos_kwargs` and `common_kwargs` hold the same keywords.

        Returns:
          `input_ids` and `attention_mask`, (texts, length) int64 or lists; the image processor's outputs if there are
          media. `media_spans` of the result says where they are; it is no key, so `model(**inputs)` works.

        Raises:
          TextError: placeholders and media differ in number or order, whoever wrote them: a `<|media_pad|>` in a user's
            text is counted too. Also a length that would cut a medium.
          PlanError: an impossible length or side; texts of several lengths without padding for one array; another
            sampling of frames than the checkpoint's; a keyword that is given twice.
          ConfigError: no chat template, or one without marks for the assistant's turns; a tokenizer that does not know
            `<|media_pad|>`.
          TypeError: an unknown keyword; media by two names.
          Others: as `KimiImageProcessor.preprocess`, with indices into the media of all texts, one after another.
        """
        by_kind = images is not None or videos is not None
        templates = ChatTemplates(self.chat_template, self.tokenizer)
        call = read_call(
            kwargs,
            outputs=OUTPUTS["transformers" if by_kind and self.outputs == "checkpoint" else self.outputs],
            expand=expand,
            return_tensors=return_tensors,
            tokenizer=self.tokenizer,
            templates=None if messages is None else templates,
        )
        if call.video_metadata is not None and videos is None:
            raise TypeError("`video_metadata` goes with `videos`; a medium holds 'fps' and 'frames_indices' itself.")
        with_turns = bool(return_assistant_tokens_mask or return_labels)
        if messages is not None and text is None and input_ids is None:
            prompt = prompt_of_messages(messages, templates, call, with_turns=with_turns)
        else:
            prompt = prompt_of_text(messages, text, input_ids, attention_mask, call, with_turns=with_turns)
        assembly = Assembly(self.image_processor, self.tokenizer, self.style, call)
        marks = assembly.marks(prompt)
        media = media_of_call(prompt, marks, medias, (images, videos, call.video_metadata) if by_kind else None)
        slots, batch = assembly.matched(marks, media)
        rows = assembly.rows(prompt, slots, media.flat, batch)
        rows = padded(rows, call.lengths, self.tokenizer.pad_token_id)
        data: dict[str, Any] = {"input_ids": [row.ids for row in rows], "attention_mask": [row.mask for row in rows]}
        if return_assistant_tokens_mask:
            data["assistant_masks"] = [row.assistant for row in rows]
        if return_labels:
            data["labels"] = [row.labels for row in rows]
        if call.token_types:
            data["mm_token_type_ids"] = assembly.token_types(rows, slots, media.flat, batch)
        if not call.as_lists:
            data = {name: call.convert(as_array(value)) for name, value in data.items()}
        if media.flat:
            pixels = self.image_processor.by_name(batch, media.flat, call.names)
            data |= {name: call.convert(value) for name, value in pixels.items() if name not in self.unused_input_names}
        return KimiInputs(data, media_spans=[row.spans for row in rows])

    def apply_chat_template(  # type: ignore[override]  # keywords are checked by name
        self,
        conversation: Any,
        chat_template: str | None = None,
        *,
        tokenize: bool = False,
        return_dict: bool | None = None,
        processor_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Messages as text, with placeholders; with `tokenize=True` as `processor(messages=..., **kwargs)`.

        Args:
          conversation: messages, or a list of such lists.
          chat_template: a template, or the name of one where there are several.
          return_dict: whether to return all inputs, or `input_ids` alone. True by default, but False with
            `outputs="transformers"`, as there.
          processor_kwargs: further keywords of the call.
          **kwargs: the same; also the variables that the template reads.

        Raises: as calling the processor.
        """
        if chat_template is not None:
            kwargs["chat_template"] = chat_template
        for name in _OFF_BY_DEFAULT:
            if not kwargs.get(name, True):
                del kwargs[name]
        if tokenize:
            inputs = self(messages=conversation, **kwargs, **(processor_kwargs or {}))
            if return_dict is None:
                return_dict = self.outputs != "transformers"
            return inputs if return_dict else inputs["input_ids"]
        templates = ChatTemplates(self.chat_template, self.tokenizer)
        options = {name: kwargs.pop(name) for name in TEMPLATE_KEYWORDS if name in kwargs}
        for name in ("return_tensors", "return_assistant_tokens_mask"):  # without ids there is nothing to return
            kwargs.pop(name, None)
        variables = {name: kwargs.pop(name) for name in kwargs.keys() & templates.variables(options)}
        check_keywords(kwargs, TEMPLATE_KEYWORDS)
        options["chat_template_kwargs"] = variables | (options.get("chat_template_kwargs") or {})
        rendered, several = templates.render(conversation, options)
        texts = [one.text for one in rendered]
        return texts if several else texts[0]

    def preprocess_medias(self, medias: Sequence[Any]) -> tuple[list[Any], list[str]]:
        """Media as the image processor takes them, and what replaces their placeholders: the checkpoint's method.

        Args:
          medias: media as `kimi_jax_prep.media` has them, in one list.

        Returns:
          Kimi-K2.5: the media with chunks in place of every video, and one prompt for each video. Kimi-K3: the media,
          and one prompt for each image.

        Raises:
          MediaError: with the index of the medium at fault; also a video for Kimi-K3.
          Others: as `kimi_jax_prep.media.open_media`, with the index.
        """
        updated: list[Any] = []
        prompts: list[str] = []
        failures = Failures(skip=False)
        for i, media in enumerate(medias):
            kind = kind_of(media, i, self.style)
            with failures.about(i):
                if kind == "video":
                    chunks = self.image_processor.split_video_chunks(media)
                    updated += chunks
                    prompts.append("".join(chunk["prompt"] for chunk in chunks))
                elif kind == "image" and self.style.image_placeholder is not None:
                    updated.append(_readable_again(media))
                    size = self.image_processor.image_size(updated[-1])
                    prompts.append(self.image_processor.make_image_prompt(*size))
                else:
                    updated.append(media)
        return updated, prompts

    def update_raw_text(self, text: str, prompts: Sequence[str]) -> str:
        """The text with prompts in place of its placeholders: the checkpoint's method.

        Args:
          text: one text. One without placeholders is returned as it is.
          prompts: of `preprocess_medias`.

        Raises:
          TextError: another number of prompts than of placeholders.
        """
        placeholder = self.style.image_placeholder or self.style.video_placeholder
        assert placeholder is not None  # every style has one
        parts = text.split(placeholder)
        if len(parts) == 1:
            return text
        if len(parts) - 1 != len(prompts):
            raise TextError(f"the text has {len(parts) - 1} `{placeholder}`, but there are {len(prompts)} prompts.")
        return "".join([parts[0], *(piece for pair in zip(prompts, parts[1:], strict=True) for piece in pair)])

    def save_pretrained(self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any) -> Any:
        """Write all that `from_pretrained` reads, and `preprocessor_config.json` for whoever reads that alone.

        Args:
          push_to_hub, **kwargs: as transformers has them.
        """
        os.makedirs(save_directory, exist_ok=True)
        # An older file of this name, such as the checkpoint's, has precedence over the one that transformers writes.
        self.image_processor.save_pretrained(save_directory)
        return super().save_pretrained(os.fspath(save_directory), push_to_hub=push_to_hub, **kwargs)

    @classmethod
    def from_pretrained(  # type: ignore[override]  # the hub's options are among the keywords
        cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any
    ) -> "KimiProcessor":
        """Read a checkpoint's folder, one that `save_pretrained` made, or a repository of the hub.

        Args:
          pretrained_model_name_or_path: as for `KimiImageProcessor.from_pretrained`, with a tokenizer beside.
          **kwargs: `image_processor`, `tokenizer`, in place of the folder's; `chat_template`, `prompt_style`, and
            `outputs`; what `KimiImageProcessor.from_pretrained` takes. All others are for
            `AutoTokenizer.from_pretrained`, such as `trust_remote_code=True`, which runs the tokenizer's code only.

        Returns:
          A processor whose `outputs`, unless given, are those of the class that the folder names: "checkpoint" for its
          remote code (`auto_map`), "transformers" for `processor_class` "Kimi_K25Processor", None where it names none.

        Raises: as `KimiImageProcessor.from_pretrained` and `AutoTokenizer.from_pretrained`.
        """
        image_processor, tokenizer = kwargs.pop("image_processor", None), kwargs.pop("tokenizer", None)
        own = {name: kwargs.pop(name) for name in _OWN_SETTINGS if name in kwargs}
        image = {name: kwargs.pop(name) for name in sorted(_IMAGE_SETTINGS & kwargs.keys())}
        hub = {name: kwargs[name] for name in _HUB if name in kwargs}
        refuse_misspelt(kwargs)
        if kwargs.pop("video_processor", None) is not None:
            raise TypeError("there is no `video_processor`: `image_processor` takes images and video.")
        if image_processor is not None and image:
            raise TypeError(
                f"{', '.join(map(repr, image))} cannot be combined with `image_processor`, which has its own settings."
            )
        if image_processor is None:
            image_processor = KimiImageProcessor.from_pretrained(pretrained_model_name_or_path, **hub, **image)
        if tokenizer is None:
            tokenizer = AutoTokenizer.from_pretrained(pretrained_model_name_or_path, **kwargs)
        saved, _ = cls.get_processor_dict(pretrained_model_name_or_path, **hub)
        if saved.get("processor_class") != cls.__name__:
            files = {
                "processor_config.json": saved,
                "preprocessor_config.json": _image_file(pretrained_model_name_or_path, hub),
                "tokenizer_config.json": tokenizer.init_kwargs,
            }
            trusted = bool(kwargs.get("trust_remote_code"))
            saved = {**saved, "outputs": outputs_of_files(files, trust_remote_code=trusted)}
        own = {name: saved[name] for name in _OWN_SETTINGS if name in saved} | own
        return cls(image_processor, tokenizer, **own)


def _readable_again(media: Any) -> Any:
    """The medium with bytes in place of a file, which may be a pipe."""
    content = media.get("image") if isinstance(media, Mapping) else media
    if not callable(getattr(content, "read", None)):
        return media
    data = encoded(content, allow_paths=False)
    return {**media, "image": data} if isinstance(media, Mapping) else data


def _image_file(name: str | os.PathLike[str], hub: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `preprocessor_config.json` says, or the part of `processor_config.json` in its place."""
    path = os.fspath(name)
    if os.path.isfile(path):
        return {}
    return KimiImageProcessor.get_image_processor_dict(path, **hub)[0]
