"""Opens what callers hold (files, bytes, arrays, PIL images, video) as frames; pixels are decoded on demand.

May import: NumPy, PIL, PyAV and this package's `errors`, `config` and `plan`. No JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kimi_jax_prep.media.opening import Medium as Medium
    from kimi_jax_prep.media.opening import open_media as open_media
    from kimi_jax_prep.media.opening import split_video_chunks as split_video_chunks
    from kimi_jax_prep.media.options import MediaOptions as MediaOptions

# Loaded when first used: `import kimi_jax_prep` needs neither NumPy nor PIL.
_LAZY = {"MediaOptions": "options", "Medium": "opening", "open_media": "opening", "split_video_chunks": "opening"}
__all__ = ["MediaOptions", "Medium", "open_media", "split_video_chunks"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
