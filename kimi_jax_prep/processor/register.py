"""The processors for transformers. Importing this module imports transformers.

Once this module is imported, `AutoImageProcessor` and `AutoProcessor` load folders that these classes saved. Nothing
else in transformers changes until `register` is called. What is replaced then is held by transformers' own classes, not
here.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import AutoImageProcessor, AutoProcessor, PreTrainedConfig
from transformers.image_processing_base import ImageProcessingMixin

from kimi_jax_prep.processor.auto import auto_processor
from kimi_jax_prep.processor.image import KimiImageProcessor
from kimi_jax_prep.processor.text import KimiInputs, KimiProcessor

__all__ = ["KimiImageProcessor", "KimiInputs", "KimiProcessor", "Registration", "Replaced", "register", "unregister"]

BACKEND = "jax"
_MARK = "_kimi_jax_prep"
# What says that a folder's images are preprocessed as Kimi's: checkpoints name no type, and nest `media_proc_cfg`.
_TYPES = ("KimiImageProcessor", "Kimi_K25ImageProcessor")
_MODEL_TYPES = ("kimi_k25", "kimi_k3")
_KEYS = ({"media_proc_cfg"}, {"in_patch_limit", "patch_limit_on_one_side"})


class _OurConfig(PreTrainedConfig):
    """Of no model. transformers finds classes by name only among those of registered configs."""

    model_type = "kimi_jax_prep"


class _Classes(dict[str, type]):
    """Classes by backend. transformers 5.24, looking for a class among those registered, asks each for its name."""

    __name__ = ""


@dataclass(frozen=True, slots=True)
class Replaced:
    """A method of transformers that has another meaning while Kimi's classes are registered."""

    name: str
    """With its class, such as "AutoProcessor.from_pretrained"."""
    before: str
    """Module and name of the function that was there."""


class Registration:
    """What `register` replaced. As a context manager it undoes that at the end, if this call did it."""

    def __init__(self, replaced: tuple[Replaced, ...], *, is_new: bool) -> None:
        self.replaced = replaced
        self._is_new = is_new

    def __enter__(self) -> "Registration":
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_new:
            unregister()

    def __repr__(self) -> str:
        return f"Registration(replaced={self.replaced!r})"


def register() -> Registration:
    """Have `AutoImageProcessor` and `AutoProcessor` return Kimi's classes for Kimi's folders.

    `AutoImageProcessor.from_pretrained(folder, backend="jax")` then gives a `KimiImageProcessor`, and
    `AutoProcessor.from_pretrained(folder)` a `KimiProcessor`; also with `trust_remote_code=True`, which then runs no
    remote code but the tokenizer's. Other folders, and `AutoImageProcessor` with any other backend, are read as before.
    May be called again. `unregister` undoes it, and so does the end of `with register():`.

    Returns:
      What was replaced, now or before.
    """
    is_new = False
    replaced = []
    for auto, wrap in _WRAPPERS.items():
        ours = _ours(auto)
        if ours is None:
            is_new = True
            before = vars(auto)["from_pretrained"]
            ours = wrap(before.__func__)
            # Of the function, since it says nothing about this module's state: another copy of it may be loaded.
            setattr(ours, _MARK, (ours, before))
            auto.from_pretrained = classmethod(ours)
        before = getattr(ours, _MARK)[1].__func__
        replaced.append(Replaced(f"{auto.__name__}.from_pretrained", f"{before.__module__}.{before.__qualname__}"))
    return Registration(tuple(replaced), is_new=is_new)


def unregister() -> None:
    """Undo `register`. Does nothing where that was not called.

    Raises:
      RuntimeError: someone else has replaced one of the methods since; nothing was changed.
    """
    found = {auto: ours for auto in _WRAPPERS if (ours := _ours(auto)) is not None}
    for auto, ours in found.items():
        current = auto.from_pretrained.__func__
        if current is not ours:
            raise RuntimeError(
                f"`{auto.__name__}.from_pretrained` was replaced by `{current.__module__}.{current.__qualname__}` "
                "after `register()`; undo that first."
            )
    for auto, ours in found.items():
        auto.from_pretrained = getattr(ours, _MARK)[1]


def _ours(auto: Any) -> Any:
    """Our function in the place of `from_pretrained`, or below what others have wrapped around it."""
    function = auto.from_pretrained.__func__
    while function is not None:
        # `functools.wraps` copies attributes, so a mark counts only on the function that it names.
        if getattr(function, _MARK, (None,))[0] is function:
            return function
        function = getattr(function, "__wrapped__", None)
    return None


def _image_loader(original: Callable[..., Any]) -> Callable[..., Any]:
    """`AutoImageProcessor.from_pretrained` that knows `backend="jax"` for Kimi's folders."""

    @functools.wraps(original)
    def from_pretrained(cls: type, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("backend") == BACKEND and _is_kimis_folder(pretrained_model_name_or_path, kwargs):
            rest = {k: v for k, v in kwargs.items() if k not in ("backend", "config", "use_fast", "trust_remote_code")}
            return KimiImageProcessor.from_pretrained(pretrained_model_name_or_path, *args, **rest)
        return original(cls, pretrained_model_name_or_path, *args, **kwargs)

    return from_pretrained


def _is_kimis_folder(name: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a folder is Kimi's, by what it says about images, or by its model."""
    config = kwargs.get("config")
    hub = {key: value for key, value in kwargs.items() if key not in ("backend", "config", "use_fast")}
    try:
        values, _ = ImageProcessingMixin.get_image_processor_dict(name, **hub)
    except Exception:  # whatever is wrong with it, the original says it in its own words
        return False
    return _is_kimis(values) or _model_type(config, name, hub) in _MODEL_TYPES


def _is_kimis(values: Mapping[str, Any]) -> bool:
    return str(values.get("image_processor_type")).startswith(_TYPES) or any(keys <= values.keys() for keys in _KEYS)


def _model_type(config: Any, name: Any, hub: Mapping[str, Any]) -> str | None:
    """Of the model that a folder holds, by its config.json, if there is one."""
    if config is not None:
        return getattr(config, "model_type", None)
    try:
        return PreTrainedConfig.get_config_dict(name, **hub)[0].get("model_type")
    except Exception:  # the same
        return None


_WRAPPERS: dict[Any, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    AutoImageProcessor: _image_loader,
    AutoProcessor: lambda original: auto_processor(original, _is_kimis_folder),
}

# Under every backend, since any may be the one that transformers prefers when none is asked for.
AutoImageProcessor.register(
    _OurConfig,
    image_processor_classes=_Classes.fromkeys((BACKEND, "torchvision", "pil"), KimiImageProcessor),
    exist_ok=True,
)
AutoProcessor.register(_OurConfig, KimiProcessor, exist_ok=True)
