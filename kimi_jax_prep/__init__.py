"""Pictures and video to the patches that Kimi's vision tower eats: the checkpoint's bits, compiled by XLA.

Importing this package loads neither JAX, transformers nor torch; names below load what they need when first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from kimi_jax_prep import _fork as _fork  # its hook must be there before any fork
from kimi_jax_prep._config import KIMI_K3, KIMI_K25, KIMI_K26, KIMI_K27, MediaProcConfig, TransparentBgConfig
from kimi_jax_prep._errors import ConfigError, MediaError, MediaTypeError, PlanError, PrepError, TextError
from kimi_jax_prep._geometry import MediaPlan, VideoChunkPlan, plan_chunk, plan_image, plan_video
from kimi_jax_prep._options import MediaOptions

if TYPE_CHECKING:
    from kimi_jax_prep._batch import Failure as Failure
    from kimi_jax_prep._batch import PatchBatch as PatchBatch
    from kimi_jax_prep._composite import composite as composite
    from kimi_jax_prep._engine import Preprocessor as Preprocessor
    from kimi_jax_prep._engine import preprocess as preprocess
    from kimi_jax_prep._patchify import patchify as patchify
    from kimi_jax_prep._patchify import preprocess_frames as preprocess_frames
    from kimi_jax_prep._patchify import unpatchify as unpatchify
    from kimi_jax_prep._resize import resize_bicubic as resize_bicubic
    from kimi_jax_prep._tables import normalize_lut as normalize_lut
    from kimi_jax_prep.video import split_video_chunks as split_video_chunks

__version__ = "0.1.0"

_LAZY = {
    "Failure": "_batch",
    "PatchBatch": "_batch",
    "Preprocessor": "_engine",
    "composite": "_composite",
    "normalize_lut": "_tables",
    "patchify": "_patchify",
    "preprocess": "_engine",
    "preprocess_frames": "_patchify",
    "resize_bicubic": "_resize",
    "split_video_chunks": "video",
    "unpatchify": "_patchify",
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
    "PatchBatch",
    "PlanError",
    "PrepError",
    "Preprocessor",
    "TextError",
    "TransparentBgConfig",
    "VideoChunkPlan",
    "composite",
    "normalize_lut",
    "patchify",
    "plan_chunk",
    "plan_image",
    "plan_video",
    "preprocess",
    "preprocess_frames",
    "resize_bicubic",
    "split_video_chunks",
    "unpatchify",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
