"""`PackedPatches`: a batch in arrays of fixed shapes, so that a jitted model compiles once for media of all sizes.

May import: NumPy and this package's `errors`, `checks` and `plan`. JAX is never imported here; see `register_pytrees`.
"""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from kimi_jax_prep.checks import positive_int, shown
from kimi_jax_prep.errors import PlanError
from kimi_jax_prep.plan import MediaPlan, total_patches

# Steps of `capacity=None`, before rounding up to whole tokens. A model compiles once for each step in use.
PACK_CAPACITIES = tuple(1024 << i for i in range(13))


@dataclass(frozen=True, slots=True, eq=False)
class PackedPatches:
    """Patches of several media in arrays whose shapes depend on `capacity` and `max_media` alone.

    A pytree: all fields are arrays, so it can be an argument of `jax.jit`, `jax.device_put` and `jax.tree.map`. Below,
    n is the number of patches in use, m the number of media (images and video chunks), and k is `merge_kernel_size`.
    """

    pixel_values: Any
    """(capacity, 3, p, p), the batch's dtype; rows from n on are zeros."""
    segment_ids: Any
    """(capacity,) int32: 1..m for the patches of each medium, 0 from n on."""
    positions: Any
    """(capacity, 3) int32: frame, patch row and patch column in the medium, from 0; 0 from n on."""
    grid_thws: Any
    """(max_media, 3) int32: frames, patch rows and patch columns; zeros from m on."""
    cu_seqlens: Any
    """(max_media + 1,) int32: first patch of each medium, then n repeated."""
    token_ids: Any
    """(capacity,) int32: output token of each patch, counted through the pack; capacity // k^2 from n on.

    The model merges k x k patches and averages frames into one token.
    """
    kernel_ids: Any
    """(capacity,) int32: place of each patch in its merge kernel, row-major, 0..k^2 - 1; 0 from n on."""
    token_segment_ids: Any
    """(capacity // k^2,) int32: 1..m for the output tokens of each medium, 0 after the last token."""
    sources: Any
    """(max_media,) int32: index of each medium in the list that was preprocessed; -1 from m on."""
    num_patches: Any
    """() int32: n."""
    num_media: Any
    """() int32: m."""
    num_tokens: Any
    """() int32: output tokens. `fixed_output_tokens` does not change it."""

    def __post_init__(self) -> None:
        register_pytrees()

    @property
    def capacity(self) -> int:
        """Rows of `pixel_values`."""
        return self.pixel_values.shape[-4]

    @property
    def fill(self) -> float:
        """Share of the rows in use, 0 to 1."""
        return float(self.num_patches) / self.capacity


def pack_capacity(plans: Sequence[MediaPlan], capacity: int | None = None) -> int:
    """Check a capacity, or choose the smallest step of `PACK_CAPACITIES` that holds all patches.

    Args:
      plans: of all media.
      capacity: rows of `pixel_values`; None chooses 1,024 times a power of two, rounded up to whole tokens.

    Raises:
      PlanError: the media have more patches, or the capacity is not a multiple of `merge_kernel_size` squared.
    """
    needed, kernel = total_patches(plans), _merge_kernel_size(plans) ** 2
    if capacity is None:
        steps = [step + -step % kernel for step in PACK_CAPACITIES]
        capacity = next((step for step in steps if needed <= step), None)
        if capacity is None:
            raise PlanError(
                f"the media have {needed} patches, more than the largest step {steps[-1]}; pass `capacity`."
            )
        return capacity
    capacity = check_capacity(capacity, _merge_kernel_size(plans))
    if needed > capacity:
        raise PlanError(f"the media have {needed} patches, more than `capacity` = {capacity}.")
    return capacity


def check_capacity(capacity: int, merge_kernel_size: int) -> int:
    """Return the capacity as Python's int.

    Raises:
      PlanError: it is not a positive whole number of tokens below 2**31.
    """
    number, kernel = _int32("capacity", capacity), merge_kernel_size**2
    if number % kernel:
        raise PlanError(f"`capacity` is {number}; expected a multiple of {kernel}, `merge_kernel_size` squared.")
    return number


def pack_index(
    plans: Sequence[MediaPlan],
    *,
    capacity: int | None = None,
    max_media: int | None = None,
    sources: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Compute all fields of `PackedPatches` but the pixels, from sizes alone.

    Args:
      plans: of all media, in the order of their patches.
      capacity: as for `pack_capacity`.
      max_media: rows of `grid_thws`; None allows as many media as tokens, `capacity // merge_kernel_size**2`, so that
        shapes depend on the capacity alone.
      sources: index of each medium in the caller's list; None counts them.

    Returns:
      NumPy arrays by field name.

    Raises:
      PlanError: more patches than `capacity`, or more media than `max_media`.
    """
    merge = _merge_kernel_size(plans)
    kernel = merge * merge
    capacity = pack_capacity(plans, capacity)
    max_media = capacity // kernel if max_media is None else _int32("max_media", max_media)
    if len(plans) > max_media:
        raise PlanError(f"there are {len(plans)} media, more than `max_media` = {max_media}.")
    index = {
        "segment_ids": np.zeros(capacity, np.int32),
        "positions": np.zeros((capacity, 3), np.int32),
        "grid_thws": np.zeros((max_media, 3), np.int32),
        "cu_seqlens": np.full(max_media + 1, total_patches(plans), np.int32),
        "token_ids": np.full(capacity, capacity // kernel, np.int32),
        "kernel_ids": np.zeros(capacity, np.int32),
        "token_segment_ids": np.zeros(capacity // kernel, np.int32),
        "sources": np.full(max_media, -1, np.int32),
    }
    index["sources"][: len(plans)] = range(len(plans)) if sources is None else sources
    patch = token = 0
    # Where a medium of each grid is already: the next one of that grid copies its entries.
    known: dict[tuple[int, int, int], tuple[slice, int]] = {}
    for i, plan in enumerate(plans):
        _, rows, columns = plan.grid_thw
        here = slice(patch, patch + plan.num_patches)
        tokens = (rows // merge) * (columns // merge)
        if plan.grid_thw in known:
            like, first = known[plan.grid_thw]
            index["positions"][here] = index["positions"][like]
            index["kernel_ids"][here] = index["kernel_ids"][like]
            np.add(index["token_ids"][like], np.int32(token - first), out=index["token_ids"][here])
        else:
            _index_patches(index, here, plan.grid_thw, merge, token)
            known[plan.grid_thw] = here, token
        index["segment_ids"][here] = i + 1
        index["token_segment_ids"][token : token + tokens] = i + 1
        index["grid_thws"][i] = plan.grid_thw
        index["cu_seqlens"][i] = patch
        patch, token = patch + plan.num_patches, token + tokens
    counts = {"num_patches": patch, "num_media": len(plans), "num_tokens": token}
    return index | {name: np.array(count, np.int32) for name, count in counts.items()}


def _index_patches(index: dict[str, Any], here: slice, grid: tuple[int, int, int], merge: int, token: int) -> None:
    """Positions, tokens and places in the merge kernel of one medium's patches, whose first token is `token`."""
    t, rows, columns = grid
    y, x = np.arange(rows, dtype=np.int32)[:, None], np.arange(columns, dtype=np.int32)[None, :]
    positions = index["positions"][here].reshape(t, rows, columns, 3)
    positions[..., 0] = np.arange(t, dtype=np.int32)[:, None, None]
    positions[..., 1] = y
    positions[..., 2] = x
    # Frames of a chunk share their tokens: the model averages them.
    index["token_ids"][here].reshape(t, rows, columns)[:] = token + y // merge * (columns // merge) + x // merge
    index["kernel_ids"][here].reshape(t, rows, columns)[:] = y % merge * merge + x % merge


def pack_patches(
    pixel_values: Any,
    plans: Sequence[MediaPlan],
    *,
    capacity: int | None = None,
    max_media: int | None = None,
    sources: Sequence[int] | None = None,
) -> PackedPatches:
    """Copy the patches of media into an array of `capacity` rows and index them.

    Args:
      pixel_values: (n or more, 3, p, p), NumPy or JAX. A JAX array stays on its device; a sharded one keeps its
        sharding, which must divide `capacity`. An array that already has `capacity` rows, with zeros from n on, needs
        no copy: `PackedPatches(pixel_values, **pack_index(...))`.
      plans, capacity, max_media, sources: as for `pack_index`.

    Raises:
      PlanError: more patches than `capacity`, or more media than `max_media`.
    """
    index = pack_index(plans, capacity=capacity, max_media=max_media, sources=sources)
    n, rows = int(index["num_patches"]), len(index["segment_ids"])
    sharding = getattr(pixel_values, "sharding", None)
    if sharding is not None and len(sharding.device_set) == 1:
        jnp: Any = sys.modules["jax.numpy"]  # whoever passes a JAX array has imported JAX
        used = pixel_values[:n]
        packed = jnp.concatenate([used, jnp.zeros((rows - n, *used.shape[1:]), used.dtype)])
    else:
        packed = np.zeros((rows, *pixel_values.shape[1:]), pixel_values.dtype)
        packed[:n] = np.asarray(pixel_values)[:n]
        if sharding is not None:
            # By way of the host: a slice of a sharded axis is not even, and on explicit axes an error.
            packed = sys.modules["jax"].device_put(packed, sharding)
    return PackedPatches(packed, **index)


def _int32(name: str, value: object) -> int:
    number = positive_int(name, value, optional=True)
    if number >= 2**31:
        raise PlanError(f"`{name}` is {shown(number)}; expected a number below 2**31, because indices are int32.")
    return number


def _merge_kernel_size(plans: Sequence[MediaPlan]) -> int:
    sizes = {plan.merge_kernel_size for plan in plans} or {2}
    if len(sizes) > 1:
        raise PlanError(f"media of one pack share `merge_kernel_size`; got {sorted(sizes)}.")
    return sizes.pop()


_PYTREES: dict[type, tuple[str, ...]] = {PackedPatches: tuple(field.name for field in fields(PackedPatches))}


def register_pytrees(data: type | None = None, *, arrays: tuple[str, ...] = ()) -> None:
    """Register the dataclasses of results as pytrees, if JAX has been imported in this process.

    Called when the module is imported and whenever an instance is created, so that a process without JAX never imports
    it. If you import JAX after you created your last instance, call it yourself.

    Args:
      data: another dataclass to register, now or later.
      arrays: its fields that are arrays; the others are static.
    """
    if data is not None:
        _PYTREES[data] = arrays
    tree_util: Any = sys.modules.get("jax.tree_util")
    if not _PYTREES or not hasattr(tree_util, "register_dataclass"):
        return
    while _PYTREES:
        with contextlib.suppress(KeyError, ValueError):  # another thread registers the same class
            kind, arrays = _PYTREES.popitem()
            static = [field.name for field in fields(kind) if field.name not in arrays]
            tree_util.register_dataclass(kind, list(arrays), static)
