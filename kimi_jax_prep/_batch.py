"""`PatchBatch`: what every way to preprocess returns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kimi_jax_prep._geometry import MediaPlan


@dataclass(frozen=True, slots=True, eq=False)
class PatchBatch:
    """Patches of all media, one after another in the caller's order.

    Arrays are NumPy's (writable, contiguous, the caller's own) unless another kind was asked for.
    """

    pixel_values: Any
    """(N, 3, 14, 14), normalized values in the dtype asked for, or bytes for "uint8"."""
    grid_thws: Any
    """(media, 3) int64: frames, patch rows, patch columns of each medium; their products sum to N."""
    plans: tuple[MediaPlan, ...]
    """Sizes of each medium."""

    @property
    def num_tokens(self) -> tuple[int, ...]:
        """Tokens of each medium, after the merge kernel (or `fixed_output_tokens`)."""
        return tuple(plan.num_tokens for plan in self.plans)

    def __len__(self) -> int:
        return len(self.plans)

    def split(self) -> Sequence[Any]:
        """`pixel_values` cut into one array for each medium, (num_patches, 3, 14, 14) each, without a copy."""
        parts, start = [], 0
        for plan in self.plans:
            parts.append(self.pixel_values[start : start + plan.num_patches])
            start += plan.num_patches
        return parts
