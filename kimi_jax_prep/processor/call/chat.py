"""Conversations as text: which chat template renders them, and which characters of the text the assistant wrote."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from transformers.utils.chat_template_utils import render_jinja_template

from kimi_jax_prep.errors import ConfigError, TextError
from kimi_jax_prep.text.messages import is_batch, split_messages

TEMPLATE_KEYWORDS = (
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "tools",
    "documents",
    "chat_template_kwargs",
)
_NAME = re.compile(r"[\w-]+")
_GENERATION = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")


class Conversation(NamedTuple):
    """One conversation as its template wrote it."""

    text: str
    medias: list[Any]
    """What the parts of its messages hold: a medium, a list of chunks, or None for each placeholder."""
    assistant: list[tuple[int, int]] | None
    """(start, end) in characters of `text`, of the assistant's turns; None where nobody asked for them."""


class ChatTemplates:
    """The chat templates of a processor and its tokenizer. The processor's come first."""

    def __init__(self, own: Any, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._sources = [own, getattr(tokenizer, "chat_template", None)]

    def find(self, given: str | None, tools: Any = None) -> str:
        """The template that a call asks for.

        Args:
          given: a template, or the name of one where there are several; None for the default.

        Raises:
          ConfigError: there is none, or none of this name.
        """
        names: list[str] = []
        for source in self._sources:
            if isinstance(source, Mapping):
                names += source
                wanted = given
                if given is None:
                    wanted = "tool_use" if tools and "tool_use" in source else "default"
                if wanted in source:
                    return source[wanted]
            elif source is not None and given is None:
                return source
        listed = f" The named templates are {', '.join(map(repr, names))}." if names else ""
        if given is None:
            raise ConfigError(
                "there is no chat template: give one as KimiProcessor(..., chat_template=...), load a folder that "
                f"holds chat_template.jinja, or pass `text` with placeholders.{listed}"
                if not names
                else f"there is no default chat template; choose one by name with `chat_template=...`.{listed}"
            )
        if _NAME.fullmatch(given):
            raise ConfigError(f"`chat_template` is {given!r}, which is neither a template nor the name of one.{listed}")
        return given

    def variables(self, options: Mapping[str, Any]) -> set[str]:
        """The variables that the template of a call reads; empty where there is no valid template."""
        import jinja2.ext
        import jinja2.meta

        environment = jinja2.Environment(extensions=[jinja2.ext.do, jinja2.ext.loopcontrols])
        try:
            template = self.find(options.get("chat_template"), options.get("tools"))
            tree = environment.parse(_GENERATION.sub("", template))
        except (ConfigError, jinja2.TemplateSyntaxError):  # reported when it is rendered
            return set()
        return jinja2.meta.find_undeclared_variables(tree)

    def render(
        self, messages: Any, options: Mapping[str, Any], *, with_assistant: bool = False
    ) -> tuple[list[Conversation], bool]:
        """Conversations as text.

        Args:
          messages: a conversation or a list of them.
          options: some of `TEMPLATE_KEYWORDS`.
          with_assistant: whether to say what the assistant wrote.

        Returns:
          The conversations, and whether `messages` was a list of them.

        Raises:
          TextError: a message is none.
          ConfigError: there is no template, or it does not mark what the assistant wrote.
          TypeError: `messages` is no list.
        """
        if not isinstance(messages, list | tuple):
            raise TypeError(
                f"`messages` must be a list of messages or a list of such lists; got {type(messages).__name__}."
            )
        conversations = messages if is_batch(messages) else [messages]
        rendered = []
        for slim, medias in map(split_messages, conversations):
            text = self._text(slim, options)
            spans = self._assistant(slim, options, text) if with_assistant else None
            rendered.append(Conversation(text, medias, spans))
        return rendered, is_batch(messages)

    def _options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        rest = dict(options)
        rest |= rest.pop("chat_template_kwargs", None) or {}
        return rest | {"chat_template": self.find(rest.get("chat_template"), rest.get("tools"))}

    def _text(self, slim: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
        # The tokenizer's own method: Kimi's prepares tools in its own way before it renders.
        return self._tokenizer.apply_chat_template(slim, tokenize=False, **self._options(options))

    def _assistant(
        self, slim: Sequence[Mapping[str, Any]], options: Mapping[str, Any], text: str
    ) -> list[tuple[int, int]]:
        rest = self._options(options)
        if not _GENERATION.search(rest["chat_template"]):
            raise ConfigError(
                "the chat template does not mark what the assistant writes; put {% generation %} ... "
                "{% endgeneration %} around it, or leave out `return_assistant_tokens_mask` and `return_labels`."
            )
        variables = {**self._tokenizer.special_tokens_map, **rest}
        texts, spans = render_jinja_template([slim], return_assistant_tokens_mask=True, **variables)  # type: ignore[misc]  # annotated as a str
        if texts[0] != text:
            raise TextError(
                "the tokenizer's own `apply_chat_template` writes another text than its template alone, so the "
                "assistant's turns cannot be found; mask the labels yourself."
            )
        turns: Any = spans[0]  # annotated as a str, too
        return [(start, end) for start, end in turns]
