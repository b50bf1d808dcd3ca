"""`pack_stream`: media of any sizes to packs of one shape."""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from os import PathLike
from typing import Any

from kimi_jax_prep.batch import Failure
from kimi_jax_prep.checks import one_of, positive_int
from kimi_jax_prep.config import KIMI_K25, ConfigLike
from kimi_jax_prep.engine.preprocessor import ON_ERROR, shared_preprocessor
from kimi_jax_prep.errors import PlanError
from kimi_jax_prep.media.items import Failures, Item, without
from kimi_jax_prep.packed import PackedPatches, check_capacity, pack_index, pack_patches


class PackStream(Iterator[PackedPatches]):
    """The iterator that `pack_stream` returns. It opens media as packs are taken, and renders them into the pack."""

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
        if isinstance(medias, str | bytes | bytearray | Mapping | PathLike) or hasattr(medias, "read"):
            raise TypeError(f"`medias` is an iterable of media; got one {type(medias).__name__}. Put it into a list.")
        one_of("on_error", on_error, ON_ERROR)
        self._preprocessor = shared_preprocessor(config, dtype=dtype)
        self._preprocessor.options.replace(**options)  # raises on what is wrong with them
        self._options = options
        merge = self._preprocessor.config.merge_kernel_size
        # Both numbers are checked before any medium is read.
        self._capacity = check_capacity(positive_int("capacity", capacity), merge)
        most = self._capacity // merge**2
        self._max_media = most if max_media is None else positive_int("max_media", max_media, optional=True)
        self._lookahead = 0 if lookahead == 0 else positive_int("lookahead", lookahead)
        self._skip = on_error == "skip"
        self._medias = iter(medias)
        self._opened = 0
        self._waiting: deque[Item] = deque()
        self._failures: dict[int, Exception] = {}
        self._num_packs = 0
        self._num_patches = 0

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Media that were skipped so far, by their index among all media."""
        return tuple(Failure(i, self._failures[i]) for i in sorted(self._failures))

    @property
    def num_packs(self) -> int:
        """Packs returned so far."""
        return self._num_packs

    @property
    def fill(self) -> float:
        """Share of the rows in use in all packs so far, 0 to 1."""
        return self._num_patches / (self._num_packs * self._capacity) if self._num_packs else 0.0

    def __next__(self) -> PackedPatches:
        while items := self._choose():
            packed = self._pack(items)
            if packed.num_media:
                self._num_packs += 1
                self._num_patches += int(packed.num_patches)
                return packed
        raise StopIteration

    def _choose(self) -> list[Item]:
        """Remove the media of the next pack from those that wait."""
        chosen: list[Item] = []
        free = self._capacity
        while len(chosen) < self._max_media:
            while len(self._waiting) <= self._lookahead and self._open_next():
                pass
            window = list(islice(self._waiting, self._lookahead + 1))
            fitting = [i for i, item in enumerate(window) if item.plan.num_patches <= free]
            if not fitting:
                break
            # The next one if it fits, or else the largest that fits.
            best = 0 if fitting[0] == 0 else max(fitting, key=lambda i: window[i].plan.num_patches)
            del self._waiting[best]
            chosen.append(window[best])
            free -= window[best].plan.num_patches
        return chosen

    def _open_next(self) -> bool:
        """Open one more medium, whose rows then wait. False at the end of the media."""
        group = list(islice(self._medias, 1))
        if not group:
            return False
        index, self._opened = self._opened, self._opened + 1
        items, failures = self._preprocessor._open(group, "skip", self._options)
        error = failures.get(0)
        largest = max((item.plan.num_patches for item in items), default=0)
        if error is None and largest > self._capacity:
            error = PlanError(f"medias[0]: it has {largest} patches, more than `capacity` = {self._capacity}.")
        if error is None:
            self._waiting.extend(item._replace(source=index) for item in items)
        elif self._skip:
            self._failures[index] = _renumbered(error, index)
        else:
            raise _renumbered(error, index)
        return True

    def _pack(self, items: list[Item]) -> PackedPatches:
        failures = Failures(skip=self._skip)
        plans, sources = [item.plan for item in items], [item.source for item in items]
        index = pack_index(plans, capacity=self._capacity, max_media=self._max_media, sources=sources)
        pixel_values = self._preprocessor._with_backend(lambda backend: backend.filled(items, failures, self._capacity))
        if not failures:
            return PackedPatches(pixel_values, **index)
        # Broken media are noticed while they are decoded. Their rows are removed, and so are their further chunks.
        self._failures |= failures
        self._waiting = deque(item for item in self._waiting if item.source not in failures)
        pixel_values, left = without(failures, pixel_values[: int(index["num_patches"])], items)
        return pack_patches(
            pixel_values,
            [item.plan for item in left],
            capacity=self._capacity,
            max_media=self._max_media,
            sources=[item.source for item in left],
        )


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
    nothing but the arguments. Patches are written into the pack directly.

    Args:
      medias: opened lazily, `lookahead` media ahead.
      capacity: rows of `pixel_values`, a multiple of `merge_kernel_size` squared.
      config: sizes, colour rules, mean and std.
      max_media: rows of `grid_thws`; None allows as many media as tokens, `capacity // merge_kernel_size**2`.
      dtype: "float32", "bfloat16", "float16" or "uint8".
      on_error: "skip" leaves out media that cannot be read or are larger than `capacity`, and lists them in the
        iterator's `failures`. The space of a medium that turns out to be broken while it is decoded stays empty.
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
    """Put the index among all media into an error about the only one of a list."""

    def sub(value: Any) -> Any:
        return re.sub(r"^medias\[0\]", f"medias[{index}]", value) if isinstance(value, str) else value

    error.args = tuple(map(sub, error.args))
    if isinstance(error, OSError):
        error.strerror = sub(error.strerror)
    return error
