"""A vision tower in the shape of MoonViT, in plain JAX with random weights, in two forms.

`packed_tower` takes `PackedPatches`: static shapes, compiled once for images and videos of all sizes. `tower_of_one`
takes the patches of one medium and its grid as a static argument, the usual form, compiled once for each grid.

Both have a patch projection, a learned 64x64 position table resampled to each grid, a sine table for the frames of
videos, pre-norm attention blocks with 2-D rotary embeddings, and a merge of 2x2 patches averaged over frames.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import kimi_jax_prep as kjp

TABLE = 64  # side of the learned position table
MERGE = 2


class Sizes(NamedTuple):
    """Static sizes of the tower."""

    width: int = 32
    heads: int = 2
    blocks: int = 2
    mlp: int = 64


def init(key, sizes: Sizes) -> dict:
    """Random weights."""
    d, m = sizes.width, sizes.mlp
    keys = iter(jax.random.split(key, 2 + 4 * sizes.blocks))

    def matrix(rows: int, columns: int):
        return jax.random.normal(next(keys), (rows, columns), jnp.float32) / np.float32(np.sqrt(rows))

    return {
        "patch": matrix(3 * 14 * 14, d),
        "table": matrix(TABLE * TABLE, d).reshape(TABLE, TABLE, d),
        "blocks": [
            {"qkv": matrix(d, 3 * d), "out": matrix(d, d), "up": matrix(d, m), "down": matrix(m, d)}
            for _ in range(sizes.blocks)
        ],
    }


def norm(x):
    """Layer norm without weights."""
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-5))


def sine_table(frames, width: int):
    """Sine and cosine features of frame numbers: (n,) to (n, width)."""
    rates = np.float32(1e4) ** -(np.arange(width // 2, dtype=np.float32) / np.float32(width // 2))
    angle = frames[:, None].astype(jnp.float32) * rates[None, :]
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1)


def rotate(x, yx):
    """2-D rotary embedding: (n, heads, e) by the positions (n, 2) of the patches; half of the pairs by y, half by x."""
    pairs = x.shape[-1] // 2
    rates = np.float32(1e4) ** -(np.arange(pairs // 2, dtype=np.float32) / np.float32(pairs // 2))
    angle = (yx[:, :, None].astype(jnp.float32) * rates[None, None, :]).reshape(-1, 1, pairs)
    even, odd, cos, sin = x[..., ::2], x[..., 1::2], jnp.cos(angle), jnp.sin(angle)
    return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)


def block(weights: dict, x, yx, mask, heads: int):
    """One block. `mask` is (n, n), true where a patch attends to another; None for all."""
    n, d = x.shape
    q, k, v = jnp.moveaxis((norm(x) @ weights["qkv"]).reshape(n, 3, heads, d // heads), 1, 0)
    q, k = rotate(q, yx), rotate(k, yx)
    attended = jax.nn.dot_product_attention(q, k, v, mask=None if mask is None else mask[None])
    x = x + attended.reshape(n, d) @ weights["out"]
    return x + jax.nn.gelu(norm(x) @ weights["up"]) @ weights["down"]


def bicubic_taps(position, size):
    """Rows of the table, (4, n) clipped to it, and weights of patches at `position` of `size` along one axis."""
    source = (position.astype(jnp.float32) + np.float32(0.5)) * (TABLE / size.astype(jnp.float32)) - np.float32(0.5)
    first = jnp.floor(source)
    taps = np.arange(-1, 3, dtype=np.float32)[:, None]
    x = jnp.abs(source[None] - (first[None] + taps))
    near = ((np.float32(1.25) * x - np.float32(2.25)) * x) * x + np.float32(1)
    far = ((np.float32(-0.75) * x + np.float32(3.75)) * x - np.float32(6)) * x + np.float32(3)
    weights = jnp.where(x < 1, near, jnp.where(x < 2, far, np.float32(0)))
    return jnp.clip((first[None] + taps).astype(jnp.int32), 0, TABLE - 1), weights


# --- static shapes: one program for everything -----------------------------------------------------------------------


def positions_of_pack(table, packed):
    """The position table at every patch of a pack: sixteen gathers, whatever the grids are."""
    grid = packed.grid_thws[jnp.maximum(packed.segment_ids - 1, 0)]
    rows, wy = bicubic_taps(packed.positions[:, 1], jnp.maximum(grid[:, 1], 1))
    columns, wx = bicubic_taps(packed.positions[:, 2], jnp.maximum(grid[:, 2], 1))
    total = jnp.zeros((len(packed.segment_ids), table.shape[-1]), jnp.float32)
    for i in range(4):
        for j in range(4):
            total += table[rows[i], columns[j]] * (wy[i] * wx[j])[:, None]
    return total, grid[:, 0]


@partial(jax.jit, static_argnames="sizes")
def packed_tower(weights: dict, packed: kjp.PackedPatches, lut, *, sizes: Sizes):
    """Tokens of all media of a pack.

    Args:
      packed: uint8 patches; they are normalized here, on the device.
      lut: (256, 3) float32, from `normalize_lut`.

    Returns:
      (capacity / 4, 4 * width), in the order of `token_segment_ids`; zeros behind the last token.
    """
    used = packed.segment_ids > 0
    patches = kjp.normalize(packed.pixel_values, lut).reshape(len(used), -1)
    table, t = positions_of_pack(weights["table"], packed)
    x = patches @ weights["patch"] + table
    x = x + jnp.where((t > 1)[:, None], sine_table(packed.positions[:, 0], sizes.width), np.float32(0))
    mask = packed.segment_ids[:, None] == packed.segment_ids[None, :]
    for one in weights["blocks"]:
        x = block(one, x, packed.positions[:, 1:], mask, sizes.heads)
    # Each token sums its patches over frames; patches of the padding go to a token that does not exist.
    x = jnp.where(used[:, None], norm(x), np.float32(0)) / jnp.maximum(t, 1).astype(jnp.float32)[:, None]
    places = packed.token_ids * MERGE**2 + packed.kernel_ids
    merged = jax.ops.segment_sum(x, places, num_segments=len(used))
    return merged.reshape(-1, MERGE**2 * sizes.width)


# --- the usual form: one program for each grid -----------------------------------------------------------------------


@partial(jax.jit, static_argnames=("grid_thw", "sizes"))
def tower_of_one(weights: dict, patches, *, grid_thw: tuple[int, int, int], sizes: Sizes):
    """Tokens of one medium: normalized patches (t * h * w, 3, 14, 14) to (h / 2 * w / 2, 4 * width)."""
    t, h, w = grid_thw

    def axis(size: int):
        """The table's rows at every place of one axis, as a dense (size, 64) matrix."""
        rows, weight = bicubic_taps(jnp.arange(size), jnp.full(size, size))
        return sum(jax.nn.one_hot(rows[i], TABLE) * weight[i][:, None] for i in range(4))

    table = jnp.einsum("hy,wx,yxd->hwd", axis(h), axis(w), weights["table"])
    x = (patches.reshape(t * h * w, -1) @ weights["patch"]).reshape(t, h, w, -1) + table[None]
    if t > 1:
        x = x + sine_table(jnp.arange(t), sizes.width)[:, None, None]
    y_, x_ = jnp.meshgrid(jnp.arange(h), jnp.arange(w), indexing="ij")
    yx = jnp.tile(jnp.stack([y_, x_], axis=-1).reshape(h * w, 2), (t, 1))
    x = x.reshape(t * h * w, -1)
    for one in weights["blocks"]:
        x = block(one, x, yx, None, sizes.heads)
    x = norm(x).reshape(t, h // MERGE, MERGE, w // MERGE, MERGE, -1).mean(0)
    return x.transpose(0, 2, 1, 3, 4).reshape(h // MERGE * (w // MERGE), -1)
