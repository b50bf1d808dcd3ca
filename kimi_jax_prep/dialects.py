"""The files of a checkpoint that hold a `media_proc_cfg`, and the keys of transformers' dialect.

May import: the standard library and this package's `errors` and `checks`.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kimi_jax_prep.checks import shown
from kimi_jax_prep.errors import ConfigError

CONFIG_FILES = ("preprocessor_config.json", "processor_config.json")

# transformers' key -> the checkpoint's key. `size`, a dict of two sides in patches, is handled separately.
_TRANSFORMERS_KEYS = {
    "max_patches": "in_patch_limit",
    "merge_size": "merge_kernel_size",
    "temporal_patch_size": "temporal_merge_kernel_size",
    "fps": "sample_fps",
}
# Keys that transformers' port can change, with the values that give the checkpoint's pixels. Resampling 3 is bicubic.
_TRANSFORMERS_FIXED: dict[str, tuple[object, ...]] = {
    "do_resize": (True, None),
    "do_rescale": (True, None),
    "do_normalize": (True, None),
    "do_convert_rgb": (True, None),
    "resample": (3, None),
    "rescale_factor": (1 / 255, None),
}
# Default frame budget of transformers' video processor, which is a separate class with a config of its own.
_TRANSFORMERS_FRAME_LIMIT = 4096


def same_json(a: object, b: object) -> bool:
    """Return whether two values are equal in JSON, where lists and tuples are the same and 1 is not true."""

    def plain(value: object) -> object:
        return [plain(v) for v in value] if isinstance(value, list | tuple) else value

    # 1 == True in Python, but not in JSON.
    return isinstance(a, bool) == isinstance(b, bool) and plain(a) == plain(b)


def from_transformers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the keys of transformers' port. Where both dialects have a key, their values must agree."""
    translated: dict[str, Any] = {}
    out = dict(values)
    for theirs, ours in _TRANSFORMERS_KEYS.items():
        if theirs in out:
            translated[ours] = (theirs, out.pop(theirs))
    size = out.get("size")
    if isinstance(size, Mapping) and {"max_height", "max_width"} & size.keys():
        del out["size"]
        height, width = size.get("max_height"), size.get("max_width")
        if height != width:
            raise ConfigError(f"`size` is {dict(size)!r}; max_height and max_width (in patches) must be equal.")
        translated["patch_limit_on_one_side"] = ("size.max_height", height)
    if not translated:
        return out
    for key, allowed in _TRANSFORMERS_FIXED.items():
        if key in out and out[key] not in allowed:
            raise ConfigError(
                f"`{key}` is {shown(out[key])}; only {allowed[0]!r} gives the checkpoint's pixels. Remove the key."
            )
    for ours, (theirs, value) in translated.items():
        if ours in out and not same_json(out[ours], value):
            raise ConfigError(f"`{ours}` is {shown(out[ours])} but `{theirs}` is {shown(value)}; keep one of the two.")
        out[ours] = value
    if "in_patch_limit" in translated:
        out.setdefault("in_patch_limit_each_frame", _TRANSFORMERS_FRAME_LIMIT)
    return out


def read_config_file(path: str | os.PathLike[str]) -> tuple[Path, dict[str, Any]]:
    """Read the config file of a checkpoint; return its path and the part of its contents about images.

    Args:
      path: the file, or a folder that holds `preprocessor_config.json`, or `processor_config.json` with an
        `image_processor` key. If both are there, the former is read.

    Raises:
      FileNotFoundError: there is no such file, or the folder holds neither.
      ConfigError: the file is not JSON or has no such part; the message names the file.
    """
    file = Path(path)
    if file.is_dir():
        found = [file / name for name in CONFIG_FILES if (file / name).is_file()]
        if not found:
            raise FileNotFoundError(
                f"{file} holds none of {', '.join(CONFIG_FILES)}: copy the checkpoint's preprocessor_config.json "
                "there, or use a preset such as KIMI_K25 or KIMI_K3."
            )
        file = found[0]
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as err:  # also bytes that are not UTF-8, numbers of 5,000 digits
        raise ConfigError(f"{file} is not JSON: {err}") from err
    if not isinstance(values, dict):
        raise ConfigError(f"{file} holds a {type(values).__name__}; expected a JSON object.")
    part = image_part(values)
    if part is values and file.name == "processor_config.json":
        raise ConfigError(
            f"{file} has no key `image_processor`; copy the checkpoint's preprocessor_config.json beside it."
        )
    return file, dict(part)


def image_part(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `image_processor` of a `processor_config.json`, or the values themselves."""
    part = values.get("image_processor")
    return part if isinstance(part, Mapping) else values
