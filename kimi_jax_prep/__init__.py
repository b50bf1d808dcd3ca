"""Images and video to the inputs of the Kimi vision tower: the checkpoint's bits, compiled by XLA.

Importing this package loads neither NumPy, JAX, transformers nor torch; names load what they need when first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from kimi_jax_prep import fork as fork  # its hook must be there before any fork
from kimi_jax_prep.config import KIMI_K3, KIMI_K25, KIMI_K26, KIMI_K27, MediaProcConfig, TransparentBgConfig
from kimi_jax_prep.errors import ConfigError, MediaError, MediaTypeError, PlanError, PrepError, TextError
from kimi_jax_prep.plan import MediaPlan, VideoChunkPlan, plan_chunk, plan_image, plan_video

if TYPE_CHECKING:
    from kimi_jax_prep.batch import Failure as Failure
    from kimi_jax_prep.batch import PatchBatch as PatchBatch
    from kimi_jax_prep.engine.preprocessor import Preprocessor as Preprocessor
    from kimi_jax_prep.engine.preprocessor import cached_bytes as cached_bytes
    from kimi_jax_prep.engine.preprocessor import clear_cache as clear_cache
    from kimi_jax_prep.engine.preprocessor import preprocess as preprocess
    from kimi_jax_prep.media.opening import split_video_chunks as split_video_chunks
    from kimi_jax_prep.media.options import MediaOptions as MediaOptions
    from kimi_jax_prep.ops.composite import composite as composite
    from kimi_jax_prep.ops.export import export_preprocess as export_preprocess
    from kimi_jax_prep.ops.patchify import normalize as normalize
    from kimi_jax_prep.ops.patchify import patchify as patchify
    from kimi_jax_prep.ops.patchify import preprocess_frames as preprocess_frames
    from kimi_jax_prep.ops.patchify import unpatchify as unpatchify
    from kimi_jax_prep.ops.resize import resize_bicubic as resize_bicubic
    from kimi_jax_prep.packed import PackedPatches as PackedPatches
    from kimi_jax_prep.streams.packs import pack_stream as pack_stream
    from kimi_jax_prep.streams.prefetch import prefetch as prefetch
    from kimi_jax_prep.tables.lut import normalize_lut as normalize_lut
    from kimi_jax_prep.view.picture import visualize as visualize

__version__ = "0.2.0"

_LAZY = {
    "Failure": "batch",
    "MediaOptions": "media.options",
    "PackedPatches": "packed",
    "PatchBatch": "batch",
    "Preprocessor": "engine.preprocessor",
    "cached_bytes": "engine.preprocessor",
    "clear_cache": "engine.preprocessor",
    "composite": "ops.composite",
    "export_preprocess": "ops.export",
    "normalize": "ops.patchify",
    "normalize_lut": "tables.lut",
    "pack_stream": "streams.packs",
    "patchify": "ops.patchify",
    "prefetch": "streams.prefetch",
    "preprocess": "engine.preprocessor",
    "preprocess_frames": "ops.patchify",
    "resize_bicubic": "ops.resize",
    "split_video_chunks": "media.opening",
    "unpatchify": "ops.patchify",
    "visualize": "view.picture",
}

__all__ = [
    "KIMI_K3",
    "KIMI_K25",
    "KIMI_K26",
    "KIMI_K27",
    "ConfigError",
    "Failure",
    "MediaError",
    "MediaOptions",
    "MediaPlan",
    "MediaProcConfig",
    "MediaTypeError",
    "PackedPatches",
    "PatchBatch",
    "PlanError",
    "PrepError",
    "Preprocessor",
    "TextError",
    "TransparentBgConfig",
    "VideoChunkPlan",
    "cached_bytes",
    "clear_cache",
    "composite",
    "export_preprocess",
    "normalize",
    "normalize_lut",
    "pack_stream",
    "patchify",
    "plan_chunk",
    "plan_image",
    "plan_video",
    "prefetch",
    "preprocess",
    "preprocess_frames",
    "resize_bicubic",
    "split_video_chunks",
    "unpatchify",
    "visualize",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
