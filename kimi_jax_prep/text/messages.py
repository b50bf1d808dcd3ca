"""Chat messages: their media are taken out in order, so that the chat template renders text alone."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from kimi_jax_prep.errors import TextError

# Keys under which a part of each type may hold its medium: OpenAI's, transformers' and the checkpoint's.
_KEYS = {
    "image": ("image", "image_url", "url", "path", "base64"),
    "image_url": ("image_url", "image", "url"),
    "video": ("video", "video_url", "url", "path"),
    "video_url": ("video_url", "video", "url"),
    "video_chunk": ("video_chunk",),
}
# What else a video's part may say about its frames; it goes with the medium.
_ABOUT_VIDEO = ("fps", "frames_indices", "video_metadata")


def as_mapping(value: Any) -> Any:
    """Messages and parts that are dataclasses or pydantic models, as dicts of those fields that are not None.

    Others as they are.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    elif isinstance(names := getattr(type(value), "model_fields", None), Mapping):  # pydantic's models
        fields = [(name, getattr(value, name)) for name in names]
    else:
        return value
    return {name: content for name, content in fields if content is not None}


def is_batch(messages: Any) -> bool:
    """Whether these are several conversations."""
    return isinstance(messages, list | tuple) and bool(messages) and isinstance(messages[0], list | tuple)


def split_messages(messages: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """One conversation as messages without media, and its media in order.

    Parts of type "image", "image_url", "video", "video_url" and "video_chunk" hold media. Consecutive chunks of one
    message are the chunks of one video and become one part of type "video". All other parts stay as they are.

    Returns:
      New messages, and an entry for each placeholder that the template will write: the medium, a list of chunks, or
      None for a part that only marks a place.

    Raises:
      TextError: there is no message, one is not a mapping, or a part holds a medium and does not say its type.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise TextError(f"a conversation must be a list of at least one message; got {type(messages).__name__}.")
    slim: list[dict[str, Any]] = []
    medias: list[Any] = []
    for k, message in enumerate(map(as_mapping, messages)):
        if not isinstance(message, Mapping):
            raise TextError(f"messages[{k}] is a {type(message).__name__}; expected a dict with 'role' and 'content'.")
        content = message.get("content")
        if isinstance(content, list | tuple):
            content = _split_parts(content, medias)
        slim.append({**message, "content": content} if "content" in message else dict(message))
    return slim, medias


def _split_parts(parts: Sequence[Any], medias: list[Any]) -> list[Any]:
    slim: list[Any] = []
    run: list[Any] | None = None
    for part in map(as_mapping, parts):
        kind = _kind(part)
        if kind != "video_chunk":
            run = None
        if kind is None:
            slim.append(part)
            continue
        key = next((key for key in _KEYS[kind] if part.get(key) is not None), None)
        if kind == "video_chunk" and key is not None:
            if run is None:
                run = []
                medias.append(run)
                slim.append({"type": "video", "video": ""})
            run.append(part)
            continue
        medias.append(None if key is None else _medium(kind, key, part))
        if kind == "video_chunk":
            slim.append({"type": "video", "video": ""})
            continue
        # The key stays, for templates that look for it; what it holds does not.
        rest = {name: value for name, value in part.items() if name not in _KEYS[kind]}
        slim.append(rest if key is None else {**rest, key: _emptied(part[key])})
    return slim


def _kind(part: Any) -> str | None:
    """The type of a part that holds a medium or marks its place, or None for other parts."""
    if not isinstance(part, Mapping):
        return None
    kind = part.get("type")
    if kind is None and _KEYS.keys() & part.keys():
        held = min(_KEYS.keys() & part.keys())
        raise TextError(f"a part of a message holds {held!r} but has no 'type'; add 'type': {held!r}.")
    return kind if isinstance(kind, str) and kind in _KEYS else None


def _medium(kind: str, key: str, part: Mapping[str, Any]) -> Any:
    content, about = part[key], dict(part)
    if isinstance(content, Mapping) and "url" in content:  # OpenAI's form; options may be beside the URL
        about |= {name: value for name, value in content.items() if value is not None}
        content = content["url"]
    if key == "base64" and isinstance(content, str) and not content.startswith("data:"):
        content = f"data:;base64,{content}"
    if kind.startswith("image"):
        return {"type": "image", "image": content}
    known = {name: about[name] for name in _ABOUT_VIDEO if about.get(name) is not None}
    return {"type": "video", "video": content, **known}


def _emptied(content: Any) -> Any:
    return {"url": ""} if isinstance(content, Mapping) else ""
