"""The settings of `KimiImageProcessor`: attributes that are checked when they are set and hold from the next call on.

Beside the config there are `dtype`, `names` and the media options. Every key of the config is an attribute, by the
checkpoint's name and by transformers'. Values are immutable: what is changed in place would be ignored.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from transformers.image_processing_utils import BaseImageProcessor

from kimi_jax_prep.config import KIMI_K25, MediaProcConfig, as_config, with_keys
from kimi_jax_prep.errors import ConfigError
from kimi_jax_prep.media.options import OPTIONS, MediaOptions
from kimi_jax_prep.processor.keywords import (
    ALIASES,
    CONFIG_KEYS,
    FIXED,
    OURS,
    KimiImageProcessorKwargs,
    check_fixed,
    nearest_setting,
    refuse_misspelt,
    sizes_of,
    without_fixed,
)
from kimi_jax_prep.tables.lut import dtype_name

NAMES = ("checkpoint", "transformers")
WRITTEN_BY_TRANSFORMERS = ("image_processor_type", "processor_class", "feature_extractor_type")


class ReadOnlyDict(dict[str, Any]):
    """A dict that refuses changes: it is a copy, so that they would be lost."""

    def __init__(self, values: Mapping[str, Any], remedy: str) -> None:
        super().__init__(values)
        self._remedy = remedy

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"this dict is a copy of the settings and cannot be changed; {self._remedy}")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = _refuse
    setdefault: Any = _refuse
    update: Any = _refuse

    def __reduce__(self) -> tuple[Any, ...]:  # a copy is the caller's own, a plain dict
        return dict, (dict(self),)

    def copy(self) -> dict[str, Any]:
        return dict(self)


class ConfigKey:
    """An attribute that is a key of the config."""

    def __init__(self, key: str) -> None:
        self._key = key
        self.__doc__ = f"`{key}` of the config."

    def __get__(self, processor: Any, owner: type | None = None) -> Any:
        return self if processor is None else getattr(processor.config, self._key)

    def __set__(self, processor: Any, value: Any) -> None:
        processor.config = with_keys(processor.config, {self._key: value})


class Option:
    """An attribute that is one of the `MediaOptions`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.__doc__ = f"`{name}` of `MediaOptions`."

    def __get__(self, processor: Any, owner: type | None = None) -> Any:
        return self if processor is None else getattr(processor.options, self._name)

    def __set__(self, processor: Any, value: Any) -> None:
        processor.options = processor.options.replace(**{self._name: value})


class Fixed:
    """An attribute of transformers' processors that has one value here, on the class too."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, processor: Any, owner: type | None = None) -> Any:
        return FIXED[self._name][0]

    def __set__(self, processor: Any, value: Any) -> None:
        check_fixed(self._name, value, error=ConfigError)


class ProcessorSettings(BaseImageProcessor):
    """Construction, attributes and pickling of `KimiImageProcessor`."""

    valid_kwargs = KimiImageProcessorKwargs

    config: MediaProcConfig
    """Sizes, colour rules, mean and std."""
    dtype: str
    """Name of the dtype of `pixel_values`."""
    names: str
    """Dialect of the outputs and of saved files: "checkpoint" or "transformers"."""
    options: MediaOptions
    """How media are opened."""

    def __init__(
        self,
        media_proc_cfg: Mapping[str, Any] | MediaProcConfig | str | None = None,
        *,
        config: Mapping[str, Any] | MediaProcConfig | str | None = None,
        dtype: Any = None,
        names: str = "checkpoint",
        do_rescale: bool | None = None,
        do_normalize: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if media_proc_cfg is not None and config is not None:
            raise TypeError("`media_proc_cfg` and `config` are two names of one argument; give one of them.")
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        keys = without_fixed(kwargs, error=ConfigError)
        for name in WRITTEN_BY_TRANSFORMERS:
            keys.pop(name, None)
        refuse_misspelt(keys)
        self.config = config_of(media_proc_cfg if config is None else config, keys)
        self.dtype = dtype_of(dtype, do_rescale, do_normalize)
        self.names = names
        self.options = MediaOptions(**options)

    @property
    def size(self) -> dict[str, int]:
        """`patch_limit_on_one_side` in transformers' form, in patches; read-only."""
        side = self.config.patch_limit_on_one_side
        return ReadOnlyDict({"max_height": side, "max_width": side}, "assign a whole dict to `size`.")

    @size.setter
    def size(self, value: Any) -> None:
        self.config = with_keys(self.config, sizes_of({"size": value}))

    @property
    def media_proc_cfg(self) -> dict[str, Any]:
        """The config as the checkpoint's dict; read-only."""
        values = self.config.to_dict()["media_proc_cfg"]
        remedy = "assign to the processor's attribute of that name, such as `processor.in_patch_limit = 4096`."
        if isinstance(values.get("transparent_bg_config"), dict):
            values["transparent_bg_config"] = ReadOnlyDict(values["transparent_bg_config"], remedy)
        return ReadOnlyDict(values, remedy)

    @media_proc_cfg.setter
    def media_proc_cfg(self, value: Any) -> None:
        self.config = value

    @property
    def do_rescale(self) -> bool:
        """Whether values are normalized: one table rescales and normalizes. False for `dtype="uint8"`."""
        return self.dtype != "uint8"

    @do_rescale.setter
    def do_rescale(self, value: bool | None) -> None:
        self._check_normalizing("do_rescale", value)

    @property
    def do_normalize(self) -> bool:
        """The same as `do_rescale`."""
        return self.dtype != "uint8"

    @do_normalize.setter
    def do_normalize(self, value: bool | None) -> None:
        self._check_normalizing("do_normalize", value)

    @property
    def model_input_names(self) -> list[str]:
        """Keys of the outputs."""
        return self.input_names()

    def input_names(self, names: str | None = None) -> list[str]:
        """Keys of the outputs in a dialect, by default the processor's own."""
        if (names or self.names) == "checkpoint":
            return ["pixel_values", "grid_thws"]
        return ["pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw", "num_chunks_per_video"]

    def own_attributes(self) -> dict[str, Any]:
        """Public attributes that a subclass or a caller has added."""
        return {k: v for k, v in vars(self).items() if k not in _STATE and not k.startswith("_")}

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _STATE:
            value = _STATE[name](value)
        elif not name.startswith("_") and not hasattr(type(self), name):
            near = nearest_setting(name)
            if near is not None:
                raise AttributeError(f"{type(self).__name__} has no setting {name!r}; did you mean {near!r}?")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        # Unknown keys of a file are attributes, as in transformers' processors.
        if not name.startswith("_") and "config" in vars(self):
            unknown = json.loads(self.config.unknown_outer_json)
            if name in unknown:
                return unknown[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        # Pickle writes a shared object otherwise than two equal ones. As one text, equal configs give equal bytes
        # whoever made them, and so equal hashes in `datasets`.
        return vars(self) | {"config": json.dumps(self.config.to_dict(), sort_keys=True)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update({**state, "config": MediaProcConfig.from_dict(json.loads(state["config"]))})

    def _check_normalizing(self, name: str, value: bool | None) -> None:
        if value is not None and value is not self.do_rescale:
            raise ConfigError(
                f"`{name}` is {value!r}, but one table rescales and normalizes: set `dtype` to 'uint8' for bytes, or "
                "to another dtype for normalized values."
            )


# Every key of the config, its other names, every option, and every fixed step is an attribute.
for _name in CONFIG_KEYS:
    setattr(ProcessorSettings, _name, ConfigKey(_name))
for _name, _key in ALIASES.items():
    setattr(ProcessorSettings, _name, ConfigKey(_key))
for _name in OPTIONS:
    setattr(ProcessorSettings, _name, Option(_name))
for _name in FIXED:
    setattr(ProcessorSettings, _name, Fixed(_name))


def config_of(given: Any, keys: Mapping[str, Any]) -> MediaProcConfig:
    """The config that arguments of a processor mean: one that is given, keys of one, or both. K2.5's by default.

    Raises:
      ConfigError: they are incomplete, contradict each other, or hold an impossible value.
    """
    if given is None:
        return MediaProcConfig.from_dict(keys) if keys else KIMI_K25
    if isinstance(given, Mapping) and not {"media_proc_cfg", "image_processor"} & given.keys():
        return MediaProcConfig.from_dict({**keys, "media_proc_cfg": given})
    config = as_config(given)
    return MediaProcConfig.from_dict({**config.to_dict(), **keys}) if keys else config


def dtype_of(dtype: Any, do_rescale: bool | None, do_normalize: bool | None) -> str:
    """The dtype that arguments of a processor mean: both flags False stand for bytes.

    Raises:
      PlanError: an unknown dtype.
      ConfigError: the flags differ from each other or from the dtype.
    """
    flags = {flag for flag in (do_rescale, do_normalize) if flag is not None}
    name = "uint8" if dtype is None and flags == {False} else dtype_name("float32" if dtype is None else dtype)
    if flags and (flags != {name != "uint8"} or (False in flags and None in (do_rescale, do_normalize))):
        raise ConfigError(
            f"`do_rescale` is {do_rescale!r} and `do_normalize` is {do_normalize!r} with `dtype` {name!r}: one table "
            "does both, so both are True, or both are False for dtype 'uint8'."
        )
    return name


def parameters_of(cls: type) -> set[str]:
    """Named parameters that a subclass has added to the constructor."""
    named = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    own = {name for name, p in inspect.signature(cls.__init__).parameters.items() if p.kind in named}
    return own - set(inspect.signature(ProcessorSettings.__init__).parameters) - {*CONFIG_KEYS, *OURS}


def _names(value: Any) -> str:
    if not isinstance(value, str) or value not in NAMES:
        raise ConfigError(f"`names` is {value!r}; expected one of {', '.join(map(repr, NAMES))}.")
    return value


def _options(value: Any) -> MediaOptions:
    if not isinstance(value, MediaOptions):
        raise TypeError(f"`options` is a MediaOptions; got {type(value).__name__}.")
    return value


# What is stored, and what checks it.
_STATE: dict[str, Callable[[Any], Any]] = {
    "config": as_config,
    "dtype": dtype_name,
    "names": _names,
    "options": _options,
}
