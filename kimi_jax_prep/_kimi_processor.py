"""`KimiProcessor`: text and media to the inputs of a Kimi model; `KimiImageProcessor` and a tokenizer do the work."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from transformers import AutoTokenizer
from transformers.feature_extraction_utils import BatchFeature
from transformers.processing_utils import ProcessorMixin

from kimi_jax_prep._errors import ConfigError, MediaError
from kimi_jax_prep._image_processor import KimiImageProcessor, is_one_medium, is_video
from kimi_jax_prep._keywords import CALL_KEYWORDS
from kimi_jax_prep._options import OPTIONS, check_keywords
from kimi_jax_prep._placeholders import (
    IMAGE_PLACEHOLDER,
    MEDIA_PAD,
    VIDEO_PLACEHOLDER,
    Span,
    check_counts,
    expand_pads,
    fill_slots,
    find_slots,
    shares,
    truncate,
)
from kimi_jax_prep._tensors import converter

_TOKENIZER_KEYWORDS = (
    "padding",
    "truncation",
    "max_length",
    "pad_to_multiple_of",
    "padding_side",
    "add_special_tokens",
)
_HUB_KEYWORDS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
_IMAGE_PARTS = {"image": "image", "image_url": "image"}
_VIDEO_PARTS = {"video": "video", "video_url": "video"}


class KimiProcessor(ProcessorMixin):
    """Text and media to `input_ids`, `attention_mask`, `pixel_values`, `grid_thws`.

    A config that fills backgrounds after the resize is K3's: its texts hold one `<|kimi_image_placeholder|>` for each
    image, and there are no videos. Else it is K2.5's: one `<|media_pad|>` for each image or ready-made chunk, and one
    `<|kimi_k25_video_placeholder|>` for each video.

    Args:
      image_processor: with the checkpoint's config.
      tokenizer: of the checkpoint; it knows `<|media_pad|>`.
      chat_template: in place of the tokenizer's own.

    Raises:
      ConfigError: the tokenizer does not know `<|media_pad|>` as one token.
    """

    def __init__(self, image_processor: KimiImageProcessor, tokenizer: Any, chat_template: str | None = None) -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template or tokenizer.chat_template)
        pad_id = tokenizer.convert_tokens_to_ids(MEDIA_PAD)
        if not isinstance(pad_id, int) or pad_id == tokenizer.unk_token_id:
            raise ConfigError(f"the tokenizer has no token `{MEDIA_PAD}`; take the one of a Kimi checkpoint.")
        self.media_token_id = pad_id

    @property
    def is_k3(self) -> bool:
        """Whether the config is K3's, which decides on placeholders."""
        return self.image_processor.config.transparent_bg_fill_stage == "after_resize"

    @property
    def model_input_names(self) -> list[str]:
        """Keys of the outputs."""
        return [*self.tokenizer.model_input_names, *self.image_processor.model_input_names]

    def __call__(  # type: ignore[override]  # the checkpoint's arguments
        self,
        text: str | Sequence[str] | None = None,
        medias: Any = None,
        *,
        messages: Sequence[Any] | None = None,
        expand: bool = True,
        return_spans: bool = True,
        return_tensors: Any = None,
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> BatchFeature:
        """Inputs of the model for one text or several.

        Args:
          text: one text or a list.
          medias: of one text, a list of media; of several, a list for each text, or one list for all, in order. Images
            and videos are matched to their placeholders each in their order.
          messages: in place of text and media: a conversation, or a list of them, whose content parts hold the media
            (types "image", "image_url", "video", "video_url", "video_chunk"). The chat template makes the text.
          expand: whether each `<|media_pad|>` is repeated to the number of its medium's tokens. Else one stays for
            each, as vLLM and the checkpoint's own model want.
          return_spans: whether `media_spans` is among the outputs.
          return_tensors: "np", "pt", "jax"; None leaves ids as lists and media as NumPy arrays.
          add_generation_prompt, tools, chat_template_kwargs: for the chat template.
          **kwargs: of the tokenizer (`padding`, `truncation`, `max_length`, ...), and overrides and options of
            `KimiImageProcessor.preprocess`.

        Returns:
          `input_ids` and `attention_mask`, the outputs of the image processor in the order of the text, and
          `media_spans`: for each text, where each image or chunk has its tokens, as (start, end) in `input_ids`.

        Raises:
          MediaError: placeholders and media differ in number, or truncation would cut a medium off; and as
            `KimiImageProcessor.preprocess`.
          ConfigError: `messages` without a chat template.
          TypeError: an unknown keyword, or neither text nor messages.
        """
        check_keywords(kwargs, (*_TOKENIZER_KEYWORDS, *CALL_KEYWORDS))
        of_tokenizer = {name: value for name, value in kwargs.items() if name in _TOKENIZER_KEYWORDS}
        of_media = {name: value for name, value in kwargs.items() if name not in _TOKENIZER_KEYWORDS}
        if messages is not None:
            if text is not None or medias is not None:
                raise TypeError("`messages` hold text and media; pass either them or `text` and `medias`.")
            template = {"add_generation_prompt": add_generation_prompt, "tools": tools, **(chat_template_kwargs or {})}
            conversations = [messages] if _is_conversation(messages) else list(messages)
            texts = [self._render(conversation, template) for conversation in conversations]
            lists = [_media_of(conversation) for conversation in conversations]
        elif text is not None:
            texts = [text] if isinstance(text, str) else list(text)
            lists = self._media_for(texts, medias, single=isinstance(text, str))
        else:
            raise TypeError("pass `text` (and `medias`), or `messages`.")
        convert = converter(return_tensors)

        rows, filled = [], []
        for i, (one, media) in enumerate(zip(texts, lists, strict=True)):
            where = "the text" if len(texts) == 1 else f"text {i}"
            whole, its_rows = self._fill(one, media, where, of_media)
            filled.append(whole)
            rows.append(its_rows)
        everything = [row for its_rows in rows for row in its_rows]
        outputs = self.image_processor.preprocess(everything, return_tensors=return_tensors, **of_media)
        sizes = {name: value for name, value in of_media.items() if name not in ("do_rescale", "do_normalize")}
        counts = [
            [self.image_processor.media_tokens_calculator(row, **sizes) if expand else 1 for row in its_rows]
            for its_rows in rows
        ]
        ids, spans = self._tokenize(filled, counts, of_tokenizer)
        if return_tensors is not None:
            if len({len(one) for one in ids["input_ids"]}) > 1:
                raise MediaError("texts of different lengths make no tensor; pass `padding=True`.")
            ids = {name: convert(np.array(values, np.int64)) for name, values in ids.items()}
        data = {**ids, **outputs} | ({"media_spans": spans} if return_spans else {})
        return BatchFeature(data)

    def apply_chat_template(self, conversation: Any, *, tokenize: bool = False, **kwargs: Any) -> Any:  # type: ignore[override]  # fewer keywords
        """The text of messages, as the chat template renders it; with `tokenize=True` the same as a call.

        Raises:
          ConfigError: there is no chat template.
        """
        if tokenize:
            return self(messages=conversation, **kwargs)
        return self._render(conversation, {"add_generation_prompt": False, **kwargs})

    @classmethod
    def from_pretrained(  # type: ignore[override]  # no hub options beyond those of the two
        cls, pretrained_model_name_or_path: str | os.PathLike[str], *, trust_remote_code: bool = False, **kwargs: Any
    ) -> "KimiProcessor":
        """Read the image processor's config and the tokenizer of a folder, or of a repository of the hub.

        Args:
          trust_remote_code: for the tokenizer only: K2.5's and K3's own are remote code. Pictures never need any.
          **kwargs: as for `KimiImageProcessor.from_pretrained`; options of the hub go to both.

        Raises: as `KimiImageProcessor.from_pretrained`, and what the tokenizer raises.
        """
        image_processor = KimiImageProcessor.from_pretrained(pretrained_model_name_or_path, **kwargs)
        of_hub = {name: value for name, value in kwargs.items() if name in _HUB_KEYWORDS}
        tokenizer = AutoTokenizer.from_pretrained(
            pretrained_model_name_or_path, trust_remote_code=trust_remote_code, **of_hub
        )
        return cls(image_processor, tokenizer)

    def save_pretrained(self, save_directory: str | os.PathLike[str], **kwargs: Any) -> Any:  # type: ignore[override]  # as above
        """Write both to a folder: `preprocessor_config.json` and the tokenizer's files."""
        self.tokenizer.chat_template = self.chat_template
        return [
            *self.image_processor.save_pretrained(save_directory, **kwargs),
            *self.tokenizer.save_pretrained(save_directory, **kwargs),
        ]

    def _render(self, conversation: Sequence[Any], template: Mapping[str, Any]) -> str:
        if not self.chat_template:
            raise ConfigError("there is no chat template; pass `chat_template=` to KimiProcessor, or `text`.")
        return self.tokenizer.apply_chat_template(
            [_without_media(message) for message in conversation],
            chat_template=self.chat_template,
            tokenize=False,
            **template,
        )

    def _media_for(self, texts: Sequence[str], medias: Any, *, single: bool) -> list[list[Any]]:
        """The media of each text."""
        if medias is None:
            return [[] for _ in texts]
        flat = [medias] if is_one_medium(medias) else list(medias)
        if single:
            return [flat]
        if flat and all(m is None or isinstance(m, list | tuple) for m in flat):
            if len(flat) != len(texts):
                raise MediaError(f"{len(flat)} lists of media for {len(texts)} texts; there is one for each.")
            return [list(m or ()) for m in flat]
        counts = [len(find_slots(one)) for one in texts]
        if sum(counts) != len(flat):
            raise MediaError(f"the texts have {sum(counts)} placeholders for {len(flat)} media; there is one for each.")
        return [flat[part] for part in shares(counts)]

    def _fill(self, text: str, medias: Sequence[Any], where: str, of_media: Mapping[str, Any]) -> tuple[str, list[Any]]:
        """The text with a pad for each row, and the rows (images and chunks) in its order."""
        slots = find_slots(text)
        videos = [m for m in medias if is_video(m) and m["type"] == "video"]
        others = [m for m in medias if not (is_video(m) and m["type"] == "video")]
        if self.is_k3:
            if len(others) < len(medias) or any(map(is_video, others)):
                raise MediaError(f"{where} has a video; K3 takes images only.")
            placeholder, other = IMAGE_PLACEHOLDER, VIDEO_PLACEHOLDER
        else:
            placeholder, other = MEDIA_PAD, IMAGE_PLACEHOLDER
        check_counts(
            slots.count(placeholder), len(others), placeholder=placeholder, media="images or chunks", where=where
        )
        if not self.is_k3:
            check_counts(
                slots.count(VIDEO_PLACEHOLDER), len(videos), placeholder=VIDEO_PLACEHOLDER, media="videos", where=where
            )
        for foreign in {other, MEDIA_PAD} - {placeholder}:
            check_counts(slots.count(foreign), 0, placeholder=foreign, media="media of that kind", where=where)
        next_video, next_other = iter(videos), iter(others)
        rows, prompts = [], []
        options = {name: value for name, value in of_media.items() if name in OPTIONS}
        for slot in slots:
            if slot == VIDEO_PLACEHOLDER:
                chunks = self.image_processor.split_video_chunks(next(next_video), **options)
                rows += chunks
                prompts.append("".join(chunk["prompt"] for chunk in chunks))
                continue
            rows.append(next(next_other))
            if slot == IMAGE_PLACEHOLDER:
                width, height = self.image_processor.get_image_size(rows[-1], **options)
                prompts.append(self.image_processor.make_image_prompt(width, height))
            else:
                prompts.append(slot)
        return fill_slots(text, prompts), rows

    def _tokenize(
        self, texts: Sequence[str], counts: Sequence[Sequence[int]], of_tokenizer: Mapping[str, Any]
    ) -> tuple[dict[str, list[list[int]]], list[list[Span]]]:
        special = {name: of_tokenizer[name] for name in ("add_special_tokens",) if name in of_tokenizer}
        tokenized = self.tokenizer(list(texts), padding=False, truncation=False, **special)["input_ids"]
        ids, spans = [], []
        limit = of_tokenizer.get("max_length")
        for one, its_counts in zip(tokenized, counts, strict=True):
            expanded, its_spans = expand_pads(one, pad_id=self.media_token_id, counts=its_counts)
            if of_tokenizer.get("truncation"):
                most = limit if limit is not None else self.tokenizer.model_max_length
                expanded, its_spans = truncate(
                    expanded, its_spans, max_length=most, side=self.tokenizer.truncation_side
                )
            ids.append(expanded)
            spans.append(its_spans)
        padded = self.tokenizer.pad(
            {"input_ids": ids},
            padding=of_tokenizer.get("padding", False),
            max_length=limit,
            return_attention_mask=True,
            **{name: of_tokenizer[name] for name in ("pad_to_multiple_of", "padding_side") if name in of_tokenizer},
        )
        side = of_tokenizer.get("padding_side", self.tokenizer.padding_side)
        for i, (one, whole) in enumerate(zip(ids, padded["input_ids"], strict=True)):
            moved = len(whole) - len(one) if side == "left" else 0
            spans[i] = [(start + moved, end + moved) for start, end in spans[i]]
        return {name: padded[name] for name in ("input_ids", "attention_mask")}, spans


def _is_conversation(messages: Sequence[Any]) -> bool:
    return bool(messages) and isinstance(messages[0], Mapping)


def _parts(message: Mapping[str, Any]) -> Sequence[Any]:
    content = message.get("content")
    return content if isinstance(content, list | tuple) else ()


def _media_of(conversation: Sequence[Any]) -> list[Any]:
    """Media of all parts, in order."""
    medias = []
    for part in (part for message in conversation for part in _parts(message)):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "video_chunk":
            medias.append(part)
        elif kind in _IMAGE_PARTS or kind in _VIDEO_PARTS:
            if kind not in part:
                raise MediaError(f"a part of type {kind!r} needs the key {kind!r}; it has {sorted(map(str, part))}.")
            content = part[kind]
            if isinstance(content, Mapping) and "url" in content:
                content = content["url"]
            name = (_IMAGE_PARTS | _VIDEO_PARTS)[kind]
            medias.append({"type": name, name: content} | ({"fps": part["fps"]} if "fps" in part else {}))
    return medias


def _without_media(message: Any) -> Any:
    """A message whose media are only named: a template must not write a data URL into the text."""
    if not isinstance(message, Mapping) or not _parts(message):
        return message
    kinds = (*_IMAGE_PARTS, *_VIDEO_PARTS, "video_chunk")
    parts = [
        {"type": part["type"], part["type"]: ""} if isinstance(part, Mapping) and part.get("type") in kinds else part
        for part in _parts(message)
    ]
    return {**message, "content": parts}
