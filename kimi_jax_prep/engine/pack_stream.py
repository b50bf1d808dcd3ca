"""`pack_stream`: media of any sizes to packs of one shape."""

import itertools
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from kimi_jax_prep.batch import Failure
from kimi_jax_prep.checks import one_of, positive_int
from kimi_jax_prep.config import KIMI_K25, ConfigLike, as_config
from kimi_jax_prep.engine.preprocessor import preprocess
from kimi_jax_prep.errors import PlanError
from kimi_jax_prep.packed import PackedPatches, check_capacity, pack_index
from kimi_jax_prep.plan import MediaPlan

# Media that are preprocessed together, so that all threads have work.
_GROUP = 8


class _Row(NamedTuple):
    source: int
    plan: MediaPlan
    patches: Any


class PackStream(Iterator[PackedPatches]):
    """The iterator that `pack_stream` returns. It reads media as packs are taken."""

    def __init__(
        self,
        medias: Iterable[Any],
        *,
        config: ConfigLike,
        capacity: int,
        max_media: int | None,
        dtype: Any,
        on_error: str,
        lookahead: int,
        options: dict[str, Any],
    ) -> None:
        if isinstance(medias, str | bytes | bytearray | Mapping | os.PathLike):
            raise TypeError(f"`medias` is an iterable of media; got one {type(medias).__name__}. Put it into a list.")
        one_of("on_error", on_error, ("raise", "skip"))
        self._config = as_config(config)
        # Both numbers are checked before any medium is read.
        self._capacity = check_capacity(positive_int("capacity", capacity), self._config.merge_kernel_size)
        most = self._capacity // self._config.merge_kernel_size**2
        self._max_media = most if max_media is None else positive_int("max_media", max_media, optional=True)
        self._lookahead = 0 if lookahead == 0 else positive_int("lookahead", lookahead)
        self._arguments = {"config": self._config, "dtype": dtype, **options}
        self._skip = on_error == "skip"
        self._medias = iter(medias)
        self._read = 0
        self._rows: deque[_Row] = deque()
        self._failures: list[Failure] = []
        self._num_packs = 0
        self._num_patches = 0

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Media that were skipped so far, by their index among all media."""
        return tuple(self._failures)

    @property
    def num_packs(self) -> int:
        """Packs returned so far."""
        return self._num_packs

    @property
    def fill(self) -> float:
        """Share of the rows in use in all packs so far, 0 to 1."""
        return self._num_patches / (self._num_packs * self._capacity) if self._num_packs else 0.0

    def __next__(self) -> PackedPatches:
        chosen: list[_Row] = []
        free = self._capacity
        while len(chosen) < self._max_media:
            row = self._take(free)
            if row is None:
                break
            chosen.append(row)
            free -= row.plan.num_patches
        if not chosen:
            raise StopIteration
        self._num_packs += 1
        self._num_patches += self._capacity - free
        return self._packed(chosen)

    def _take(self, free: int) -> _Row | None:
        """Remove the next medium if it fits, or else the largest that fits within the lookahead."""
        while len(self._rows) <= self._lookahead and self._read_group():
            pass
        window = list(itertools.islice(self._rows, self._lookahead + 1))
        fitting = [row for row in window if row.plan.num_patches <= free]
        if not fitting:
            return None
        row = window[0] if fitting[0] is window[0] else max(fitting, key=lambda row: row.plan.num_patches)
        del self._rows[next(i for i, other in enumerate(window) if other is row)]
        return row

    def _read_group(self) -> bool:
        """Preprocess a few more media. False at the end of them."""
        group = list(itertools.islice(self._medias, _GROUP))
        if not group:
            return False
        first, self._read = self._read, self._read + len(group)
        batch = preprocess(group, on_error="skip", **self._arguments)
        wrong: dict[int, Exception] = {failure.index: failure.error for failure in batch.failures}
        for source, plan in zip(batch.sources, batch.plans, strict=True):
            if plan.num_patches > self._capacity:
                text = f"it has {plan.num_patches} patches, more than `capacity` = {self._capacity}."
                wrong.setdefault(source, PlanError(f"medias[{source}]: {text}"))
        for source in sorted(wrong):
            error = _renumbered(wrong[source], first + source)
            if not self._skip:
                raise error
            self._failures.append(Failure(first + source, error))
        for source, plan, patches in zip(batch.sources, batch.plans, batch.split(), strict=True):
            if source not in wrong:
                self._rows.append(_Row(first + source, plan, patches))
        return True

    def _packed(self, rows: list[_Row]) -> PackedPatches:
        index = pack_index(
            [row.plan for row in rows],
            capacity=self._capacity,
            max_media=self._max_media,
            sources=[row.source for row in rows],
        )
        patches = rows[0].patches
        pixel_values = np.zeros((self._capacity, *patches.shape[1:]), patches.dtype)
        np.concatenate([row.patches for row in rows], out=pixel_values[: int(index["num_patches"])])
        return PackedPatches(pixel_values, **index)


def pack_stream(
    medias: Iterable[Any],
    *,
    capacity: int,
    config: ConfigLike = KIMI_K25,
    max_media: int | None = None,
    dtype: Any = "float32",
    on_error: str = "raise",
    lookahead: int = 0,
    **options: Any,
) -> PackStream:
    """Preprocess media and pack them into batches of one shape, in order.

    A pack takes whole media (images and video chunks) until the next one does not fit; the last pack is padded. With
    `lookahead`, a pack then also takes the largest medium that fits among the following ones. The result depends on
    nothing but the arguments.

    Args:
      medias: read lazily, a few at a time.
      capacity: rows of `pixel_values`, a multiple of `merge_kernel_size` squared.
      config: sizes, colour rules, mean and std.
      max_media: rows of `grid_thws`; None allows as many media as tokens, `capacity // merge_kernel_size**2`.
      dtype: "float32", "bfloat16", "float16" or "uint8".
      on_error: "skip" leaves out media that cannot be read or are larger than `capacity`, and lists them in the
        iterator's `failures`.
      lookahead: number of media behind the next one that may be packed before it.
      **options: of `MediaOptions`.

    Returns:
      An iterator of `PackedPatches`, whose `sources` count all media. Its `failures`, `num_packs` and `fill` report on
      what has been read so far.

    Raises:
      PlanError: `capacity`, `max_media` or `lookahead` is out of range; while iterating, a medium has more patches than
        `capacity`.
      PrepError: while iterating, with the index of the medium.
      TypeError: `medias` is one medium instead of an iterable, or an unknown keyword.
    """
    return PackStream(
        medias,
        config=config,
        capacity=capacity,
        max_media=max_media,
        dtype=dtype,
        on_error=on_error,
        lookahead=lookahead,
        options=options,
    )


def _renumbered(error: Exception, index: int) -> Exception:
    """Put the index among all media into an error about one of a group."""

    def sub(value: Any) -> Any:
        return re.sub(r"^medias\[\d+\]", f"medias[{index}]", value) if isinstance(value, str) else value

    error.args = tuple(map(sub, error.args))
    if isinstance(error, OSError):
        error.strerror = sub(error.strerror)
    return error
