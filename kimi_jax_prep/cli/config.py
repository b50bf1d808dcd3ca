"""`kimi-jax-prep config`: print, validate, convert and compare configs."""

import enum
import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

from kimi_jax_prep.cli.inputs import JsonOption, VerboseOption, read_config
from kimi_jax_prep.cli.output import print_json, print_table, show_lines, whole_file
from kimi_jax_prep.config import MediaProcConfig
from kimi_jax_prep.errors import ConfigError

# transformers' video processor has a frame budget of its own, which this reader takes for granted.
_TRANSFORMERS_FRAME_LIMIT = 4096


class Dialect(enum.StrEnum):
    """Names of `--to`."""

    checkpoint = "checkpoint"
    transformers = "transformers"


def config(
    name: Annotated[str, typer.Argument(metavar="NAME|FOLDER|FILE", help="A preset or a checkpoint's config.")],
    other: Annotated[str | None, typer.Argument(metavar="[OTHER]", help="Compare with this one.")] = None,
    to: Annotated[Dialect, typer.Option("--to", help="Dialect of the output.")] = Dialect.checkpoint,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the JSON to a file.")] = None,
    json: JsonOption = False,
    verbose: VerboseOption = False,  # noqa: ARG001 -- `run_command` reads it
) -> int:
    """Print and validate a config, convert it between dialects, or compare two (status 1 if they differ)."""
    first = read_config(name)
    if other is not None:
        return _compare(first, read_config(other), name, other, json)
    values = first.to_dict() if to is Dialect.checkpoint else to_transformers(first)
    if out is not None:
        with whole_file(out) as beside:
            beside.write_text(json_module.dumps(values, indent=2) + "\n", encoding="utf-8")
        if not json:
            show_lines([f"written  {out}"])
            return 0
    print_json(values)
    return 0


def to_transformers(config: MediaProcConfig) -> dict[str, Any]:
    """The config in the dialect of transformers' port.

    Raises:
      ConfigError: it would read back as another config, because the dialect has no key for a value.
    """
    values = dict(config.to_dict())
    inner = dict(values.pop("media_proc_cfg"))
    side = inner.pop("patch_limit_on_one_side")
    renamed = {
        "max_patches": inner.pop("in_patch_limit"),
        "merge_size": inner.pop("merge_kernel_size"),
        "temporal_patch_size": inner.pop("temporal_merge_kernel_size"),
        "fps": inner.pop("sample_fps"),
        "size": {"max_height": side, "max_width": side},
    }
    if inner.get("in_patch_limit_each_frame") == _TRANSFORMERS_FRAME_LIMIT:
        del inner["in_patch_limit_each_frame"]
    flat = {
        **values,
        **renamed,
        **{k: v for k, v in inner.items() if v is not None or k == "in_patch_limit_each_frame"},
    }
    if MediaProcConfig.from_dict(flat) != config:
        lost = sorted(set(inner) & set(values)) or sorted(inner)
        raise ConfigError(f"transformers' dialect cannot hold this config unchanged (keys {', '.join(lost)}).")
    return flat


def _compare(first: MediaProcConfig, second: MediaProcConfig, name: str, other: str, json: bool) -> int:
    a, b = (_flat(c.to_dict()) for c in (first, second))
    rows = [[key, _shown(a, key), _shown(b, key)] for key in sorted({*a, *b}) if _shown(a, key) != _shown(b, key)]
    if json:
        print_json({"equal": not rows, "differences": {k: [a.get(k), b.get(k)] for k, _, _ in rows}})
    elif rows:
        print_table(["key", name, other], rows, left=(0, 1, 2))
    else:
        show_lines(["no differences"])
    return 1 if rows else 0


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by dots, without the outer `media_proc_cfg`."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            out |= _flat(value, prefix if key == "media_proc_cfg" else f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out


def _shown(values: dict[str, Any], key: str) -> str:
    return json_module.dumps(values[key]) if key in values else "-"
