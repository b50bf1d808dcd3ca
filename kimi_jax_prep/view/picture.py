"""`visualize`: the resized and padded picture of one row of a batch, with its patch and token grid."""

import operator
from typing import Any

import numpy as np
from jaxtyping import Shaped, UInt8
from PIL import Image, ImageDraw, ImageFont

from kimi_jax_prep.checks import positive_int
from kimi_jax_prep.config import ConfigLike, MediaProcConfig, as_config
from kimi_jax_prep.plan import MediaPlan

_PATCH_LINE = 0.35  # of black or white
TOKEN_LINE = (255, 176, 0)
_PAGE, _INK = (24, 26, 31), (232, 234, 237)
_HATCH = ((70, 74, 84), (118, 124, 138))
_MARGIN = 12
_MIN_LINE_DISTANCE = 5  # closer grid lines would hide the picture


def visualize(batch: Any, i: int, *, config: ConfigLike = "k2.5", grid: bool = True, max_side: int = 1600) -> Any:
    """Draw what the model sees of one image or video chunk.

    Thin black or white lines separate patches, orange lines tokens; padding is hatched. Lines less than 5 pixels
    apart are left out. Small pictures are enlarged by a whole factor; pictures larger than `max_side` are reduced.

    Args:
      batch: a `PatchBatch` of any dtype, in NumPy or JAX.
      i: row of `grid_thws`; negative numbers count from the end.
      config: the config of the batch. Its mean and std undo the normalization; its budget is in the caption.
      grid: draw the grid and hatch the padding. Without it, padding has its own zeros (black).
      max_side: pixels of a frame's longer side in the drawing.

    Returns:
      An RGB `PIL.Image.Image`. The frames of a video chunk are side by side.

    Raises:
      IndexError: the batch has no such row.
      PlanError: `max_side` is not a positive whole number.
    """
    config, max_side = as_config(config), positive_int("max_side", max_side)
    i = _row(batch, i)
    plan = batch.plans[i]
    frames = frame_bytes(batch.split()[i], plan, config)
    tiles = [draw_frame(frame, plan, frames.shape[-2] // plan.grid_thw[2], grid, max_side) for frame in frames]
    labels = [f"frame {k + 1} of {len(tiles)}" for k in range(len(tiles))] if len(tiles) > 1 else None
    return sheet([(None, tiles, labels)], caption(batch, i, config))


def contact_sheet(
    batch: Any, rows: range, *, config: ConfigLike = "k2.5", max_side: int = 320, title: str = ""
) -> Image.Image:
    """Draw the chunks of a video below each other, each with its time."""
    config = as_config(config)
    parts, groups = batch.split(), []
    for i in rows:
        plan = batch.plans[i]
        frames = frame_bytes(parts[i], plan, config)
        tiles = [draw_frame(f, plan, frames.shape[-2] // plan.grid_thw[2], True, max_side) for f in frames]
        time = (batch.prompts[i] or "").partition("<|")[0]
        groups.append((f"chunk {i - rows.start + 1}  {time}  {plan.num_tokens} tokens", tiles, None))
    tokens = sum(batch.plans[i].num_tokens for i in rows)
    lines = [line for line in (title, caption(batch, rows.start, config)) if line]
    return sheet(groups, "\n".join([*lines, f"{len(rows)} chunks, {tokens:,} tokens in all"]))


def frame_bytes(
    patches: Shaped[Any, "n 3 p p"], plan: MediaPlan, config: MediaProcConfig
) -> UInt8[np.ndarray, "t H W 3"]:
    """The padded frames as bytes: the inverse of normalization, rounded, and of cutting into patches."""
    values = np.asarray(patches)
    frames, rows, columns = plan.grid_thw
    side = values.shape[-1]
    values = values.reshape(frames, rows, columns, 3, side, side).transpose(0, 1, 4, 2, 5, 3)
    values = values.reshape(frames, rows * side, columns * side, 3)
    if values.dtype == np.uint8:
        return values
    scaled = (
        values.astype(np.float32) * np.array(config.image_std, np.float32) + np.array(config.image_mean, np.float32)
    ) * 255
    return np.nan_to_num(scaled.round()).clip(0, 255).astype(np.uint8)


def caption(batch: Any, i: int, config: MediaProcConfig) -> str:
    """Sizes, patches, tokens and budget of one row."""
    plan = batch.plans[i]
    frames, rows, columns = plan.grid_thw
    given = f"{batch.sizes[i][0]}x{batch.sizes[i][1]} resized to " if batch.sizes else ""
    is_chunk = batch.prompts[i] is not None or frames > 1
    budget = (config.in_patch_limit_each_frame if is_chunk else None) or config.in_patch_limit
    padded = f"{plan.width + plan.pad_right}x{plan.height + plan.pad_bottom}"
    each = f" each of {frames} frames" if frames > 1 else ""
    return (
        f"{given}{plan.width}x{plan.height}, padded to {padded}\n"
        f"{columns}x{rows} = {rows * columns:,} patches{each}, budget {budget:,}; {plan.num_tokens:,} tokens"
    )


def draw_frame(
    frame: UInt8[np.ndarray, "H W 3"], plan: MediaPlan, patch: int, grid: bool, max_side: int
) -> Image.Image:
    """One frame, enlarged or reduced, with its grid."""
    height, width = frame.shape[:2]
    if grid:
        frame = _hatched(frame, plan)
    picture = Image.fromarray(frame)
    longest = max(width, height)
    factor = float(max(1, min(640, max_side) // longest)) if longest <= max_side else max_side / longest
    size = max(1, round(width * factor)), max(1, round(height * factor))
    picture = picture.resize(size, Image.Resampling.NEAREST if factor >= 1 else Image.Resampling.BOX)
    if not grid:
        return picture
    token = patch * plan.merge_kernel_size
    # Darker on light pixels and lighter on dark ones, so that lines are visible on any picture.
    ink = picture.convert("L").point([255 if v < 140 else 0 for v in range(256)]).convert("RGB")
    contrasting = Image.blend(picture, ink, _PATCH_LINE)
    for step, color in ((patch, contrasting), (token, TOKEN_LINE)):
        if step * factor < _MIN_LINE_DISTANCE:
            continue
        mask = Image.new("L", size)
        draw = ImageDraw.Draw(mask)
        for side, length in ((0, width), (1, height)):
            for k in range(0, length + 1, step):
                at = min(round(k * factor), size[side] - 1)
                draw.line((at, 0, at, size[1]) if side == 0 else (0, at, size[0], at), fill=255)
        picture.paste(color, (0, 0), mask)
    return picture


def sheet(groups: list[tuple[str | None, list[Image.Image], list[str] | None]], text: str) -> Image.Image:
    """Rows of tiles with labels, and a caption below."""
    font = _font(15)
    line = 20
    columns = max(_columns(tiles) for _, tiles, _ in groups)
    tile_width = max(tile.width for _, tiles, _ in groups for tile in tiles)
    width = max(columns * (tile_width + _MARGIN) + _MARGIN, 420)
    wrapped = [part for whole in text.split("\n") for part in _wrap(whole, font, width - 2 * _MARGIN)]
    places, y = [], _MARGIN
    for label, tiles, labels in groups:
        if label:
            places.append((_MARGIN, y, label))
            y += line
        for start in range(0, len(tiles), columns):
            part = tiles[start : start + columns]
            for k, tile in enumerate(part):
                x = _MARGIN + k * (tile_width + _MARGIN)
                places.append((x, y, tile))
                if labels:
                    places.append((x, y + tile.height + 2, labels[start + k]))
            y += max(tile.height for tile in part) + (line if labels else 0) + _MARGIN
    page = Image.new("RGB", (width, y + line * len(wrapped) + _MARGIN // 2), _PAGE)
    draw = ImageDraw.Draw(page)
    for x, top, thing in places:
        if isinstance(thing, str):
            draw.text((x, top), thing, fill=_INK, font=font)
        else:
            page.paste(thing, (x, top))
    for k, part in enumerate(wrapped):
        draw.text((_MARGIN, y + k * line), part, fill=_INK, font=font)
    return page


def _columns(tiles: list[Image.Image]) -> int:
    """Tiles in a row: large ones in pairs."""
    return min(len(tiles), 4 if tiles[0].width <= 400 else 2)


def _hatched(frame: UInt8[np.ndarray, "H W 3"], plan: MediaPlan) -> UInt8[np.ndarray, "H W 3"]:
    y, x = np.ogrid[: frame.shape[0], : frame.shape[1]]
    padding = (y >= plan.height) | (x >= plan.width)
    stripes = np.array(_HATCH, np.uint8)[(x + y) // 4 % 2]
    return np.where(padding[..., None], stripes, frame)


def _font(size: int) -> Any:
    try:
        return ImageFont.load_default(size)
    except ImportError:  # Pillow without FreeType has a bitmap font of one size
        return ImageFont.load_default()


def _wrap(text: str, font: Any, width: int) -> list[str]:
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and font.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _row(batch: Any, i: int) -> int:
    """A row's number from 0."""
    number = operator.index(i)
    if not -len(batch) <= number < len(batch):
        raise IndexError(f"the batch has {len(batch)} rows; there is no row {number}.")
    return number % len(batch)
