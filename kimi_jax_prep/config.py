"""`MediaProcConfig`: the checkpoint's `media_proc_cfg`, checked once, frozen and hashable.

Fields are named as the JSON keys. Two dialects of `preprocessor_config.json` are read: the checkpoint's
(keys nested under `media_proc_cfg`, or flat) and that of transformers' own port (`max_patches`, `size`,
`merge_size`, `temporal_patch_size`, `fps`). The checkpoint's, nested, is written.
"""

import dataclasses
import json
import math
import operator
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kimi_jax_prep.checks import one_of, positive_int
from kimi_jax_prep.errors import ConfigError

CONFIG_FILES = ("preprocessor_config.json", "processor_config.json")
PATTERNS = ("white", "black", "gray", "chessboard")
FILL_STAGES = ("before_resize", "after_resize")
TIMESTAMP_MODES = ("hh:mm:ss.fff", "mm:ss.fff", "mm:ss")

# transformers' key -> the checkpoint's. `size` is handled apart: it is a dict of two sides in patches.
_TRANSFORMERS_KEYS = {
    "max_patches": "in_patch_limit",
    "merge_size": "merge_kernel_size",
    "temporal_patch_size": "temporal_merge_kernel_size",
    "fps": "sample_fps",
}
# What transformers' port lets a file switch off or change, and the only value under which the checkpoint's
# pixels come out. Resampling 3 is bicubic.
_TRANSFORMERS_FIXED: dict[str, tuple[object, ...]] = {
    "do_resize": (True, None),
    "do_rescale": (True, None),
    "do_normalize": (True, None),
    "do_convert_rgb": (True, None),
    "resample": (3, None),
    "rescale_factor": (1 / 255, None),
}
# The budget of one video frame lives in transformers' separate video processor, whose default this is.
_TRANSFORMERS_FRAME_LIMIT = 4096


def _positive_int(key: str, value: object) -> int:
    return positive_int(key, value, error=ConfigError)


def _optional_positive_int(key: str, value: object) -> int | None:
    return None if value is None else _positive_int(key, value)


def _finite_float(key: str, value: object) -> float:
    if not isinstance(value, bool | str | bytes) and hasattr(value, "__float__"):
        try:
            number = float(value)  # type: ignore[arg-type]  # has __float__
        except (TypeError, ValueError, OverflowError):  # arrays; whole numbers beyond float64
            number = math.nan
        if math.isfinite(number):
            return number
    raise ConfigError(f"`{key}` is {value!r}; expected a finite number.")


def _positive_float(key: str, value: object) -> float:
    number = _finite_float(key, value)
    if number <= 0:
        raise ConfigError(f"`{key}` is {value!r}; expected a number above 0.")
    return number


def _three(key: str, value: object, each: Callable[[str, object], float] = _finite_float) -> tuple[float, float, float]:
    if isinstance(value, str | bytes) or not hasattr(value, "__len__") or len(value) != 3:  # type: ignore[arg-type]  # has __len__
        raise ConfigError(f"`{key}` is {value!r}; expected three numbers, one for each of R, G and B.")
    red, green, blue = (each(f"{key}[{i}]", v) for i, v in enumerate(value))  # type: ignore[arg-type]  # a sequence
    return red, green, blue


def _three_positive(key: str, value: object) -> tuple[float, float, float]:
    return _three(key, value, _positive_float)


def _merge_side(key: str, value: object) -> int:
    if isinstance(value, list | tuple):
        sides = [_positive_int(key, v) for v in value]
        if len(sides) != 2 or sides[0] != sides[1]:
            raise ConfigError(
                f"`{key}` is {value!r}; expected one whole number or two equal ones "
                "(tokens are square: 2, [2, 2] or (2, 2))."
            )
        return sides[0]
    return _positive_int(key, value)


def _byte(key: str, value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= operator.index(value) <= 255:  # type: ignore[arg-type]  # has __index__
        raise ConfigError(f"`{key}` is {value!r}; expected a byte, 0 to 255.")
    return operator.index(value)  # type: ignore[arg-type]  # has __index__


def _bool(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"`{key}` is {value!r}; expected True or False.")
    return value


def _choice(key: str, value: Any, valid: tuple[str, ...], *, hint: str = "") -> str:
    one_of(key, value, valid, error=ConfigError, hint=hint)
    return value


def _pattern(key: str, value: object) -> str:
    return _choice(key, value, PATTERNS)


def _timestamp_mode(key: str, value: object) -> str:
    return _choice(key, value, TIMESTAMP_MODES)


def _fill_stage(key: str, value: object) -> str:
    return _choice(key, value, FILL_STAGES, hint=" Kimi-K3 checkpoints ship 'after_resize'.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransparentBgConfig:
    """What is painted behind transparent pixels (Kimi K3). Values are bytes, the square's side is in pixels.

    The defaults are those of the checkpoint for keys that a file leaves out; the K3 file itself says
    "chessboard", 8, 255, 180, True.
    """

    pattern: str = "black"
    chessboard_square_size: int = 16
    chessboard_white_value: int = 255
    chessboard_gray_value: int = 200
    chessboard_square_on_top_left: bool = True
    unknown_json: str = "{}"

    def __post_init__(self) -> None:
        for name, read in _BACKGROUND_READERS.items():
            object.__setattr__(self, name, read(f"transparent_bg_config.{name}", getattr(self, name)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TransparentBgConfig":
        """Read the JSON object; keys that this library does not know are kept for `to_dict`."""
        known, unknown = _split(values, cls)
        read = {k: _BACKGROUND_READERS[k](f"transparent_bg_config.{k}", v) for k, v in known.items()}
        return cls(**read, unknown_json=_freeze(unknown))

    def to_dict(self) -> dict[str, Any]:
        """The JSON object, plain types, unknown keys included."""
        return _plain_fields(self) | json.loads(self.unknown_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaProcConfig:
    """The `media_proc_cfg` of a Kimi checkpoint. Patches are `patch_size` squared pixels.

    Only the two limits differ between checkpoints in a way that changes every picture, so they have no
    default; every other key has the value that all released K2.5 checkpoints ship. Use
    `dataclasses.replace` to change a field: the result is checked again.

    Raises:
      ConfigError: a value is out of range or of the wrong type.
    """

    in_patch_limit: int
    """Soft budget of patches for one image, applied before padding."""
    patch_limit_on_one_side: int
    """Most patches along one side."""
    patch_size: int = 14
    merge_kernel_size: int = 2
    """Side of a token in patches; `[2, 2]` is read as 2."""
    fixed_output_tokens: int | None = None
    """Replaces the reported token count only; pixels ignore it."""
    in_patch_limit_each_frame: int | None = None
    """Budget of one video frame; None means `in_patch_limit`."""
    in_patch_limit_video: int | None = None
    """If set, a frame's budget is at most this divided by the frames of its chunk."""
    max_num_frames_each_video: int | None = None
    """If set, the most frames sampled from one video."""
    sample_fps: float = 2.0
    temporal_merge_kernel_size: int = 4
    """Most frames in one video chunk."""
    timestamp_mode: str = "hh:mm:ss.fff"
    image_mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    image_std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    transparent_bg_config: TransparentBgConfig | None = None
    transparent_bg_fill_stage: str = "before_resize"
    unknown_json: str = "{}"
    """Keys found beside the known ones inside `media_proc_cfg`, as JSON text, for the round trip."""
    unknown_outer_json: str = "{}"
    """Keys found beside `media_proc_cfg` itself (`auto_map`, ...), as JSON text, for the round trip."""

    def __post_init__(self) -> None:
        for name, read in _READERS.items():
            object.__setattr__(self, name, read(name, getattr(self, name)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "MediaProcConfig":
        """Read the contents of a `preprocessor_config.json`, in either dialect.

        Raises:
          ConfigError: a limit is missing, two keys contradict each other, or a value is impossible.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"a config is a JSON object; got {type(values).__name__}.")
        outer = dict(values)
        nested = outer.pop("media_proc_cfg", None)
        if nested is None:
            inner, outer = _split(from_transformers(outer), cls)
            unknown: dict[str, Any] = {}
        else:
            if not isinstance(nested, Mapping):
                raise ConfigError(f"`media_proc_cfg` is {nested!r}; expected a JSON object.")
            inner, unknown = _split(from_transformers(nested), cls)
            # A flat copy of a nested key may only repeat it; two different values cannot both be meant.
            flat, outer = _split(from_transformers(outer), cls)
            for key, value in flat.items():
                if key in inner and not _same_json(inner[key], value):
                    raise ConfigError(
                        f"`{key}` is {inner[key]!r} in `media_proc_cfg` but {value!r} beside it; keep one of the two."
                    )
                inner.setdefault(key, value)
        for key, transformers_key in (
            ("in_patch_limit", "max_patches"),
            ("patch_limit_on_one_side", "size.max_height"),
        ):
            if inner.get(key) is None:
                raise ConfigError(
                    f"`{key}` is missing (in transformers' dialect: `{transformers_key}`); found "
                    f"{', '.join(map(repr, sorted(inner))) or 'no known key'}. It differs between checkpoints and has "
                    "no default: take it from the checkpoint's preprocessor_config.json or use a preset such as "
                    "KIMI_K25 or KIMI_K3."
                )
        read = {k: _READERS[k](k, v) for k, v in inner.items()}
        return cls(**read, unknown_json=_freeze(unknown), unknown_outer_json=_freeze(outer))

    @classmethod
    def from_json_file(cls, path: str | os.PathLike[str]) -> "MediaProcConfig":
        """Read `preprocessor_config.json`, or `processor_config.json` with an `image_processor` key.

        Args:
          path: the file, or a folder that holds one of the two.

        Raises:
          FileNotFoundError: there is no such file, or the folder holds neither.
          ConfigError: the file is not JSON, or not a config; the message names the file.
        """
        file, values = read_config_file(path)
        try:
            return cls.from_dict(values)
        except ConfigError as err:
            raise ConfigError(f"{file}: {err}") from err

    def to_dict(self) -> dict[str, Any]:
        """The checkpoint's dialect, nested, plain JSON types, every unknown key in its place."""
        inner = _plain_fields(self)
        if self.transparent_bg_config is None:
            # K2.5 files have neither key. A stage other than the default still has a meaning of its own.
            del inner["transparent_bg_config"]
            if self.transparent_bg_fill_stage == "before_resize":
                del inner["transparent_bg_fill_stage"]
        else:
            inner["transparent_bg_config"] = self.transparent_bg_config.to_dict()
        inner |= json.loads(self.unknown_json)
        return json.loads(self.unknown_outer_json) | {"media_proc_cfg": inner}


def _background(key: str, value: object) -> TransparentBgConfig | None:
    if value is None or isinstance(value, TransparentBgConfig):
        return value
    if isinstance(value, Mapping):
        return TransparentBgConfig.from_dict(value)
    raise ConfigError(f"`{key}` is {value!r}; expected a JSON object or null.")


# What turns the JSON value of each key into the field's, or raises.
_BACKGROUND_READERS: dict[str, Callable[[str, object], Any]] = {
    "pattern": _pattern,
    "chessboard_square_size": _positive_int,
    "chessboard_white_value": _byte,
    "chessboard_gray_value": _byte,
    "chessboard_square_on_top_left": _bool,
}
_READERS: dict[str, Callable[[str, object], Any]] = {
    "in_patch_limit": _positive_int,
    "patch_limit_on_one_side": _positive_int,
    "patch_size": _positive_int,
    "merge_kernel_size": _merge_side,
    "fixed_output_tokens": _optional_positive_int,
    "in_patch_limit_each_frame": _optional_positive_int,
    "in_patch_limit_video": _optional_positive_int,
    "max_num_frames_each_video": _optional_positive_int,
    "sample_fps": _positive_float,
    "temporal_merge_kernel_size": _positive_int,
    "timestamp_mode": _timestamp_mode,
    "image_mean": _three,
    "image_std": _three_positive,
    "transparent_bg_config": _background,
    "transparent_bg_fill_stage": _fill_stage,
}


def _split(values: Mapping[str, Any], cls: type) -> tuple[dict[str, Any], dict[str, Any]]:
    fields = {f.name for f in dataclasses.fields(cls)} - {"unknown_json", "unknown_outer_json"}
    known = {k: v for k, v in values.items() if k in fields}
    return known, {k: v for k, v in values.items() if k not in fields}


def _plain_fields(config: Any) -> dict[str, Any]:
    names = [f.name for f in dataclasses.fields(config) if not f.name.startswith("unknown_")]
    values = {name: getattr(config, name) for name in names}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def _freeze(values: Mapping[str, Any]) -> str:
    try:
        return json.dumps(values, sort_keys=True)
    except (TypeError, ValueError) as err:
        raise ConfigError(f"unknown keys must hold JSON values to survive a round trip: {err}") from err


def _same_json(a: object, b: object) -> bool:
    def plain(value: object) -> object:
        return [plain(v) for v in value] if isinstance(value, list | tuple) else value

    # 1 == True in Python, but not in JSON.
    return isinstance(a, bool) == isinstance(b, bool) and plain(a) == plain(b)


def from_transformers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the keys of transformers' port; whatever the checkpoint's dialect says must agree."""
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
                f"`{key}` is {out[key]!r}; only {allowed[0]!r} gives the checkpoint's pixels, all that is made here."
            )
    for ours, (theirs, value) in translated.items():
        if ours in out and not _same_json(out[ours], value):
            raise ConfigError(f"`{ours}` is {out[ours]!r} but `{theirs}` is {value!r}; keep one of the two.")
        out[ours] = value
    if "in_patch_limit" in translated:
        out.setdefault("in_patch_limit_each_frame", _TRANSFORMERS_FRAME_LIMIT)
    return out


KIMI_K25 = MediaProcConfig(in_patch_limit=16384, patch_limit_on_one_side=512, in_patch_limit_each_frame=4096)
KIMI_K26 = KIMI_K25
KIMI_K27 = KIMI_K25
KIMI_K3 = MediaProcConfig(
    in_patch_limit=65536,
    patch_limit_on_one_side=512,
    in_patch_limit_each_frame=16384,
    sample_fps=8.0,
    transparent_bg_config=TransparentBgConfig(
        pattern="chessboard",
        chessboard_square_size=8,
        chessboard_white_value=255,
        chessboard_gray_value=180,
        chessboard_square_on_top_left=True,
    ),
    transparent_bg_fill_stage="after_resize",
)
PRESETS = {"k2.5": KIMI_K25, "k2.6": KIMI_K26, "k2.7": KIMI_K27, "k3": KIMI_K3}


def as_config(value: object) -> MediaProcConfig:
    """A config from any of the forms in which callers hold one.

    Args:
      value: a `MediaProcConfig`; the contents of a `preprocessor_config.json` or `processor_config.json` in either
        dialect; or the name of a preset: "k2.5", "k2.6", "k2.7" or "k3", in any case.

    Raises:
      ConfigError: an unknown name, or a mapping that is not a config.
      TypeError: a value of another type.
    """
    if isinstance(value, MediaProcConfig):
        return value
    if isinstance(value, str):
        if value.lower() not in PRESETS:
            raise ConfigError(
                f"`config` is {value!r}; expected one of {', '.join(map(repr, PRESETS))}. Read a file or a folder with "
                "MediaProcConfig.from_json_file."
            )
        return PRESETS[value.lower()]
    if isinstance(value, Mapping):
        return MediaProcConfig.from_dict(_image_part(value))
    raise TypeError(
        f"`config` is a MediaProcConfig such as KIMI_K25, a mapping read from a checkpoint's "
        f"preprocessor_config.json, or one of {', '.join(map(repr, PRESETS))}; got {type(value).__name__}."
    )


def with_keys(config: MediaProcConfig, changes: Mapping[str, Any]) -> MediaProcConfig:
    """The config with other values of some keys, in any form that a file may have them.

    Raises:
      ConfigError: a value is impossible.
    """
    return dataclasses.replace(config, **{key: _READERS[key](key, value) for key, value in changes.items()})


def read_config_file(path: str | os.PathLike[str]) -> tuple[Path, dict[str, Any]]:
    """The file of a checkpoint that describes images, and the part of its contents that does.

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
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as err:
        raise ConfigError(f"{file} is not JSON: {err}") from err
    if not isinstance(values, dict):
        raise ConfigError(f"{file} holds a {type(values).__name__}; expected a JSON object.")
    part = _image_part(values)
    if part is values and file.name == "processor_config.json":
        raise ConfigError(
            f"{file} has no key `image_processor`; copy the checkpoint's preprocessor_config.json beside it."
        )
    return file, dict(part)


def _image_part(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part about images of a `processor_config.json`; the contents of any other file as they are."""
    part = values.get("image_processor")
    return part if isinstance(part, Mapping) else values
