"""Frames out of video files. Not there yet: decoded frames are accepted, files are refused."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from kimi_jax_prep._errors import MediaError


class VideoFile:
    """One video file."""

    num_frames: int
    fps: float
    width: int
    height: int
    rotation: int

    def __init__(self, source: bytes | Path) -> None:
        raise MediaError(f"video files are not read yet; decode {type(source).__name__} to frames first.")

    def frames(self, indices: Sequence[int], *, progress: bool = False) -> Iterator[np.ndarray]:
        """Frames by index."""
        raise MediaError(f"video files are not read yet: {len(indices)} frames, progress {progress}.")
