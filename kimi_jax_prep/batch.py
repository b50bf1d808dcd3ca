"""`PatchBatch`: what every way to preprocess returns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kimi_jax_prep.plan import MediaPlan


@dataclass(frozen=True, slots=True)
class Failure:
    """A medium that was left out, and why."""

    index: int
    """In the list of media that was passed."""
    error: Exception


@dataclass(frozen=True, slots=True, eq=False)
class PatchBatch:
    """Patches of all media, one after another in the caller's order. A video counts as its chunks.

    Arrays are NumPy's (writable, contiguous, the caller's own) unless another kind was asked for.
    """

    pixel_values: Any
    """(N, 3, 14, 14), normalized values in the dtype asked for, or bytes for "uint8"."""
    grid_thws: Any
    """(rows, 3) int64: frames, patch rows, patch columns of each image or chunk; their products sum to N."""
    plans: tuple[MediaPlan, ...]
    """Sizes of each image or chunk."""
    sources: tuple[int, ...]
    """Which of the media that were passed each row comes from, counted from 0."""
    prompts: tuple[str | None, ...]
    """The text that stands for each chunk of a video; None for images."""
    failures: tuple[Failure, ...] = ()
    """What was left out, with `on_error="skip"`."""
    sizes: tuple[tuple[int, int], ...] = ()
    """(width, height) in pixels of each image or chunk, before any resize. Empty where nobody measured them."""

    @property
    def num_tokens(self) -> tuple[int, ...]:
        """Tokens of each image or chunk, after the merge kernel (or `fixed_output_tokens`)."""
        return tuple(plan.num_tokens for plan in self.plans)

    def __len__(self) -> int:
        return len(self.plans)

    def split(self) -> Sequence[Any]:
        """`pixel_values` cut into one array for each row, (num_patches, 3, 14, 14) each, without a copy."""
        parts, start = [], 0
        for plan in self.plans:
            parts.append(self.pixel_values[start : start + plan.num_patches])
            start += plan.num_patches
        return parts
