"""Draws what the model sees: pictures with the patch grid, summaries for notebooks, and a page to explore.

May import: NumPy, PIL and this package's `errors`, `checks`, `config` and `plan`. A batch is used through its fields.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kimi_jax_prep.view.page import write_page as write_page
    from kimi_jax_prep.view.picture import visualize as visualize

_LAZY = {"visualize": "picture", "write_page": "page"}
__all__ = ["visualize", "write_page"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
