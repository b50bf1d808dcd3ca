"""`PatchBatch`: the result of preprocessing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kimi_jax_prep.packed import PackedPatches, pack_patches, register_pytrees
from kimi_jax_prep.plan import MediaPlan


@dataclass(frozen=True, slots=True)
class Failure:
    """A medium that was skipped, and why."""

    index: int
    """In the list of media that was passed."""
    error: Exception
    """What is wrong with it; the message names the index."""


@dataclass(frozen=True, slots=True, eq=False)
class PatchBatch:
    """Patches of all media, one after another in the caller's order. Each chunk of a video is a row of `grid_thws`.

    Arrays are NumPy arrays (writable, contiguous, not shared) unless another kind was requested. A pytree with two
    leaves, `pixel_values` and `grid_thws`; the other fields are static. A jitted function compiles anew for each size:
    use `pack` to give all batches one shape.
    """

    pixel_values: Any
    """(N, 3, 14, 14), normalized values in the requested dtype, or bytes for "uint8"."""
    grid_thws: Any
    """(rows, 3) int64: frames, patch rows, patch columns of each image or chunk; their products sum to N."""
    plans: tuple[MediaPlan, ...]
    """Sizes of each image or chunk."""
    sources: tuple[int, ...]
    """Index of the medium that each row comes from, in the list that was passed."""
    prompts: tuple[str | None, ...]
    """Prompt text of each video chunk; None for images."""
    failures: tuple[Failure, ...] = ()
    """Media that were skipped with `on_error="skip"`."""
    sizes: tuple[tuple[int, int], ...] = ()
    """(width, height) in pixels of each image or chunk, before the resize. Empty if unknown."""

    def __post_init__(self) -> None:
        register_pytrees()

    @property
    def num_tokens(self) -> tuple[int, ...]:
        """Tokens of each image or chunk, after the merge kernel (or `fixed_output_tokens`)."""
        return tuple(plan.num_tokens for plan in self.plans)

    def __len__(self) -> int:
        return len(self.plans)

    def __repr__(self) -> str:
        kind = (
            f"{self.pixel_values.dtype} {tuple(self.pixel_values.shape)}"
            if hasattr(self.pixel_values, "shape")
            else "?"
        )
        failed = f", failures={len(self.failures)}" if self.failures else ""
        shown = ", ".join("x".join(map(str, plan.grid_thw)) for plan in self.plans[:4])
        more = ", ..." if len(self.plans) > 4 else ""
        return (
            f"PatchBatch(pixel_values={kind}, grid_thws=[{shown}{more}], rows={len(self)}, "
            f"tokens={sum(self.num_tokens)}{failed})"
        )

    def show(self, i: int = 0, **options: Any) -> Any:
        """Draw row `i` with its grid: `kimi_jax_prep.visualize(self, i, **options)`."""
        from kimi_jax_prep.view.picture import visualize

        return visualize(self, i, **options)

    def _repr_html_(self) -> str:
        from kimi_jax_prep.view.notebook import batch_html

        return batch_html(self)

    def split(self) -> Sequence[Any]:
        """Return the patches of each row as views of `pixel_values`, (num_patches, 3, 14, 14) each."""
        parts, start = [], 0
        for plan in self.plans:
            parts.append(self.pixel_values[start : start + plan.num_patches])
            start += plan.num_patches
        return parts

    def pack(self, *, capacity: int | None = None, max_media: int | None = None) -> PackedPatches:
        """Copy the batch into arrays of fixed shapes, for a model that is jitted once.

        Args:
          capacity: rows of `pixel_values`, a multiple of `merge_kernel_size` squared. None chooses the smallest that
            fits of 1,024, 2,048, 4,096, ... 4,194,304, rounded up to whole tokens.
          max_media: rows of `grid_thws`. None allows as many media as tokens, `capacity // merge_kernel_size**2`.

        Returns:
          NumPy arrays; `pixel_values` stays a JAX array, on its devices, if it is one.

        Raises:
          PlanError: the batch has more patches than `capacity`, or more rows than `max_media`.
        """
        return pack_patches(self.pixel_values, self.plans, capacity=capacity, max_media=max_media, sources=self.sources)


register_pytrees(PatchBatch, arrays=("pixel_values", "grid_thws"))
