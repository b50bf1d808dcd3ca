"""`KimiProcessor`: text and media, or chat messages, to all that the model takes. Thin: media are the image processor's
work, ids the tokenizer's.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers import AutoTokenizer
from transformers.image_processing_base import BatchFeature
from transformers.processing_utils import ProcessorMixin

from kimi_jax_prep.batch import PatchBatch
from kimi_jax_prep.checks import check_keywords
from kimi_jax_prep.errors import ConfigError, MediaError, PlanError, TextError
from kimi_jax_prep.processor.image import KimiImageProcessor, as_list
from kimi_jax_prep.processor.keywords import CALL_KEYWORDS, CONFIG_KEYS, OURS, TRANSFORMERS_OVERRIDES, refuse_misspelt
from kimi_jax_prep.processor.tensors import converter
from kimi_jax_prep.text import rows as _token_rows
from kimi_jax_prep.text.messages import is_batch, split_messages
from kimi_jax_prep.text.placeholders import K3, K25, MEDIA_PAD, STYLES, PromptStyle, Slot, expanded, match, replaced
from kimi_jax_prep.text.rows import TokenRow, cut, lengths_of, padded

TEMPLATE_KEYWORDS = (
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "tools",
    "documents",
    "chat_template_kwargs",
)
TEXT_KEYWORDS = (*_token_rows.KEYWORDS, "add_special_tokens")
_IMAGE_SETTINGS = (*CONFIG_KEYS, *OURS, *TRANSFORMERS_OVERRIDES, "media_proc_cfg")
_HUB = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")


class KimiInputs(BatchFeature):
    """What a model takes, by name; and beside it, not among the keys, where the media are."""

    media_spans: list[list[tuple[int, int]]]
    """For every text, for every image and chunk in it, (start, end) in its `input_ids`, end not included. All of them,
    one after another, are the rows of `grid_thws`."""

    def __init__(self, data: dict[str, Any], media_spans: list[list[tuple[int, int]]]) -> None:
        super().__init__(data)
        self.media_spans = media_spans

    def __getitem__(self, item: str) -> Any:
        return self.media_spans if item == "media_spans" else super().__getitem__(item)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)


class KimiProcessor(ProcessorMixin):
    """Text and media to `input_ids`, `attention_mask`, `pixel_values` and `grid_thws`.

    Args:
      image_processor: for the media. Its config says which model's prompts are written: Kimi-K3 is the one that paints
        a background behind transparent pixels (`transparent_bg_config`).
      tokenizer: of transformers; it must know `<|media_pad|>`.
      chat_template: for messages, in place of the tokenizer's.
      prompt_style: "k2.5" or "k3", in place of what the config says.

    Raises:
      ConfigError: the tokenizer does not know `<|media_pad|>`; an unknown `prompt_style`.
      TypeError: something else in place of an image processor or a tokenizer.
    """

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        chat_template: str | None = None,
        prompt_style: str | None = None,
    ) -> None:
        if not isinstance(image_processor, KimiImageProcessor):
            raise TypeError(f"`image_processor` is a KimiImageProcessor; got {type(image_processor).__name__}.")
        super().__init__(image_processor, tokenizer, chat_template=chat_template)
        if prompt_style is not None and prompt_style not in STYLES:
            raise ConfigError(f"`prompt_style` is {prompt_style!r}; expected {' or '.join(map(repr, STYLES))}.")
        self.prompt_style = prompt_style
        self._token_id(MEDIA_PAD)

    @property
    def style(self) -> PromptStyle:
        """Which placeholders and prompts are used."""
        if self.prompt_style is not None:
            return STYLES[self.prompt_style]
        return K25 if self.image_processor.config.transparent_bg_config is None else K3

    @property
    def media_pad_token_id(self) -> int:
        """The id that stands for a medium, or for each of its tokens."""
        return self._token_id(MEDIA_PAD)

    @property
    def model_input_names(self) -> list[str]:
        """Keys of the outputs."""
        media = [name for name in self.image_processor.model_input_names if name not in self.unused_input_names]
        return ["input_ids", "attention_mask", *media]

    @property
    def unused_input_names(self) -> list[str]:
        """What the image processor returns and the model does not take."""
        return ["num_chunks_per_video"]

    def __call__(  # type: ignore[override]  # media are images and videos in one list, as the checkpoint has them
        self,
        *,
        text: Any = None,
        medias: Any = None,
        messages: Any = None,
        return_tensors: Any = None,
        expand: bool = True,
        **kwargs: Any,
    ) -> KimiInputs:
        """One batch of model inputs.

        Args:
          text: one text or a list of them, with a placeholder for each medium. Kimi-K2.5: `<|media_pad|>`, in whatever
            prompt the chat template wrote around it, for an image or a ready-made chunk;
            `<|kimi_k25_video_placeholder|>` for a video, or for all ready-made chunks that follow one another. Kimi-K3:
            `<|kimi_image_placeholder|>`, replaced by a prompt with the image's size (a finished prompt with its
            `<|media_pad|>` does as well). Placeholders come in the order of the media.
          medias: media as `kimi_jax_prep.media` has them, in one list for all texts, or a list of lists with one (or
            None) for each text.
          messages: in place of `text`, a conversation or a list of them for the chat template. Their media are those in
            parts `{"type": "image", "image": ...}`, `image_url`, `video` and `video_url`, or come in `medias` if all
            parts leave theirs out.
          return_tensors: "np", "pt", "jax", or None for lists of ids and NumPy arrays of pixels.
          expand: whether an image or chunk has as many `<|media_pad|>` ids as tokens. With False there is one, which
            the checkpoint's own model and vLLM replace by themselves.
          **kwargs: of lengths, by the words of transformers' tokenizers: `padding`, `truncation`, `max_length`,
            `pad_to_multiple_of`, `padding_side`, `truncation_side`, `add_special_tokens` (they count expanded ids). Of
            templates: `add_generation_prompt`, `continue_final_message`, `tools`, `documents`, `chat_template`, and a
            dict `chat_template_kwargs` for whatever a template has of its own. Others as for the image processor.

        Returns:
          `input_ids` and `attention_mask`, (texts, length) int64 or lists; the image processor's outputs if there are
          media. `media_spans` of the result says where they are; it is no key, so `model(**inputs)` works.

        Raises:
          TextError: placeholders and media differ in number or order, whoever wrote them: a stranger's `<|media_pad|>`
            is counted too. Also a length that would cut a medium.
          PlanError: an impossible length or side; texts of several lengths without padding for one array.
          ConfigError: no chat template; a tokenizer that does not know `<|media_pad|>`.
          TypeError: an unknown keyword.
          Others: as `KimiImageProcessor.preprocess`, with indices into the media of all texts, one after another.
        """
        if {"images", "videos"} & kwargs.keys():
            raise TypeError("images and videos come in one list, `medias`, in the order of their placeholders.")
        check_keywords(kwargs, dict.fromkeys((*_OWN, *TEXT_KEYWORDS, *TEMPLATE_KEYWORDS, *CALL_KEYWORDS)))
        overrides = {name: value for name, value in kwargs.items() if name in CALL_KEYWORDS}
        template = {name: kwargs[name] for name in TEMPLATE_KEYWORDS if name in kwargs}
        convert, lengths = converter(return_tensors), lengths_of(self.tokenizer, kwargs)
        special = kwargs.get("add_special_tokens")
        if (text is None) is (messages is None):
            raise TypeError("give either `text` or `messages`.")
        if messages is not None:
            text, medias = self._rendered(messages, medias, template)
            special = bool(special)  # a template writes them itself
        elif given := [name for name, value in template.items() if value is not None]:
            raise TypeError(f"{', '.join(map(repr, given))}: for `messages`, not for `text`.")
        texts = _as_texts(text)
        flat, shares = _as_medias(medias, len(texts))
        slots = match(texts, [self._kind(media, i) for i, media in enumerate(flat)], self.style, shares=shares)
        batch = self.image_processor.to_batch(flat, **overrides)
        prompts = self._prompts(slots, flat, batch, overrides)
        texts = [replaced(text, own, prompts) for text, own in zip(texts, slots, strict=True)]
        ids = self._tokenized(texts, True if special is None else special)
        rows = self._rows(ids, slots, flat, batch, expand=expand)
        ends = [(0, 0)] * len(rows)
        if lengths.truncation and special is not False:
            ends = [_ends(bare, whole) for bare, whole in zip(self._tokenized(texts, False), ids, strict=True)]
        rows = [cut(row, lengths, before=before, after=after) for row, (before, after) in zip(rows, ends, strict=True)]
        rows = padded(rows, lengths, self.tokenizer.pad_token_id)
        data: dict[str, Any] = {"input_ids": [row.ids for row in rows], "attention_mask": [row.mask for row in rows]}
        if return_tensors is not None:
            data = {name: convert(_as_array(value)) for name, value in data.items()}
        if flat:
            media = self.image_processor.by_name(batch, flat)
            data |= {name: convert(value) for name, value in media.items() if name not in self.unused_input_names}
        return KimiInputs(data, [row.spans for row in rows])

    def apply_chat_template(  # type: ignore[override]  # keywords are checked by name
        self, conversation: Any, chat_template: str | None = None, *, tokenize: bool = False, **kwargs: Any
    ) -> Any:
        """Messages as text, with placeholders; with `tokenize=True` as `processor(messages=..., **kwargs)`.

        Raises: as calling the processor.
        """
        kwargs.pop("return_dict", None)  # there is always one
        if chat_template is not None:
            kwargs["chat_template"] = chat_template
        if tokenize:
            return self(messages=conversation, **kwargs)
        check_keywords(kwargs, TEMPLATE_KEYWORDS)
        conversations = conversation if is_batch(conversation) else [conversation]
        texts = [self._render(split_messages(messages)[0], kwargs) for messages in conversations]
        return texts if is_batch(conversation) else texts[0]

    def save_pretrained(self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any) -> Any:
        """Write all that `from_pretrained` reads, and `preprocessor_config.json` for whoever reads that alone.

        Args:
          push_to_hub, **kwargs: as transformers has them.
        """
        os.makedirs(save_directory, exist_ok=True)
        # A checkpoint's own file of this name, if left, would be believed before the one that transformers writes.
        self.image_processor.save_pretrained(save_directory)
        return super().save_pretrained(os.fspath(save_directory), push_to_hub=push_to_hub, **kwargs)

    @classmethod
    def from_pretrained(  # type: ignore[override]  # the hub's options are among the keywords
        cls, pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any
    ) -> "KimiProcessor":
        """Read a checkpoint's folder, one that `save_pretrained` made, or a repository of the hub.

        Args:
          pretrained_model_name_or_path: as for `KimiImageProcessor.from_pretrained`, with a tokenizer beside.
          **kwargs: `chat_template`, `prompt_style`; what `KimiImageProcessor.from_pretrained` takes; all others are for
            `AutoTokenizer.from_pretrained`, such as `trust_remote_code=True`, which runs the tokenizer's code only.

        Raises: as `KimiImageProcessor.from_pretrained` and `AutoTokenizer.from_pretrained`.
        """
        own = {name: kwargs.pop(name) for name in ("chat_template", "prompt_style") if name in kwargs}
        image = {name: kwargs.pop(name) for name in _IMAGE_SETTINGS if name in kwargs}
        hub = {name: kwargs[name] for name in _HUB if name in kwargs}
        refuse_misspelt(kwargs)
        image_processor = KimiImageProcessor.from_pretrained(pretrained_model_name_or_path, **hub, **image)
        tokenizer = AutoTokenizer.from_pretrained(pretrained_model_name_or_path, **kwargs)
        saved, _ = cls.get_processor_dict(pretrained_model_name_or_path, **hub)
        own = {name: saved[name] for name in ("chat_template", "prompt_style") if name in saved} | own
        return cls(image_processor, tokenizer, **own)

    def _token_id(self, token: str) -> int:
        number = self.tokenizer.convert_tokens_to_ids(token)
        if number is None or number == self.tokenizer.unk_token_id:
            raise ConfigError(
                f"the tokenizer does not know `{token}`: it is not Kimi's. Load the checkpoint's own, or give it the "
                f"token: tokenizer.add_special_tokens({{'additional_special_tokens': ['{token}']}})."
            )
        return number

    def _kind(self, media: Any, i: int) -> str:
        kind = media.get("type") if isinstance(media, Mapping) else None
        if kind not in ("video", "video_chunk"):
            return "image"
        if self.style.video_placeholder is None:
            raise MediaError(f"medias[{i}] is a {kind}; Kimi-K3's processor takes images only.")
        return kind

    def _rendered(self, messages: Any, medias: Any, template: Mapping[str, Any]) -> tuple[list[str], Any]:
        """Texts of conversations, and their media as `__call__` takes them."""
        if not isinstance(messages, list | tuple):
            raise TypeError(f"`messages` is a list of messages, or of such lists; got {type(messages).__name__}.")
        conversations = messages if is_batch(messages) else [messages]
        split = [split_messages(conversation) for conversation in conversations]
        texts = [self._render(slim, template) for slim, _ in split]
        held = [medium for _, found in split for medium in found]
        if medias is None:
            if any(medium is None for medium in held):
                raise TextError("a part of a message holds no medium; put one into it, or all of them into `medias`.")
            return texts, [found for _, found in split]
        if any(medium is not None for medium in held):
            raise TextError("media come in the parts of messages or in `medias`, not in both.")
        return texts, medias

    def _render(self, messages: list[dict[str, Any]], template: Mapping[str, Any]) -> str:
        options = dict(template)
        options |= options.pop("chat_template_kwargs", None) or {}
        if options.get("chat_template") is None:
            options["chat_template"] = self.chat_template
        if options["chat_template"] is None:
            if getattr(self.tokenizer, "chat_template", None) is None:
                raise ConfigError(
                    "there is no chat template: give one as KimiProcessor(..., chat_template=...), load a folder that "
                    "holds chat_template.jinja, or pass `text` with placeholders."
                )
            del options["chat_template"]
        return self.tokenizer.apply_chat_template(messages, tokenize=False, **options)

    def _prompts(
        self, slots: Sequence[Sequence[Slot]], medias: Sequence[Any], batch: PatchBatch, overrides: Mapping[str, Any]
    ) -> list[str]:
        """What replaces the placeholder of each medium, as far as one is replaced."""
        sizes = {name: value for name, value in overrides.items() if name not in ("do_rescale", "do_normalize")}
        prompts = [""] * len(medias)
        of_chunks = defaultdict(list)
        for source, prompt in zip(batch.sources, batch.prompts, strict=True):
            of_chunks[source].append(prompt)
        for slot in (slot for own in slots for slot in own):
            if slot.kind == "image":
                (i,) = slot.medias
                prompts[i] = self.image_processor.make_image_prompt(
                    *self.image_processor.image_size(medias[i], **sizes)
                )
            elif slot.kind == "video":
                for i in slot.medias:
                    prompts[i] = "".join(_checked(prompt, i) for prompt in of_chunks[i])
        return prompts

    def _tokenized(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        encoded = self.tokenizer(
            texts, add_special_tokens=add_special_tokens, padding=False, truncation=False, verbose=False
        )
        return [list(ids) for ids in encoded["input_ids"]]

    def _rows(
        self,
        ids: Sequence[Sequence[int]],
        slots: Sequence[Sequence[Slot]],
        medias: Sequence[Any],
        batch: PatchBatch,
        *,
        expand: bool,
    ) -> list[TokenRow]:
        pad_id = video_id = self._token_id(MEDIA_PAD)
        kinds = [self._kind(medias[source], source) for source in batch.sources]
        if self.image_processor.names == "transformers" and any(kind != "image" for kind in kinds):
            # transformers' model keeps images and videos apart, by two ids.
            video_id = self._token_id(str(K25.video_placeholder))
        sizes = Counter(batch.sources)
        rows, at = [], 0
        for one, own in zip(ids, slots, strict=True):
            end = at + sum(sizes[i] for slot in own for i in slot.medias)
            counts = batch.num_tokens[at:end] if expand else (1,) * (end - at)
            fill = [pad_id if kind == "image" else video_id for kind in kinds[at:end]]
            longer, spans = expanded(one, pad_id, counts, fill=fill)
            rows.append(TokenRow(longer, spans, [1] * len(longer)))
            at = end
        return rows


_OWN = ("text", "medias", "messages", "return_tensors", "expand")


def _as_texts(text: Any) -> list[str]:
    texts = [text] if isinstance(text, str) else text
    if not isinstance(texts, list | tuple) or not all(isinstance(one, str) for one in texts):
        raise TypeError(f"`text` is a str or a list of them; got {type(text).__name__}.")
    if not texts:
        raise TextError("`text` is an empty list.")
    return list(texts)


def _as_medias(medias: Any, num_texts: int) -> tuple[list[Any], list[int] | None]:
    """All media in one list, and how many belong to each text where the caller says so."""
    if medias is None:
        return [], [0] * num_texts
    medias = as_list(medias)
    if not medias or not all(one is None or isinstance(one, list | tuple) for one in medias):
        return medias, None
    if len(medias) != num_texts:
        raise TextError(
            f"`medias` has {len(medias)} lists of media for {num_texts} texts; give one, or None, for each."
        )
    lists = [list(one or ()) for one in medias]
    return [media for one in lists for media in one], [len(one) for one in lists]


def _checked(prompt: Any, i: int) -> str:
    if not isinstance(prompt, str):
        raise TextError(f"medias[{i}] is a chunk that stands for a video, so it needs 'prompt': its time and text.")
    if prompt.count(MEDIA_PAD) != 1:
        raise TextError(f"medias[{i}]: its 'prompt' has {prompt.count(MEDIA_PAD)} `{MEDIA_PAD}`; expected 1.")
    return prompt


def _ends(bare: Sequence[int], whole: Sequence[int]) -> tuple[int, int]:
    """How many ids the tokenizer puts before and after each text."""
    extra = len(whole) - len(bare)
    for before in range(extra + 1):
        if list(whole[before : before + len(bare)]) == list(bare):
            return before, extra - before
    raise TextError("the tokenizer adds ids inside of a text, so it cannot be truncated; use add_special_tokens=False.")


def _as_array(rows: Sequence[Sequence[int]]) -> np.ndarray:
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        raise PlanError(
            f"the texts have {min(lengths)} to {max(lengths)} ids, which make no array; use padding=True, or "
            "return_tensors=None."
        )
    return np.array(rows, np.int64)
