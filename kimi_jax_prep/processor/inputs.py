"""`KimiInputs`: what `KimiProcessor` returns."""

from collections.abc import Mapping
from typing import Any

from transformers.image_processing_base import BatchFeature


class KimiInputs(BatchFeature):
    """Model inputs by name; and beside them, not among the keys, where the media are.

    Behaves as `BatchFeature` does, so transformers' `Trainer` and accelerate can rebuild, merge and move it. Rebuilding
    it from a plain dict leaves `media_spans` None, since nobody can say whether the ids are the same.
    """

    media_spans: list[list[tuple[int, int]]] | None
    """For every text, for every image and chunk in it, (start, end) in its `input_ids`, end not included. All of them,
    one after another, are the rows of `grid_thws`."""

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,
        tensor_type: Any = None,
        skip_tensor_conversion: Any = None,
        *,
        media_spans: list[list[tuple[int, int]]] | None = None,
    ) -> None:
        super().__init__(None if data is None else dict(data), tensor_type, skip_tensor_conversion)
        if media_spans is None and isinstance(data, KimiInputs):
            media_spans = data.media_spans
        self.media_spans = media_spans

    def __getitem__(self, item: str) -> Any:
        return self.media_spans if item == "media_spans" else super().__getitem__(item)

    def __or__(self, other: Any) -> Any:
        merged = super().__or__(other)
        if isinstance(merged, KimiInputs) and "input_ids" not in other:
            merged.media_spans = self.media_spans
        return merged

    def __getstate__(self) -> dict[str, Any]:
        return vars(self)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
