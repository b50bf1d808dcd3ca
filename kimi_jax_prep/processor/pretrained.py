"""Reading and writing the settings of `KimiImageProcessor`: dicts, JSON files, checkpoints' folders, the hub.

A file is read in the checkpoint's or in transformers' dialect. It is written in the dialect that `names` says.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kimi_jax_prep.config import MediaProcConfig, as_config, read_config_file, with_keys
from kimi_jax_prep.errors import ConfigError, PrepError
from kimi_jax_prep.processor.keywords import ALIASES, CONFIG_KEYS, FIXED, OURS, refuse_misspelt, sizes_of, without_fixed
from kimi_jax_prep.processor.settings import WRITTEN_BY_TRANSFORMERS, ProcessorSettings, parameters_of

_FLAGS = ("do_rescale", "do_normalize")
# Steps that transformers' files name.
_WRITTEN_STEPS = ("do_resize", "do_convert_rgb", "resample", "rescale_factor")


class SavedSettings(ProcessorSettings):
    """`ProcessorSettings` that can be saved and loaded."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        """Load from a folder, a file, or a repository of the hub.

        Args:
          pretrained_model_name_or_path: a folder that holds `preprocessor_config.json` (or `processor_config.json` with
            an `image_processor` key), one of these files, or the name of a repository.
          **kwargs: as for `from_dict`, and transformers' options for the hub. A local folder uses only `subfolder` of
            the latter.

        Raises:
          FileNotFoundError: there is no such folder or file, or the folder holds neither file.
          ConfigError: the file is not a config; the message begins with the file's name.
        """
        kwargs.pop("trust_remote_code", None)  # no remote code is ever run
        path = Path(pretrained_model_name_or_path)
        if not path.exists():
            if _names_a_path(pretrained_model_name_or_path):
                raise FileNotFoundError(f"there is no folder or file {str(path)!r}.")
            return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        subfolder = kwargs.pop("subfolder", None) or ""
        file, values = read_config_file(path / subfolder if path.is_dir() else path)
        try:
            return cls.from_dict(values, **kwargs)
        except PrepError as err:
            raise ConfigError(f"{file}: {err}") from err

    @classmethod
    def from_json_file(cls, json_file: str | os.PathLike[str]) -> Any:
        """Load one file.

        Raises: as `from_pretrained`.
        """
        return cls.from_pretrained(Path(json_file))

    @classmethod
    def from_dict(cls, image_processor_dict: Mapping[str, Any], **kwargs: Any) -> Any:
        """Make a processor from the contents of `preprocessor_config.json`.

        Args:
          image_processor_dict: in the checkpoint's or in transformers' dialect.
          **kwargs: settings of the processor and keys of `media_proc_cfg`, in place of what the dict says. Others are
            left unused, as transformers does, unless they resemble one of these.

        Returns:
          A processor; with `return_unused_kwargs=True` also the dict of keywords that were not used.

        Raises:
          ConfigError: the result is not a config.
          TypeError: a misspelt keyword.
        """
        return_unused = kwargs.pop("return_unused_kwargs", False)
        values = without_fixed(image_processor_dict, error=ConfigError)
        values = {name: value for name, value in values.items() if name not in WRITTEN_BY_TRANSFORMERS}
        kwargs = without_fixed(kwargs, error=ConfigError)
        own = {*OURS, *_FLAGS, *parameters_of(cls)}
        given = {name: values.pop(name) for name in own & values.keys()}
        if {"dtype", *_FLAGS} & kwargs.keys():  # these three say one thing
            given = {name: value for name, value in given.items() if name not in ("dtype", *_FLAGS)}
        given |= {name: kwargs.pop(name) for name in own & kwargs.keys()}
        config = _changed(MediaProcConfig.from_dict(values), kwargs)
        refuse_misspelt(kwargs)
        processor = cls(config, **given)
        processor._take_own_attributes()
        return (processor, kwargs) if return_unused else processor

    def to_dict(self) -> dict[str, Any]:
        """Contents of `preprocessor_config.json`, as plain JSON types.

        Unknown keys of the file that was read stay in their places. `dtype`, `names` and media options are written
        where they differ from the defaults, and so are public attributes that a subclass or a caller has added.

        Raises:
          ConfigError: such an attribute is not a JSON value.
        """
        values = self.config.to_dict()
        if self.names == "transformers":
            values = self._as_transformers(values)
        values["image_processor_type"] = type(self).__name__
        if self.dtype != "float32":
            values["dtype"] = self.dtype
        if self.names != "checkpoint":
            values["names"] = self.names
        return values | self.options.changed() | _json_values(self.own_attributes())

    def _as_transformers(self, values: dict[str, Any]) -> dict[str, Any]:
        """The flat dialect: transformers' names where there are any, the checkpoint's for the other keys."""
        nested: dict[str, Any] = values.pop("media_proc_cfg")
        names = {key: name for name, key in ALIASES.items() if name != "num_frames_per_chunk"}
        unknown = json.loads(self.config.unknown_json)
        flat: dict[str, Any] = {names.get(key, key): value for key, value in nested.items() if key not in unknown}
        del flat["patch_limit_on_one_side"]
        flat["size"] = dict(self.size)
        if unknown:
            flat["media_proc_cfg"] = unknown
        flat |= {name: FIXED[name][0] for name in _WRITTEN_STEPS}
        return {**values, **flat, **dict.fromkeys(_FLAGS, self.do_rescale)}

    def _take_own_attributes(self) -> None:
        """Give a subclass's attributes the values that the file has for them."""
        unknown = json.loads(self.config.unknown_outer_json)
        found = {name: unknown.pop(name) for name in self.own_attributes() if name in unknown}
        if found:
            self.config = replace(self.config, unknown_outer_json=json.dumps(unknown, sort_keys=True))
        for name, value in found.items():
            setattr(self, name, value)


def _changed(config: MediaProcConfig, kwargs: dict[str, Any]) -> MediaProcConfig:
    """The config with what keywords say instead. Takes those keywords out of `kwargs`."""
    # transformers' own loaders may pass a model's config under this name, which says nothing about images.
    names = [n for n in ("media_proc_cfg", "config") if isinstance(kwargs.get(n), MediaProcConfig | Mapping | str)]
    if len(names) > 1:
        raise TypeError("`media_proc_cfg` and `config` are two names of one argument; give one of them.")
    for name in names:
        config = _same_model(config, kwargs.pop(name))
    if kwargs.get("media_proc_cfg", config) is None:
        del kwargs["media_proc_cfg"]
    elif "media_proc_cfg" in kwargs:
        as_config(kwargs["media_proc_cfg"])  # of another type: an error
    sizes = {name: kwargs.pop(name) for name in ("max_patches", "size") if name in kwargs}
    changes = sizes_of(sizes) if sizes else {}
    changes |= {ALIASES[name]: kwargs.pop(name) for name in tuple(kwargs) if name in ALIASES}
    changes |= {name: kwargs.pop(name) for name in CONFIG_KEYS if name in kwargs}
    return with_keys(config, changes)


def _same_model(config: MediaProcConfig, given: Any) -> MediaProcConfig:
    """The config that was given, if it is for the model that a folder's own config is for.

    Raises:
      ConfigError: only one of the two paints a background behind transparent pixels.
    """
    given = as_config(given)
    if (config.transparent_bg_config is None) != (given.transparent_bg_config is None):
        this, other = ("K2.5", "K3") if config.transparent_bg_config is None else ("K3", "K2.5")
        raise ConfigError(
            f"this is a folder of {this} (by `transparent_bg_config`) but `media_proc_cfg` is {other}'s, which treats "
            "transparent pixels differently; leave `media_proc_cfg` out, or load the other folder."
        )
    return given


def _names_a_path(name: str | os.PathLike[str]) -> bool:
    """Whether it can only be meant as a path: the hub's names are `owner/repository`, or one word."""
    if not isinstance(name, str):
        return True
    return name.startswith((".", "/", "~")) or name.endswith(("/", ".json")) or name.count("/") > 1


def _json_values(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as JSON has them.

    Raises:
      ConfigError: one cannot be written.
    """
    written = {}
    for name, value in attributes.items():
        try:
            written[name] = json.loads(json.dumps(value))
        except (TypeError, ValueError) as err:
            raise ConfigError(
                f"the attribute `{name}` is a {type(value).__name__}, which JSON cannot hold ({err}); begin its name "
                "with an underscore to leave it out of saved files."
            ) from err
    return written
