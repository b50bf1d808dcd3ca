"""Which kind of medium the caller holds, asked once: everything else works on the answer."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kimi_jax_prep.errors import MediaError
from kimi_jax_prep.media.arrays import is_object_array
from kimi_jax_prep.media.faults import Reading

KINDS = ("image", "video_chunk", "video")
# Parts of OpenAI's messages, whose medium is a URL or a mapping with one.
_PARTS = {"image_url": "image", "video_url": "video"}
# What the library reads beside the medium itself, by kind.
_ABOUT = {"image": (), "video_chunk": ("prompt",), "video": ("fps", "frames_indices", "video_metadata")}
# Other names for these, which would be ignored without a word.
_MEANT = {
    "frames_per_second": "fps",
    "frame_rate": "fps",
    "framerate": "fps",
    "video_fps": "fps",
    "frame_indices": "frames_indices",
    "frame_indexes": "frames_indices",
    "metadata": "video_metadata",
}
# Keys of engines and data sets, which are about other things.
_OF_OTHERS = ("uuid", "detail", "path", "bytes", "id", "index", "name", "min_pixels", "max_pixels")


@dataclass(frozen=True, slots=True)
class Described:
    """A medium as the caller described it."""

    kind: str
    """One of `KINDS`."""
    content: Any
    """An image, a list or array of frames, or a video."""
    fps: Any = None
    """Frames per second of the source."""
    frames_indices: Any = None
    """Index in the source of each frame, if the frames were sampled elsewhere."""
    prompt: str | None = None
    """Prompt of a video chunk."""


def described(media: Any) -> Described:
    """Read what a medium says about itself. Nothing is opened.

    Raises:
      MediaError: a mapping of no kind that is known, or with a key that resembles a known one.
    """
    media = plain(media)
    if not isinstance(media, Mapping):
        return Described("image", media)
    with Reading(f"a {type(media).__name__} gives no keys and values"):
        media = {key: media[key] for key in media}  # once: mappings of others may compute, or raise
    kind = media.get("type")
    if kind is None and is_encoded_record(media):
        return Described("image", media)
    if isinstance(kind, str) and kind in _PARTS:
        return _part(media, kind)
    if kind is None:
        held = [key for key in (*KINDS, *_PARTS) if key in media]
        hint = f" It holds {held[0]!r}: add 'type': {held[0]!r}." if held else ""
        raise MediaError(f"unknown medium type None; expected {', '.join(map(repr, KINDS))}.{hint}")
    if kind not in KINDS:
        raise MediaError(f"unknown medium type {kind!r}; expected {', '.join(map(repr, KINDS))}.")
    if kind not in media:
        raise MediaError(f"a medium of type {kind!r} needs the key {kind!r}; it has {sorted(map(str, media))}.")
    _check_keys(media, kind)
    return _with_metadata(kind, plain(media[kind]), media)


def plain(value: Any) -> Any:
    """The value without the wrappers of vLLM (media with its bytes), Arrow scalars, and NumPy's object scalars."""
    with Reading(f"a {type(value).__name__} gives no value"):
        if hasattr(value, "media") and hasattr(value, "original_bytes"):
            value = value.media
        if callable(getattr(value, "as_py", None)):
            value = value.as_py()
    if is_object_array(value) and value.ndim == 0:
        value = value.item()
    return value


def is_encoded_record(value: Any) -> bool:
    """Whether it is `{"bytes": ..., "path": ...}`, as `datasets` and Parquet files hold images."""
    return isinstance(value, Mapping) and bool(value) and value.keys() <= {"bytes", "path"}


def of_record(record: Mapping[str, Any]) -> Any:
    """The bytes of an encoded record, or its path.

    Raises:
      MediaError: it has neither.
    """
    content = record.get("bytes") if record.get("bytes") is not None else record.get("path")
    if content is None:
        raise MediaError("both 'bytes' and 'path' are None.")
    return content


def _part(media: Mapping[str, Any], kind: str) -> Described:
    """`{"type": "image_url", "image_url": {"url": ...}}`, and the same for videos."""
    if kind not in media:
        raise MediaError(f"a medium of type {kind!r} needs the key {kind!r}; it has {sorted(map(str, media))}.")
    _check_keys(media, _PARTS[kind], kind)
    content, about = plain(media[kind]), dict(media)
    if isinstance(content, Mapping) and "url" in content:
        about = {**content, **about}
        content = content["url"]
    return _with_metadata(_PARTS[kind], content, about)


def _with_metadata(kind: str, content: Any, about: Mapping[str, Any]) -> Described:
    if kind != "video":
        return Described(kind, content, prompt=about.get("prompt"))
    metadata = about.get("video_metadata")
    # vLLM passes frames and their metadata as a pair.
    if isinstance(content, tuple) and len(content) == 2 and isinstance(content[1], Mapping):
        content, metadata = content if metadata is None else (content[0], metadata)
    with Reading(f"a {type(metadata).__name__} gives no metadata"):
        fps, indices = (_either(about, metadata, name) for name in ("fps", "frames_indices"))
    return Described(kind, plain(content), fps, indices)


def _either(about: Mapping[str, Any], metadata: Any, name: str) -> Any:
    if about.get(name) is not None:
        return about[name]
    return metadata.get(name) if isinstance(metadata, Mapping) else getattr(metadata, name, None)


def _check_keys(media: Mapping[str, Any], kind: str, key: str | None = None) -> None:
    """Refuse keys that were meant for one of ours: ignored, they would change a result without a word."""
    ours = ("type", key or kind, *_ABOUT[kind])
    for name in media:
        if name in ours or name in _OF_OTHERS or not isinstance(name, str):
            continue
        meant = _MEANT.get(name)
        near = [meant] if meant in ours else difflib.get_close_matches(name, ours, n=1, cutoff=0.8)
        if near:
            raise MediaError(
                f"a medium of type {key or kind!r} has the unknown key {name!r}; did you mean {near[0]!r}?"
            )
