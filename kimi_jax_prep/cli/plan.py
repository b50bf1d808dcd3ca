"""`kimi-jax-prep plan`: sizes, grids and tokens from headers, without decoding."""

import dataclasses
from typing import Annotated, Any

import typer

from kimi_jax_prep.cli.inputs import (
    ConfigOption,
    JsonOption,
    VerboseOption,
    image_size,
    is_video,
    read_config,
    size_of,
)
from kimi_jax_prep.cli.output import note, print_json, print_table
from kimi_jax_prep.config import MediaProcConfig
from kimi_jax_prep.errors import PrepError
from kimi_jax_prep.plan import MediaPlan, plan_image

Row = tuple[str, tuple[int, int], list[MediaPlan]]


def plan(
    sources: Annotated[list[str], typer.Argument(metavar="FILE|WxH...", help="Images, videos, or sizes: 1920x1080.")],
    config: ConfigOption = "k2.5",
    budget: Annotated[
        list[int] | None,
        typer.Option("--budget", "-b", min=1, help="Tokens under another `in_patch_limit`; may be repeated."),
    ] = None,
    json: JsonOption = False,
    verbose: VerboseOption = False,  # noqa: ARG001 -- `run_command` reads it
) -> int:
    """Show sizes, grid and tokens of images and videos. Reads headers only."""
    base = read_config(config)
    rows, errors = [], []
    for source in sources:
        try:
            rows.append(_row(source, base))
        except (PrepError, OSError) as err:
            detail = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
            errors.append({"file": source, "error": detail})
    others = [
        dataclasses.replace(base, in_patch_limit=limit, in_patch_limit_each_frame=limit) for limit in budget or ()
    ]
    costs = [[_tokens(_replanned(row, other)) for other in others] for row in rows]
    if json:
        media = [_facts(row, dict(zip(budget or (), cost, strict=True))) for row, cost in zip(rows, costs, strict=True)]
        total: dict[str, Any] = {key: sum(m[key] for m in media) for key in ("patches", "tokens")}
        total["tokens_at_budget"] = {str(limit): sum(c[k] for c in costs) for k, limit in enumerate(budget or ())}
        print_json({"media": media, "total": total, "errors": errors})
    else:
        if rows:
            _print(rows, costs, budget or [])
        for error in errors:
            note(f"error: {error['file']}: {error['error']}")
    return 2 if errors else 0


def _row(source: str, config: MediaProcConfig) -> Row:
    size = size_of(source)
    if size is None and is_video(source):
        from kimi_jax_prep.cli.inputs import medium
        from kimi_jax_prep.media.opening import open_media

        chunks = open_media(medium(source), config)
        return source, chunks[0].size, [chunk.plan(config) for chunk in chunks]
    size = image_size(source) if size is None else size
    return source, size, [plan_image(width=size[0], height=size[1], config=config)]


def _replanned(row: Row, config: MediaProcConfig) -> list[MediaPlan]:
    from kimi_jax_prep.plan import plan_chunk

    source, (width, height), plans = row
    if not is_video(source):
        return [plan_image(width=width, height=height, config=config)]
    return [plan_chunk(width=width, height=height, num_frames=p.grid_thw[0], config=config) for p in plans]


def _tokens(plans: list[MediaPlan]) -> int:
    return sum(plan.num_tokens for plan in plans)


def _facts(row: Row, costs: dict[int, int]) -> dict[str, Any]:
    source, (width, height), plans = row
    first = plans[0]
    return {
        "file": source,
        "width": width,
        "height": height,
        "resized": [first.width, first.height],
        "padded": [first.width + first.pad_right, first.height + first.pad_bottom],
        "grid_thws": [list(plan.grid_thw) for plan in plans],
        "patches": sum(plan.num_patches for plan in plans),
        "tokens": _tokens(plans),
        "tokens_at_budget": {str(limit): cost for limit, cost in costs.items()},
    }


def _print(rows: list[Row], costs: list[list[int]], budget: list[int]) -> None:
    header = ["size", "resized", "padded", "grid_thw", "patches", "tokens", *(f"at {b}" for b in budget), "file"]
    table = []
    for row, cost in zip(rows, costs, strict=True):
        facts = _facts(row, {})
        grids = facts["grid_thws"]
        grid = "x".join(map(str, grids[0])) + (f" *{len(grids)}" if len(grids) > 1 else "")
        if len(grids) > 1 and grids[-1] != grids[0]:
            frames = sum(g[0] for g in grids)
            grid = f"{frames}x{grids[0][1]}x{grids[0][2]} /{len(grids)}" if grids[-1][1:] == grids[0][1:] else grid
        sizes = [f"{w}x{h}" for w, h in (row[1], facts["resized"], facts["padded"])]
        name = "" if size_of(row[0]) else row[0]
        table.append([*sizes, grid, facts["patches"], facts["tokens"], *cost, name])
    if len(rows) > 1:
        sums = [sum(_tokens(row[2]) for row in rows), *(sum(c[k] for c in costs) for k in range(len(budget)))]
        patches = sum(plan.num_patches for row in rows for plan in row[2])
        table.append(["total", "", "", "", patches, *sums, f"{len(rows)} media"])
    print_table(header, table, left=(0, len(header) - 1))
