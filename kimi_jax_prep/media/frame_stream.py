"""Sampled frames of one video file, decoded as they are asked for."""

import contextlib
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

    Args:
      file: the video.
      indices: of the frames that will be asked for, each as often as it is listed.
      progress: show a tqdm bar.
    """

    def __init__(self, file: VideoFile, indices: Sequence[int], *, progress: bool) -> None:
        self.indices = sorted(set(indices))
        self._file = file
        self._progress = progress
        self._lock = locks.new_lock()
        self._left = Counter(indices)
        self._waiting: dict[int, np.ndarray] = {}
        self._rest: Iterator[np.ndarray] | None = None
        self._next = 0
        """Position in `indices` of the frame that `_rest` gives next."""
        self._error = ""

    def frame(self, k: int) -> UInt8[np.ndarray, "height width 3"]:
        """Frame k, one of `indices`.

        Raises:
          MediaError: it cannot be decoded; frames asked for later are not either.
        """
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
        if self._rest is None or k < self.indices[min(self._next, len(self.indices) - 1)]:
            self._start(k)
        while True:
            number = self.indices[self._next]
            pixels = next(self._rest)  # type: ignore[arg-type]  # `_start` has set it
            self._next += 1
            if self._next == len(self.indices):
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
        self._next = self.indices.index(k)
        self._rest = self._file.frames(self.indices[self._next :], progress=self._progress and self._next == 0)

    def _stop(self) -> None:
        rest, self._rest = self._rest, None
        if rest is not None:
            with contextlib.suppress(Exception):
                rest.close()  # type: ignore[attr-defined]  # a generator: its file and decoder threads go now
