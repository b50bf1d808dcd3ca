"""A checkpoint's folder: which file of it describes images, and what that file says."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kimi_jax_prep.config import MediaProcConfig
from kimi_jax_prep.errors import ConfigError

_CONFIG_FILES = ("preprocessor_config.json", "processor_config.json")


def names_a_path(name: str | os.PathLike[str]) -> bool:
    """Whether it can only be meant as a path: the hub's names are `owner/repository`, or one word."""
    if not isinstance(name, str):
        return True
    return name.startswith((".", "/", "~")) or name.endswith(("/", ".json")) or name.count("/") > 1


def config_file(path: Path, subfolder: str) -> Path:
    """The file that a path means.

    Raises:
      FileNotFoundError: the folder holds none.
    """
    if path.is_file():
        return path
    folder = path / subfolder
    for name in _CONFIG_FILES:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(
        f"{folder} holds none of {', '.join(_CONFIG_FILES)}: copy the checkpoint's preprocessor_config.json there, or "
        "make the processor from a preset: KimiImageProcessor(media_proc_cfg=kimi_jax_prep.KIMI_K25)."
    )


def read_config(file: Path) -> dict[str, Any]:
    """The part of a config file that is about images.

    Raises:
      ConfigError: it is not JSON or holds no such part.
    """
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as err:
        raise ConfigError(f"{file} is not JSON: {err}") from err
    if isinstance(values, dict) and isinstance(values.get("image_processor"), dict):
        return values["image_processor"]
    if file.name == "processor_config.json":
        raise ConfigError(
            f"{file} has no key `image_processor`; copy the checkpoint's preprocessor_config.json beside it."
        )
    if not isinstance(values, dict):
        raise ConfigError(f"{file} holds a {type(values).__name__}; expected a JSON object.")
    return values


def same_model(config: MediaProcConfig, given: Mapping[str, Any] | MediaProcConfig) -> MediaProcConfig:
    """The config that was given, if it is for the model that a folder's own config is for.

    Raises:
      ConfigError: only one of the two paints a background behind transparent pixels.
    """
    if not isinstance(given, MediaProcConfig):
        given = MediaProcConfig.from_dict({"media_proc_cfg": given})
    if (config.transparent_bg_config is None) != (given.transparent_bg_config is None):
        this, other = ("K2.5", "K3") if config.transparent_bg_config is None else ("K3", "K2.5")
        raise ConfigError(
            f"this is a folder of {this} (by `transparent_bg_config`) but `media_proc_cfg` is {other}'s, which treats "
            "transparent pixels in another way; leave `media_proc_cfg` out, or load the other folder."
        )
    return given
