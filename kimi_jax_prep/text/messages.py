"""Chat messages: their media taken out in order, so that a template renders text alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from kimi_jax_prep.errors import TextError

# Keys under which a part of each type may hold its medium.
_KEYS = {
    "image": ("image", "image_url", "url"),
    "image_url": ("image_url", "image", "url"),
    "video": ("video", "video_url", "url"),
    "video_url": ("video_url", "video", "url"),
    "video_chunk": ("video_chunk",),
}


def is_batch(messages: Any) -> bool:
    """Whether these are several conversations."""
    return isinstance(messages, list | tuple) and bool(messages) and isinstance(messages[0], list | tuple)


def split_messages(messages: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """One conversation as messages without media, and its media in order.

    Parts of type "image", "image_url", "video", "video_url" and "video_chunk" hold media; chunks that follow one
    another in a message become one part of type "video". All other parts stay as they are.

    Returns:
      New messages, and for each part that holds media the medium, or None for a part that only marks a place.

    Raises:
      TextError: there is no message, one is not a mapping, or a part holds a medium and does not say its type.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise TextError(f"a conversation is a list of at least one message; got {type(messages).__name__}.")
    slim: list[dict[str, Any]] = []
    medias: list[Any] = []
    for k, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TextError(f"messages[{k}] is a {type(message).__name__}; expected a dict with 'role' and 'content'.")
        content = message.get("content")
        if isinstance(content, list | tuple):
            content = _split_parts(content, medias)
        slim.append({**message, "content": content} if "content" in message else dict(message))
    return slim, medias


def _split_parts(parts: Sequence[Any], medias: list[Any]) -> list[Any]:
    slim: list[Any] = []
    in_chunks = False
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind is None and isinstance(part, Mapping) and _KEYS.keys() & part.keys():
            held = min(_KEYS.keys() & part.keys())
            raise TextError(f"a part of a message holds {held!r} but has no 'type'; add 'type': {held!r}.")
        if not isinstance(kind, str) or kind not in _KEYS:
            slim.append(part)
            in_chunks = False
            continue
        key = next((key for key in _KEYS[kind] if part.get(key) is not None), None)
        medias.append(None if key is None else _medium(kind, part[key], part))
        if kind == "video_chunk":
            if not in_chunks:
                slim.append({"type": "video", "video": ""})
            in_chunks = True
            continue
        in_chunks = False
        # The key stays, for templates that look for it; what it holds does not.
        rest = {name: value for name, value in part.items() if name not in _KEYS[kind]}
        slim.append(rest if key is None else {**rest, key: _emptied(part[key])})
    return slim


def _medium(kind: str, content: Any, part: Mapping[str, Any]) -> Any:
    if kind == "video_chunk":
        return part
    if isinstance(content, Mapping) and "url" in content:
        content = content["url"]
    if kind.startswith("image"):
        return {"type": "image", "image": content}
    medium = {"type": "video", "video": content}
    return medium if part.get("fps") is None else {**medium, "fps": part["fps"]}


def _emptied(content: Any) -> Any:
    return {"url": ""} if isinstance(content, Mapping) else ""
