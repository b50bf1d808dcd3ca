"""The classes for transformers: `KimiImageProcessor`, `KimiProcessor`, and `register`.

May import: transformers and all of this package but `integrations` and `cli`. Once this package is imported,
`AutoImageProcessor` and `AutoProcessor` load folders that these classes saved. Nothing else in transformers changes
until `register` is called.
"""

from kimi_jax_prep.processor.image import KimiImageProcessor
from kimi_jax_prep.processor.register import register, unregister
from kimi_jax_prep.processor.text import KimiInputs, KimiProcessor

__all__ = ["KimiImageProcessor", "KimiInputs", "KimiProcessor", "register", "unregister"]
