"""From the text and the media of one call to rows of token ids: which placeholder is whose, and what it becomes."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kimi_jax_prep.batch import PatchBatch
from kimi_jax_prep.errors import MediaError, TextError
from kimi_jax_prep.media.kinds import described
from kimi_jax_prep.processor.call.arguments import Call
from kimi_jax_prep.processor.call.chat import ChatTemplates
from kimi_jax_prep.processor.call.ids import (
    added_ids,
    as_ids,
    as_texts,
    assistant_mask,
    checked_prompt,
    known_id,
    token_id,
    tokenized,
)
from kimi_jax_prep.processor.call.medias import CallMedia, check_sampling, from_images_and_videos, from_medias
from kimi_jax_prep.processor.image import KimiImageProcessor
from kimi_jax_prep.text.placeholders import (
    K25,
    MEDIA_PAD,
    Mark,
    MediaList,
    PromptStyle,
    Slot,
    expanded,
    marks_in_ids,
    marks_in_text,
    match_marks,
    may_be_expanded,
    moved,
    replaced,
    replaced_ids,
    stretched,
)
from kimi_jax_prep.text.rows import TokenRow, cut

Slots = Sequence[Sequence[Slot]]


@dataclass(slots=True)
class Prompt:
    """The texts of a call, or the ids that stand in their place."""

    texts: list[str] | None = None
    ids: list[list[int]] | None = None
    medias: list[list[Any]] | None = None
    """What the messages hold, for each text."""
    turns: list[list[tuple[int, int]]] | None = None
    """The assistant's, in characters of each text."""
    special: bool = False
    """Whether the tokenizer adds its own ids."""


class _Encoded(NamedTuple):
    """The ids of one text."""

    ids: list[int]
    turns: list[int] | None = None
    """1 for the assistant's, 0 for all others; None where nobody asked."""
    ends: tuple[int, int] = (0, 0)
    """How many the tokenizer added before and after."""


class _Place(NamedTuple):
    """One image or chunk in a text."""

    present: int
    """`<|media_pad|>` that are there for it."""
    wanted: int
    """Ids that are to stand for it."""
    fill: int
    """The id to write."""


def kind_of(media: Any, i: int, style: PromptStyle) -> str:
    """The kind of a medium: "image", "video" or "video_chunk".

    Args:
      i: the medium's index, for the message.

    Raises:
      MediaError: it is of no known kind, or the model takes no video.
    """
    try:
        kind = described(media).kind
    except MediaError as err:
        raise type(err)(f"medias[{i}]: {err}") from err
    if kind == "image":
        return kind
    if style.video_placeholder is None:
        raise MediaError(f"medias[{i}] is a {kind}; Kimi-K3's processor takes images only.")
    return kind


def prompt_of_messages(messages: Any, templates: ChatTemplates, call: Call, *, with_turns: bool) -> Prompt:
    """The texts of conversations, and the media that their messages hold.

    Raises: as `ChatTemplates.render`.
    """
    rendered, _ = templates.render(messages, call.template, with_assistant=with_turns)
    return Prompt(
        [one.text for one in rendered],
        medias=[one.medias for one in rendered],
        turns=[one.assistant or [] for one in rendered] if with_turns else None,
        special=bool(call.special),  # a template writes them itself
    )


def prompt_of_text(
    messages: Any, text: Any, input_ids: Any, attention_mask: Any, call: Call, *, with_turns: bool
) -> Prompt:
    """Texts or ids that the caller made.

    Raises:
      TypeError: not exactly one of them, one of another type, or a request that only messages can fulfil.
    """
    if sum(one is not None for one in (messages, text, input_ids)) != 1:
        raise TypeError("give either `text` or `messages` (or `input_ids`).")
    if input_ids is None and attention_mask is not None:
        raise TypeError("`attention_mask` is for `input_ids`; a text has no padding yet.")
    if with_turns:
        raise TypeError(
            "`return_assistant_tokens_mask` and `return_labels` need `messages`: only a chat template marks what the "
            "assistant writes."
        )
    if input_ids is not None:
        return Prompt(ids=as_ids(input_ids, attention_mask))
    return Prompt(as_texts(text), special=call.special is not False)


def media_of_call(
    prompt: Prompt, marks: Sequence[Sequence[Mark]], medias: Any, by_kind: tuple[Any, Any, Any] | None
) -> CallMedia:
    """The media of a call: those of its messages, of `medias`, or of `images` and `videos`.

    Args:
      by_kind: `images`, `videos` and `video_metadata`, or None.

    Raises:
      TextError: media in two places, or a part of a message without a medium.
      TypeError: `medias` beside `images` or `videos`.
    """
    if medias is not None and by_kind is not None:
        raise TypeError("give media in `medias`, or in `images` and `videos`, not in both.")
    held = [medium for own in prompt.medias or () for medium in own]
    if any(medium is not None for medium in held):
        if medias is not None or by_kind is not None:
            raise TextError("give media in the parts of messages or as arguments of the call, not in both.")
        if any(medium is None for medium in held):
            raise TextError("a part of a message holds no medium, though others do; put one into it.")
        return from_medias(prompt.medias, len(marks))
    if by_kind is not None:
        return from_images_and_videos(*by_kind, marks)
    if held and medias is None:
        raise TextError("a part of a message holds no medium; put one into it, or all of them into `medias`.")
    return from_medias(medias, len(marks))


class Assembly:
    """Puts the ids and the media of one call together."""

    def __init__(self, image_processor: KimiImageProcessor, tokenizer: Any, style: PromptStyle, call: Call) -> None:
        self.image_processor = image_processor
        self.tokenizer = tokenizer
        self.style = style
        self.call = call

    def marks(self, prompt: Prompt) -> list[list[Mark]]:
        """The placeholders of each text."""
        if prompt.texts is not None:
            return [marks_in_text(text, self.style) for text in prompt.texts]
        kinds = {known_id(self.tokenizer, word): kind for word, kind in self.style.words.items()}
        known = {number: kind for number, kind in kinds.items() if number is not None}
        return [marks_in_ids(ids, known) for ids in prompt.ids or ()]

    def matched(self, marks: Sequence[Sequence[Mark]], media: CallMedia) -> tuple[list[tuple[Slot, ...]], PatchBatch]:
        """The media of each placeholder, and all patches. Wrong numbers are errors before any pixel is read."""
        kinds = [kind_of(one, i, self.style) for i, one in enumerate(media.flat)]
        check_sampling(media.flat, self.call.sampling)
        listed = MediaList(kinds, media.runs)
        slots = None if may_be_expanded(marks) else match_marks(marks, listed, self.style, shares=media.shares)
        batch = self.image_processor.to_batch(media.flat, **self.call.overrides)
        if slots is None:
            tokens = dict(zip(batch.sources, batch.num_tokens, strict=True))
            listed = MediaList(kinds, media.runs, [tokens[i] for i in range(len(kinds))])
            slots = match_marks(marks, listed, self.style, shares=media.shares)
        return slots, batch

    def _prompts(self, slots: Slots, num_media: int, batch: PatchBatch) -> list[str]:
        """What replaces the placeholder of each medium, as far as one is replaced."""
        of_chunks = defaultdict(list)
        sizes = {}
        for source, prompt, size in zip(batch.sources, batch.prompts, batch.sizes, strict=True):
            of_chunks[source].append(prompt)
            sizes[source] = size
        prompts = [""] * num_media
        for slot in (slot for own in slots for slot in own):
            for i in slot.medias:
                if slot.kind == "image":
                    prompts[i] = self.image_processor.make_image_prompt(*sizes[i])
                elif slot.kind == "video":
                    prompts[i] = "".join(checked_prompt(prompt, i) for prompt in of_chunks[i])
        return prompts

    def rows(self, prompt: Prompt, slots: Slots, medias: Sequence[Any], batch: PatchBatch) -> list[TokenRow]:
        """Ids of each text, expanded and truncated."""
        prompts = self._prompts(slots, len(medias), batch) if medias else []
        encoded = self._encoded(prompt, slots, prompts)
        places = self._places(slots, medias, batch)
        return [
            cut(self._expanded(ids, turns, own), self.call.lengths, before=before, after=after)
            for (ids, turns, (before, after)), own in zip(encoded, places, strict=True)
        ]

    def _encoded(self, prompt: Prompt, slots: Slots, prompts: Sequence[str]) -> list[_Encoded]:
        """The ids of each text, before any medium is expanded."""
        if prompt.ids is not None:
            return [_Encoded(self._ids_with_prompts(*both, prompts)) for both in zip(prompt.ids, slots, strict=True)]
        texts = [replaced(*both, prompts) for both in zip(prompt.texts or (), slots, strict=True)]
        rows = list(map(_Encoded, tokenized(self.tokenizer, texts, prompt.special)))
        if self.call.lengths.truncation and prompt.special:
            bare = tokenized(self.tokenizer, texts, False)
            rows = [row._replace(ends=added_ids(own, row.ids)) for own, row in zip(bare, rows, strict=True)]
        if prompt.turns is None:
            return rows
        with_turns = []
        for text, row, own, turns in zip(texts, rows, slots, prompt.turns, strict=True):
            places = [(moved(start, own, prompts), moved(end, own, prompts)) for start, end in turns]
            mask = assistant_mask(self.tokenizer, text, row.ids, places, prompt.special)
            with_turns.append(row._replace(turns=mask))
        return with_turns

    def _ids_with_prompts(self, ids: Sequence[int], slots: Sequence[Slot], prompts: Sequence[str]) -> list[int]:
        own = {i: tokenized(self.tokenizer, [prompts[i]], False)[0] for s in slots for i in s.medias if prompts[i]}
        return replaced_ids(ids, slots, own)

    def _places(self, slots: Slots, medias: Sequence[Any], batch: PatchBatch) -> list[list[_Place]]:
        """Of each text, the images and chunks in it: one for each row of `grid_thws`."""
        pad_id = video_id = token_id(self.tokenizer, MEDIA_PAD)
        kinds = [kind_of(media, i, self.style) for i, media in enumerate(medias)]
        if (self.call.names or self.image_processor.names) == "transformers" and any(kind != "image" for kind in kinds):
            # transformers' model keeps images and videos apart, by two ids.
            video_id = token_id(self.tokenizer, str(K25.video_placeholder))
        tokens = defaultdict(list)
        for source, count in zip(batch.sources, batch.num_tokens, strict=True):
            tokens[source].append(count)
        return [
            [
                _Place(
                    present=slot.pads,
                    wanted=count if self.call.expand or slot.pads > 1 else 1,
                    fill=pad_id if kinds[i] == "image" else video_id,
                )
                for slot in own
                for i in slot.medias
                for count in tokens[i]
            ]
            for own in slots
        ]

    def _expanded(self, ids: list[int], turns: list[int] | None, places: Sequence[_Place]) -> TokenRow:
        """One text with as many ids for each medium as the call asks for."""
        pad_id = token_id(self.tokenizer, MEDIA_PAD)
        present = [place.present for place in places]
        counts, fill = [place.wanted for place in places], [place.fill for place in places]
        longer, spans = expanded(ids, pad_id, counts, fill=fill, present=present)
        if turns is not None:
            _, before = expanded(ids, pad_id, present, present=present)
            turns = stretched(turns, before, spans)
        return TokenRow(longer, spans, [1] * len(longer), turns)

    def token_types(
        self, rows: Sequence[TokenRow], slots: Slots, medias: Sequence[Any], batch: PatchBatch
    ) -> list[list[int]]:
        """For each id 1 where it stands for an image, 2 for a video or chunk, 0 for text: transformers' numbers."""
        chunks = Counter(batch.sources)
        types = []
        for row, own in zip(rows, slots, strict=True):
            kinds = [kind_of(medias[i], i, self.style) for slot in own for i in slot.medias for _ in range(chunks[i])]
            values = [0] * len(row.ids)
            for (start, end), kind in zip(row.spans, kinds, strict=True):
                values[start:end] = [1 if kind == "image" else 2] * (end - start)
            types.append(values)
        return types
