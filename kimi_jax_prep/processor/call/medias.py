"""The media of a call, from `medias=` or from `images=` and `videos=`, in the order of their placeholders."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kimi_jax_prep.errors import PlanError, TextError
from kimi_jax_prep.media.kinds import Described, described
from kimi_jax_prep.processor.image import as_list
from kimi_jax_prep.text.placeholders import Mark


@dataclass(slots=True)
class CallMedia:
    """All media of a call in one list."""

    flat: list[Any] = field(default_factory=list)
    runs: list[int | None] = field(default_factory=list)
    """For each medium, the number of the list of chunks that it came in, or None."""
    shares: list[int] | None = None
    """How many belong to each text; None where they are dealt out in order."""

    def extend(self, medias: Iterable[Any]) -> None:
        for media in medias:
            if _is_run(media):
                number = len(self.flat)
                self.flat += media
                self.runs += [number] * len(media)
            else:
                self.flat.append(media)
                self.runs.append(None)


def from_medias(medias: Any, num_texts: int) -> CallMedia:
    """Media of `medias=`: one medium, one list for all texts, or a list with a list (or None) for each text.

    A list of chunks in place of a medium holds the chunks of one video.

    Raises:
      TextError: another number of lists than of texts.
    """
    call = CallMedia()
    if medias is None:
        call.shares = [0] * num_texts
        return call
    medias = as_list(medias)
    nested = bool(medias) and all(one is None or isinstance(one, list | tuple) for one in medias)
    if num_texts == 1 and len(medias) > 1 and all(map(_is_run, medias)):
        nested = False
    if not nested:
        call.extend(medias)
        return call
    if len(medias) != num_texts:
        raise TextError(
            f"`medias` has {len(medias)} lists of media for {num_texts} texts; give one, or None, for each."
        )
    call.shares = []
    for own in medias:
        before = len(call.flat)
        call.extend(own or ())
        call.shares.append(len(call.flat) - before)
    return call


def from_images_and_videos(images: Any, videos: Any, metadata: Any, marks: Sequence[Sequence[Mark]]) -> CallMedia:
    """Media of `images=` and `videos=`, which take the placeholders of their kind in order.

    Args:
      images: one picture, a list of them, a list with a list (or None) for each text, or None.
      videos: one video, or as `images`. A list of pictures is the frames of one video.
      metadata: `video_metadata`: one for each video, or None.
      marks: the placeholders of each text.

    Raises:
      TextError: another number of lists than of texts, or of metadata than of videos.
    """
    pictures = _Queue("images", _pictures(images), len(marks), lambda _: False)
    films = _Queue("videos", _films(videos), len(marks), _is_film)
    films.lists = _with_metadata(films.lists, metadata)
    call = CallMedia(shares=[] if pictures.nested or films.nested else None)
    all_pads = sum(map(_pads, marks))
    for t, own in enumerate(marks):
        before = len(call.flat)
        mine, mine_too = pictures.of(t), films.of(t)
        one_each = len(mine) == _pads(own) if pictures.nested else pictures.total == all_pads
        call.extend(_dealt(own, mine, mine_too, one_each=one_each))
        for queue in (pictures, films):
            if queue.nested or t == len(marks) - 1:  # what no placeholder took is counted too, and an error
                call.extend(queue.of(t))
        if call.shares is not None:
            call.shares.append(len(call.flat) - before)
    return call


def check_sampling(medias: Sequence[Any], sampling: Mapping[str, Any]) -> None:
    """Refuse transformers' keywords for the sampling of frames where they would change what is done.

    Raises:
      PlanError: any of them, beside a video; `do_sample_frames=False` is fine where no video is sampled.
    """
    films = [film for film in map(described, medias) if film.kind == "video"]
    if not films or not sampling:
        return
    if sampling == {"do_sample_frames": False} and not any(map(_is_sampled, films)):
        return
    asked = ", ".join(f"{name}={value!r}" for name, value in sampling.items())
    raise PlanError(
        f"{asked}: the config's `sample_fps` decides which "
        "frames of a video are taken. Give the source's rate as 'fps' in the medium or in `video_metadata`, or pass "
        "frames that are sampled already."
    )


def _is_sampled(film: Described) -> bool:
    given = isinstance(film.content, list | tuple) or hasattr(film.content, "shape")
    return not given or (film.fps is not None and film.frames_indices is None)


class _Queue:
    """Media of one kind: a list for each text, or one that all texts share."""

    def __init__(self, name: str, values: list[Any], num_texts: int, is_one: Callable[[Any], bool]) -> None:
        def is_list(value: Any) -> bool:
            return value is None or (isinstance(value, list | tuple) and not is_one(value))

        self.nested = bool(values) and all(map(is_list, values))
        if self.nested and len(values) != num_texts:
            raise TextError(
                f"`{name}` has {len(values)} lists for {num_texts} texts; give one, or None, for each text."
            )
        self.lists = [list(value or ()) for value in values] if self.nested else [values]
        self.total = sum(map(len, self.lists))

    def of(self, t: int) -> list[Any]:
        """What is left for this text; taking from it is taking from the queue."""
        return self.lists[t if self.nested else 0]


def _dealt(marks: Sequence[Mark], pictures: list[Any], films: list[Any], *, one_each: bool) -> Iterator[Any]:
    """Media in the order of their placeholders.

    Args:
      one_each: False where adjacent `<|media_pad|>` stand for one picture.
    """
    end = None
    for mark in marks:
        follows, end = mark.kind == "pad" and mark.start == end, mark.end
        if follows and not one_each:
            continue
        queue = films if mark.kind == "video" else pictures
        if queue:
            yield queue.pop(0)


def _pads(marks: Sequence[Mark]) -> int:
    return sum(mark.kind != "video" for mark in marks)


def _pictures(images: Any) -> list[Any]:
    if images is None:
        return []
    if getattr(images, "ndim", 0) == 4:
        return list(images)
    return as_list(images)


def _films(videos: Any) -> list[Any]:
    if videos is None:
        return []
    if getattr(videos, "ndim", 0) == 5:
        return list(videos)
    return [videos] if _is_film(videos) else list(videos)


def _is_film(value: Any) -> bool:
    """Whether it is one video: a file, a medium, an array of frames, a list of frames, or a pair with its metadata."""
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping | os.PathLike) or hasattr(value, "read"):
        return True
    if hasattr(value, "shape"):
        return len(value.shape) == 4
    if not isinstance(value, list | tuple) or not value:
        return False
    return _is_pair(value) or _is_run(value) or all(map(_is_frame, value))


def _is_frame(value: Any) -> bool:
    shape = getattr(value, "shape", None)
    return len(shape) < 4 if shape is not None else hasattr(value, "getbands")


def _is_pair(value: Any) -> bool:
    """Frames with their metadata, as vLLM passes them."""
    return isinstance(value, tuple) and len(value) == 2 and not _is_frame(value[1]) and _is_metadata(value[1])


def _is_metadata(value: Any) -> bool:
    if isinstance(value, Mapping):
        return "type" not in value and bool({"fps", "frames_indices"} & value.keys())
    return hasattr(value, "fps") or hasattr(value, "frames_indices")


def _is_run(media: Any) -> bool:
    """Whether it is the list of the chunks of one video."""
    return (
        isinstance(media, list | tuple)
        and bool(media)
        and all(isinstance(one, Mapping) and one.get("type") == "video_chunk" for one in media)
    )


def _with_metadata(lists: Sequence[Sequence[Any]], metadata: Any) -> list[list[Any]]:
    """Videos as media, with what is known of their frames."""
    total = sum(map(len, lists))
    given = [] if metadata is None else [metadata] if _is_metadata(metadata) else list(metadata)
    if any(isinstance(one, list | tuple) for one in given):  # a list for each text
        given = [one for own in given for one in (own or ())]
    if given and len(given) != total:
        raise TextError(f"`video_metadata` has {len(given)} entries for {total} videos; give one, or None, for each.")
    left = iter(given or [None] * total)
    return [[_film(video, next(left)) for video in own] for own in lists]


def _film(video: Any, metadata: Any) -> Any:
    if _is_run(video) or (isinstance(video, Mapping) and "type" in video):
        return video
    if _is_pair(video):
        video, own = video
        metadata = own if metadata is None else metadata
    about = {}
    for name in ("fps", "frames_indices"):
        value = metadata.get(name) if isinstance(metadata, Mapping) else getattr(metadata, name, None)
        if value is not None:
            about[name] = value
    return {"type": "video", "video": video, **about}
