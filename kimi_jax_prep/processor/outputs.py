"""What goes into a call and comes out of it: lists of media, and results by the names of the outputs."""

import collections
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from kimi_jax_prep.batch import PatchBatch
from kimi_jax_prep.media.kinds import described


def as_list(medias: Any) -> list[Any]:
    """Media as a list; one medium becomes a list of one, one array of pictures a list of them."""
    if _is_column(medias):
        return list(medias)
    one = (str, bytes, bytearray, memoryview, Mapping, os.PathLike)
    # Arrays have a shape, open files can be read, and vLLM's pictures have their bytes beside them: iterating over any
    # of them gives something else than media.
    if (
        isinstance(medias, one)
        or hasattr(medias, "shape")
        or hasattr(medias, "read")
        or hasattr(medias, "original_bytes")
        or not isinstance(medias, Iterable)
    ):
        return [medias]
    return list(medias)


def flattened(medias: Sequence[Any]) -> list[Any]:
    """Media in one list. transformers' processors pass images on in one list, or in one array, for each text."""
    nested = (media if isinstance(media, list | tuple) else [media] for media in medias)
    inner = [media for each in nested for media in each]
    return [media for each in inner for media in (list(each) if getattr(each, "ndim", 0) == 4 else [each])]


def is_video(media: Any) -> bool:
    """Whether it counts among the videos where images and videos are told apart."""
    return described(media).kind != "image"


def transformers_names(batch: PatchBatch, medias: Sequence[Any]) -> dict[str, np.ndarray]:
    """Outputs by transformers' names, images apart from videos. Without a copy where there is only one kind."""
    is_image = [not is_video(media) for media in medias]
    rows = np.array([is_image[source] for source in batch.sources])
    patches = np.repeat(rows, [plan.num_patches for plan in batch.plans])
    outputs = {}
    if rows.any():
        outputs["pixel_values"] = batch.pixel_values if rows.all() else batch.pixel_values[patches]
        outputs["image_grid_thw"] = batch.grid_thws[rows]
    if not rows.all():
        outputs["pixel_values_videos"] = batch.pixel_values[~patches] if rows.any() else batch.pixel_values
        outputs["video_grid_thw"] = batch.grid_thws[~rows]
        chunks = collections.Counter(source for source in batch.sources if not is_image[source])
        outputs["num_chunks_per_video"] = np.array([chunks[source] for source in sorted(chunks)], np.int64)
    return outputs


def _is_column(medias: Any) -> bool:
    """Whether it holds several media though it has a shape: pictures in one array, or objects in a row or a Series."""
    if hasattr(medias, "iloc"):  # pandas' Series, whatever its dtype
        return hasattr(medias, "to_numpy") and len(getattr(medias, "shape", ())) == 1
    shape = getattr(medias, "shape", None)
    if not isinstance(shape, tuple) or hasattr(medias, "original_bytes"):  # torch's shapes are tuples too
        return False
    return len(shape) == 4 or (len(shape) == 1 and str(getattr(medias, "dtype", "")) == "object")
