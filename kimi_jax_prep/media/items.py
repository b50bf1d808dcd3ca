"""A list of media as the rows of a result, and what is wrong with those that cannot be read."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped
from PIL import Image

from kimi_jax_prep.config import MediaProcConfig
from kimi_jax_prep.errors import PrepError
from kimi_jax_prep.media.arrays import is_array
from kimi_jax_prep.media.opening import Medium, open_media
from kimi_jax_prep.media.options import MediaOptions
from kimi_jax_prep.plan import MediaPlan, total_patches


class Item(NamedTuple):
    """One row of the result."""

    source: int
    """Index of the medium that it comes from."""
    medium: Medium
    plan: MediaPlan


class Failures(dict[int, Exception]):
    """What is wrong with media, by their index; only filled where failing media are to be skipped."""

    def __init__(self, *, skip: bool) -> None:
        super().__init__()
        self._skip = skip

    def about(self, i: int) -> "_About":
        """Errors inside say which medium they are about."""
        return _About(self, i)

    def note(self, i: int, err: BaseException | None) -> bool:
        """Name the medium in an error and keep it, or raise it. False for what is no error of a medium."""
        if isinstance(err, PrepError):
            self._note(i, type(err)(f"medias[{i}]: {err}"), err)
        elif isinstance(err, OSError):
            # A missing file stays a FileNotFoundError, with the place in the list in front.
            self._note(i, type(err)(err.errno, f"medias[{i}]: {err.strerror or err}", err.filename), err)
        else:
            return False
        return True

    def _note(self, i: int, error: Exception, cause: Exception) -> None:
        if not self._skip:
            try:
                raise error from cause
            finally:
                # This frame is in their tracebacks: together with these names it would be a cycle, and the picture
                # that those frames hold would stay until the garbage collector comes by.
                del error, cause
        error.__cause__ = cause
        # The result keeps the errors: it is not to keep the pictures and memory of this call by their tracebacks.
        link: BaseException | None = error
        while link is not None:
            link.__traceback__ = None
            link = link.__cause__ or link.__context__
        self.setdefault(i, error)


class _About:
    """Not a generator with a decorator: in Python 3.13 the decorator's frame makes a cycle with the error."""

    def __init__(self, failures: Failures, i: int) -> None:
        self._failures, self._i = failures, i

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, err: BaseException | None, traceback: object) -> bool:
        return self._failures.note(self._i, err)


def open_items(medias: Iterable[Any], config: MediaProcConfig, options: MediaOptions, failures: Failures) -> list[Item]:
    """Every image and chunk of a list with its plan. Only headers are read."""
    if _is_one_medium(medias) or not isinstance(medias, Iterable):
        raise TypeError(f"`medias` is a list of media; got one {type(medias).__name__}. Put it in a list.")
    items = []
    for i, media in enumerate(medias):
        with failures.about(i):
            opened = open_media(media, config, options)
            items += [Item(i, medium, medium.plan(config)) for medium in opened]
    return items


def num_patches_of(items: Iterable[Item]) -> int:
    return total_patches([item.plan for item in items])


def without(
    failures: Failures, pixel_values: Shaped[np.ndarray, "n 3 p p"], items: Sequence[Item]
) -> tuple[Shaped[np.ndarray, "m 3 p p"], list[Item]]:
    """The rows of what could be read, in an array of their own."""
    keep = np.repeat([item.source not in failures for item in items], [item.plan.num_patches for item in items]).astype(
        bool
    )
    return pixel_values[keep], [item for item in items if item.source not in failures]


def _is_one_medium(medias: Any) -> bool:
    """Whether it is a medium that could also be iterated over, with nonsense coming out."""
    one = (str, bytes, bytearray, memoryview, Mapping, os.PathLike, Image.Image)
    return isinstance(medias, one) or hasattr(medias, "read") or (is_array(medias) and medias.ndim < 4)
