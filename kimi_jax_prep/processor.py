"""The processors for transformers. Importing this module imports transformers."""

from kimi_jax_prep._image_processor import KimiImageProcessor

__all__ = ["KimiImageProcessor"]
