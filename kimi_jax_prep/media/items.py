"""A list of media as the rows of a result, and what is wrong with those that cannot be read."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped
from PIL import Image

from kimi_jax_prep.config import MediaProcConfig
from kimi_jax_prep.errors import MediaError, PrepError
from kimi_jax_prep.media.arrays import is_array, is_object_array
from kimi_jax_prep.media.faults import described, is_about_a_medium, is_of_the_machine
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
        if isinstance(err, Exception) and not is_about_a_medium(err):
            if is_of_the_machine(err):
                if isinstance(err, PrepError):
                    raise type(err)(f"medias[{i}]: {err}") from err
                err.add_note(f"while reading medias[{i}]")
            return False
        if isinstance(err, PrepError):
            self._note(i, type(err)(f"medias[{i}]: {err}"), err)
        elif isinstance(err, OSError):
            self._note(i, _located(i, err), err)
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


def _located(i: int, err: OSError) -> Exception:
    """A missing file stays a FileNotFoundError, with the place in the list in front."""
    if type(err).__module__ == "builtins" and err.errno is not None:
        return type(err)(err.errno, f"medias[{i}]: {err.strerror or err}", err.filename)
    # Classes of others, such as URLError, have constructors of their own.
    return MediaError(f"medias[{i}]: {described(err)}")


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
    items: list[Item] = []
    total = 0
    for i, media in _numbered(medias):
        with failures.about(i):
            opened = open_media(media, config, options)
            own = sum(medium.num_pixels for medium in opened)
            _check_total(own, total, options)
            items += [Item(i, medium, medium.plan(config)) for medium in opened]
            total += own
    return items


def _numbered(medias: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Media with their indices. What the caller's iterator raises ends the call, and is told where."""
    i = 0
    iterator = iter(medias)
    while True:
        try:
            media = next(iterator)
        except StopIteration:
            return
        except Exception as err:
            err.add_note(f"raised by the iterator of media, in place of medias[{i}]")
            raise
        yield i, media
        i += 1


def _check_total(own: int, before: int, options: MediaOptions) -> None:
    """A bound on what one call decodes: frames of videos multiply."""
    most = options.max_total_pixels
    if most is not None and own + before > most:
        rest = f" after {before} of the media before it" if before else ""
        raise MediaError(f"its frames have {own} pixels{rest}; `max_total_pixels` allows {most} in one call.")


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
    """Whether it is one medium that could also be iterated over, as bytes and arrays can."""
    if is_array(medias):
        return medias.ndim < 4 and not is_object_array(medias)
    one = (str, bytes, bytearray, memoryview, Mapping, os.PathLike, Image.Image)
    return isinstance(medias, one) or hasattr(medias, "read")
