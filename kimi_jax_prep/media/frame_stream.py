"""Sampled frames of one video file, decoded as they are asked for."""

import contextlib
import ctypes
import os
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import UInt8

from kimi_jax_prep.errors import MediaError
from kimi_jax_prep.media import locks
from kimi_jax_prep.media.video_file import VideoFile

# Frames that were decoded on the way to a later one and not asked for yet. Several threads ask roughly in order.
_MOST_WAITING = 16


class FrameStream:
    """Decodes the sampled frames in order, and keeps none that was handed out.

    A forked child decodes anew: its parent's decoder threads are not there, and its parent's lock may be taken.

    Args:
      file: the video.
      indices: of the frames that will be asked for, each as often as it is listed.
      progress: show a tqdm bar.
    """

    def __init__(self, file: VideoFile, indices: Sequence[int], *, progress: bool) -> None:
        self.indices = sorted(set(indices))
        self._asked = tuple(indices)
        self._file = file
        self._progress = progress
        self._decodings: dict[int, _Decoding] = {}
        """By process."""

    def frame(self, k: int) -> UInt8[np.ndarray, "height width 3"]:
        """Frame k, one of `indices`.

        Raises:
          MediaError: it cannot be decoded; frames asked for later are not either.
        """
        process = os.getpid()
        decoding = self._decodings.get(process)
        if decoding is None:
            # Atomic, for several threads may ask first.
            decoding = self._decodings.setdefault(process, _Decoding(self._file, self._asked, progress=self._progress))
        return decoding.frame(k)


class _Decoding:
    """A stream in one process."""

    _rest: Iterator[np.ndarray] | None = None

    def __init__(self, file: VideoFile, indices: Sequence[int], *, progress: bool) -> None:
        self._process = os.getpid()
        self._indices = sorted(set(indices))
        self._file = file
        self._progress = progress
        self._lock = locks.new_lock()
        self._left = Counter(indices)
        self._waiting: dict[int, np.ndarray] = {}
        self._next = 0
        """Position in `_indices` of the frame that `_rest` gives next."""
        self._error = ""

    def __del__(self) -> None:
        # A decoder waits for its threads when it is freed, which a forked child does not have: there it is never freed.
        if self._rest is not None and os.getpid() != self._process:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._rest))

    def frame(self, k: int) -> UInt8[np.ndarray, "height width 3"]:
        with self._lock:
            if self._error:
                raise MediaError(self._error)
            try:
                return self._taken(k)
            except MediaError as err:
                self._error = str(err)
                self._stop()
                raise
            except BaseException:
                # An interrupt may have left the decoder anywhere: whoever asks again starts anew.
                self._stop()
                raise

    def _taken(self, k: int) -> np.ndarray:
        self._left[k] -= 1
        if k in self._waiting:
            return self._waiting[k] if self._left[k] > 0 else self._waiting.pop(k)
        if self._rest is None or k < self._indices[min(self._next, len(self._indices) - 1)]:
            self._start(k)
        while True:
            number = self._indices[self._next]
            pixels = next(self._rest)  # type: ignore[arg-type]  # `_start` has set it
            self._next += 1
            if self._next == len(self._indices):
                self._stop()
            if number == k:
                if self._left[k] > 0:
                    self._waiting[k] = pixels
                return pixels
            if self._left[number] > 0:
                self._waiting[number] = pixels
                if len(self._waiting) > _MOST_WAITING:
                    del self._waiting[min(self._waiting)]  # whoever still asks for it decodes it anew

    def _start(self, k: int) -> None:
        self._stop()
        self._next = self._indices.index(k)
        self._rest = self._file.frames(self._indices[self._next :], progress=self._progress and self._next == 0)

    def _stop(self) -> None:
        rest, self._rest = self._rest, None
        if rest is not None:
            with contextlib.suppress(Exception):
                rest.close()  # type: ignore[attr-defined]  # a generator: its file and decoder threads go now
