"""The processors for transformers. Importing this module imports transformers.

Once this module is imported, `AutoImageProcessor` and `AutoProcessor` load folders that we saved. Nothing
else in transformers changes until `register` is called.
"""

import functools
from collections.abc import Mapping
from typing import Any

from transformers import AutoImageProcessor, AutoProcessor, PreTrainedConfig
from transformers.image_processing_base import ImageProcessingMixin

from kimi_jax_prep.processor.auto import auto_processor
from kimi_jax_prep.processor.image import KimiImageProcessor
from kimi_jax_prep.processor.text import KimiInputs, KimiProcessor

__all__ = ["KimiImageProcessor", "KimiInputs", "KimiProcessor", "register"]

BACKEND = "jax"
# What says that a folder's pictures are cut as Kimi's: checkpoints name no type, and nest `media_proc_cfg`.
_TYPES = ("KimiImageProcessor", "Kimi_K25ImageProcessor")
_MODEL_TYPES = ("kimi_k25", "kimi_k3")
_KEYS = ({"media_proc_cfg"}, {"in_patch_limit", "patch_limit_on_one_side"})


class _OurConfig(PreTrainedConfig):
    """Of no model. transformers finds classes by name only among those of registered configs."""

    model_type = "kimi_jax_prep"


class _Classes(dict[str, type]):
    """Classes by backend. transformers 5.24, looking for a class among those registered, asks each for its name."""

    __name__ = ""


def register() -> None:
    """Make `AutoImageProcessor.from_pretrained(folder, backend="jax")` give `KimiImageProcessor` for Kimi's folders.

    `AutoProcessor.from_pretrained(folder)` then gives `KimiProcessor` for them. Also with `trust_remote_code=True`,
    which then runs no remote code but the tokenizer's. Other backends and other models' folders are read as before. May
    be called again.
    """
    original = AutoImageProcessor.from_pretrained.__func__
    if getattr(original, "_of_kimi_jax_prep", False):
        return

    @functools.wraps(original)
    def from_pretrained(cls: type, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("backend") == BACKEND:
            rest = {k: v for k, v in kwargs.items() if k not in ("backend", "config", "use_fast", "trust_remote_code")}
            values, _ = ImageProcessingMixin.get_image_processor_dict(pretrained_model_name_or_path, **rest)
            if (
                _is_kimis(values)
                or _model_type(kwargs.get("config"), pretrained_model_name_or_path, rest) in _MODEL_TYPES
            ):
                return KimiImageProcessor.from_pretrained(pretrained_model_name_or_path, *args, **rest)
        return original(cls, pretrained_model_name_or_path, *args, **kwargs)

    from_pretrained._of_kimi_jax_prep = True  # type: ignore[attr-defined]  # a mark of ours
    AutoImageProcessor.from_pretrained = classmethod(from_pretrained)  # type: ignore[assignment]  # that is the point
    processor = auto_processor(AutoProcessor.from_pretrained.__func__, _is_kimis_folder)
    AutoProcessor.from_pretrained = classmethod(processor)  # type: ignore[assignment]  # the same


def _is_kimis_folder(name: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a folder is Kimi's, by what it says about images, or by its model."""
    config = kwargs.get("config")
    hub = {key: value for key, value in kwargs.items() if key not in ("backend", "config", "use_fast")}
    try:
        values, _ = ImageProcessingMixin.get_image_processor_dict(name, **hub)
    except OSError:  # a folder without image processor
        return False
    return _is_kimis(values) or _model_type(config, name, hub) in _MODEL_TYPES


# Under every backend, since any may be the one that transformers prefers when none is asked for.
def _is_kimis(values: Mapping[str, Any]) -> bool:
    return str(values.get("image_processor_type")).startswith(_TYPES) or any(keys <= values.keys() for keys in _KEYS)


def _model_type(config: Any, name: Any, hub: Mapping[str, Any]) -> str | None:
    """Of the model that a folder holds, by its config.json, if there is one."""
    if config is not None:
        return getattr(config, "model_type", None)
    try:
        return PreTrainedConfig.get_config_dict(name, **hub)[0].get("model_type")
    except OSError:
        return None


AutoImageProcessor.register(
    _OurConfig,
    image_processor_classes=_Classes.fromkeys((BACKEND, "torchvision", "pil"), KimiImageProcessor),
    exist_ok=True,
)
AutoProcessor.register(_OurConfig, KimiProcessor, exist_ok=True)
