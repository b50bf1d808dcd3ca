"""`MediaProcConfig`: the checkpoint's `media_proc_cfg`, validated, frozen and hashable.

Fields have the names of the JSON keys. Two dialects of `preprocessor_config.json` can be read: the checkpoint's
(keys nested under `media_proc_cfg`, or flat) and that of transformers' own port (`max_patches`, `size`,
`merge_size`, `temporal_patch_size`, `fps`). The nested checkpoint dialect is always written.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kimi_jax_prep.checks import boolean, byte, finite_float, one_of, positive_int, shown
from kimi_jax_prep.dialects import CONFIG_FILES as CONFIG_FILES
from kimi_jax_prep.dialects import from_transformers, image_part, same_json
from kimi_jax_prep.dialects import read_config_file as read_config_file
from kimi_jax_prep.errors import ConfigError

PATTERNS = ("white", "black", "gray", "chessboard")
FILL_STAGES = ("before_resize", "after_resize")
TIMESTAMP_MODES = ("hh:mm:ss.fff", "mm:ss.fff", "mm:ss")


def _positive_int(key: str, value: object) -> int:
    return positive_int(key, value, error=ConfigError)


def _optional_positive_int(key: str, value: object) -> int | None:
    return None if value is None else _positive_int(key, value)


def _finite_float(key: str, value: object) -> float:
    return finite_float(key, value, error=ConfigError)


def _positive_float(key: str, value: object) -> float:
    return finite_float(key, value, error=ConfigError, positive=True)


def _three(key: str, value: object, each: Callable[[str, object], float] = _finite_float) -> tuple[float, float, float]:
    if isinstance(value, str | bytes) or not hasattr(value, "__len__") or len(value) != 3:  # type: ignore[arg-type]  # has __len__
        raise ConfigError(f"`{key}` is {shown(value)}; expected three numbers, one for each of R, G and B.")
    red, green, blue = (each(f"{key}[{i}]", v) for i, v in enumerate(value))  # type: ignore[arg-type]  # a sequence
    return red, green, blue


def _three_positive(key: str, value: object) -> tuple[float, float, float]:
    return _three(key, value, _positive_float)


def _merge_side(key: str, value: object) -> int:
    if isinstance(value, list | tuple):
        sides = [_positive_int(key, v) for v in value]
        if len(sides) != 2 or sides[0] != sides[1]:
            raise ConfigError(
                f"`{key}` is {shown(value)}; expected one whole number or two equal ones "
                "(tokens are square: 2, [2, 2] or (2, 2))."
            )
        return sides[0]
    return _positive_int(key, value)


def _byte(key: str, value: object) -> int:
    return byte(key, value, error=ConfigError)


def _bool(key: str, value: object) -> bool:
    return boolean(key, value, error=ConfigError)


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
    """The background behind transparent pixels (Kimi K3). Values are bytes; the square's side is in pixels.

    The defaults are the checkpoint's, for keys that are missing from a file. The K3 file itself has
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

    def __repr__(self) -> str:
        return _short_repr(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TransparentBgConfig":
        """Read the JSON object. Unknown keys are kept for `to_dict`."""
        known, unknown = _split(values, cls)
        read = {k: _BACKGROUND_READERS[k](f"transparent_bg_config.{k}", v) for k, v in known.items()}
        return cls(**read, unknown_json=_freeze(unknown))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object with plain types, unknown keys included."""
        return _plain_fields(self) | json.loads(self.unknown_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaProcConfig:
    """The `media_proc_cfg` of a Kimi checkpoint. A patch has `patch_size` x `patch_size` pixels.

    The two limits have no default, because they differ between checkpoints and change the size of most images.
    The other defaults are the values of all released K2.5 checkpoints. Use `dataclasses.replace` to change a
    field; the new config is validated again.

    Raises:
      ConfigError: a value is out of range or of the wrong type.
    """

    in_patch_limit: int
    """Soft budget of patches for one image, applied before padding."""
    patch_limit_on_one_side: int
    """Maximum number of patches along one side."""
    patch_size: int = 14
    merge_kernel_size: int = 2
    """Side of a token in patches; `[2, 2]` is accepted for 2."""
    fixed_output_tokens: int | None = None
    """If set, replaces the reported token count. It has no effect on pixels."""
    in_patch_limit_each_frame: int | None = None
    """Budget of one video frame; None means `in_patch_limit`."""
    in_patch_limit_video: int | None = None
    """If set, a frame's budget is at most this number divided by the number of frames in its chunk."""
    max_num_frames_each_video: int | None = None
    """If set, the maximum number of frames sampled from one video."""
    sample_fps: float = 2.0
    temporal_merge_kernel_size: int = 4
    """Maximum number of frames in one video chunk."""
    timestamp_mode: str = "hh:mm:ss.fff"
    image_mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    image_std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    transparent_bg_config: TransparentBgConfig | None = None
    transparent_bg_fill_stage: str = "before_resize"
    unknown_json: str = "{}"
    """Unknown keys of `media_proc_cfg` as JSON text, kept for the round trip."""
    unknown_outer_json: str = "{}"
    """Keys next to `media_proc_cfg` (`auto_map`, ...) as JSON text, kept for the round trip."""

    def __post_init__(self) -> None:
        for name, read in _READERS.items():
            object.__setattr__(self, name, read(name, getattr(self, name)))

    def __repr__(self) -> str:
        return _short_repr(self)

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
                raise ConfigError(f"`media_proc_cfg` is {shown(nested)}; expected a JSON object.")
            inner, unknown = _split(from_transformers(nested), cls)
            # A flat copy of a nested key must repeat its value.
            flat, outer = _split(from_transformers(outer), cls)
            for key, value in flat.items():
                if key in inner and not same_json(inner[key], value):
                    raise ConfigError(
                        f"`{key}` is {shown(inner[key])} in `media_proc_cfg` but {shown(value)} beside it; keep one of "
                        "the two."
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
        """Return the nested checkpoint dialect with plain JSON types and every unknown key in its place."""
        inner = _plain_fields(self)
        if self.transparent_bg_config is None:
            # K2.5 files have neither key. A stage other than the default has an effect even without a background.
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
    raise ConfigError(f"`{key}` is {shown(value)}; expected a JSON object or null.")


# Converters from the JSON value of each key to the value of the field.
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


def _short_repr(config: Any) -> str:
    """The constructor call, without the fields that have their default value."""
    changed = [f for f in dataclasses.fields(config) if getattr(config, f.name) != f.default]
    return f"{type(config).__name__}({', '.join(f'{f.name}={getattr(config, f.name)!r}' for f in changed)})"


def _plain_fields(config: Any) -> dict[str, Any]:
    names = [f.name for f in dataclasses.fields(config) if not f.name.startswith("unknown_")]
    values = {name: getattr(config, name) for name in names}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def _freeze(values: Mapping[str, Any]) -> str:
    try:
        return json.dumps(values, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as err:
        raise ConfigError(f"unknown keys must hold JSON values to survive a round trip: {err}") from err


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


ConfigLike = MediaProcConfig | Mapping[str, Any] | str
"""What `as_config` accepts."""


def as_config(value: object) -> MediaProcConfig:
    """Return the config that a value in any of the accepted forms stands for.

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
                f"`config` is {shown(value)}; expected one of {', '.join(map(repr, PRESETS))}. Read a file or a folder "
                "with MediaProcConfig.from_json_file."
            )
        return PRESETS[value.lower()]
    if isinstance(value, Mapping):
        return MediaProcConfig.from_dict(image_part(value))
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
