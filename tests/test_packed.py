"""`PackedPatches` field by field against a plain loop, as pytrees, without JAX, and as the input of a merge."""

import dataclasses
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bits import assert_bit_equal
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_jax_prep import KIMI_K3, KIMI_K25, PackedPatches, PlanError, Preprocessor, plan_chunk, plan_image
from kimi_jax_prep.packed import PACK_CAPACITIES, pack_capacity, pack_index, pack_patches

DTYPES = ["float32", "bfloat16", "float16", "uint8"]
CONFIGS = {"K2.5": KIMI_K25, "K3": KIMI_K3}
properties = settings(derandomize=True, database=None, deadline=None, max_examples=60)


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).integers(0, 256, shape, np.uint8)


def chunk(frames: int, height: int, width: int) -> dict:
    return {"type": "video_chunk", "video_chunk": list(noise(frames, height, width, 3))}


def plan(frames: int, height: int, width: int, config=KIMI_K25):
    if frames == 0:
        return plan_image(width=width, height=height, config=config)
    return plan_chunk(width=width, height=height, num_frames=frames, config=config)


MEDIA = [noise(30, 50, 3), chunk(1, 28, 30), chunk(4, 60, 28), noise(1, 1, 3), chunk(3, 90, 30), chunk(2, 28, 28)]


def by_loop(grids, sources, *, capacity: int, max_media: int, merge: int) -> dict:
    """Every field, number by number, from the definitions."""
    kernel = merge * merge
    want = {
        "segment_ids": [0] * capacity,
        "positions": [[0, 0, 0]] * capacity,
        "grid_thws": [[0, 0, 0]] * max_media,
        "cu_seqlens": [],
        "token_ids": [capacity // kernel] * capacity,
        "kernel_ids": [0] * capacity,
        "token_segment_ids": [0] * (capacity // kernel),
        "sources": [-1] * max_media,
    }
    patch = token = 0
    for i, (t, h, w) in enumerate(grids):
        want["grid_thws"][i] = [t, h, w]
        want["sources"][i] = sources[i]
        want["cu_seqlens"].append(patch)
        tokens = {}
        for by in range(h // merge):
            for bx in range(w // merge):
                tokens[by, bx] = token
                want["token_segment_ids"][token] = i + 1
                token += 1
        for f in range(t):
            for y in range(h):
                for x in range(w):
                    want["segment_ids"][patch] = i + 1
                    want["positions"][patch] = [f, y, x]
                    want["token_ids"][patch] = tokens[y // merge, x // merge]
                    want["kernel_ids"][patch] = (y % merge) * merge + x % merge
                    patch += 1
    want["cu_seqlens"] += [patch] * (max_media + 1 - len(grids))
    want |= {"num_patches": patch, "num_media": len(grids), "num_tokens": token}
    return {name: np.array(value, np.int32) for name, value in want.items()}


def check(packed: PackedPatches, batch, *, capacity: int, max_media: int, merge: int = 2) -> None:
    want = by_loop(batch.grid_thws, batch.sources, capacity=capacity, max_media=max_media, merge=merge)
    for name, value in want.items():
        assert_bit_equal(getattr(packed, name), value, what=name)
    n = len(batch.pixel_values)
    assert packed.pixel_values.shape == (capacity, *batch.pixel_values.shape[1:])
    assert_bit_equal(packed.pixel_values[:n], batch.pixel_values, what="pixel_values")
    assert not np.asarray(packed.pixel_values[n:]).view(np.uint8).any()
    assert {f.name for f in dataclasses.fields(packed)} == {*want, "pixel_values"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_field_is_that_of_a_plain_loop(config, dtype):
    batch = Preprocessor(config, dtype=dtype, backend="numpy")(MEDIA)
    check(batch.pack(capacity=256, max_media=9), batch, capacity=256, max_media=9)
    n = len(batch.pixel_values)
    check(batch.pack(capacity=n, max_media=6), batch, capacity=n, max_media=6)
    check(batch.pack(), batch, capacity=1024, max_media=256)


grids = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 200), st.integers(1, 200)), max_size=6)


@properties
@given(grids, st.integers(0, 3), st.integers(0, 3), st.sampled_from([1, 2, 3]))
def test_every_mix_of_images_and_chunks(sizes, more_tokens, more_media, merge):
    merge = merge if sizes else 2  # no media, no merge: a pack is taken for one of Kimi's
    config = dataclasses.replace(KIMI_K25, merge_kernel_size=merge, in_patch_limit=60, in_patch_limit_each_frame=40)
    config = dataclasses.replace(config, patch_limit_on_one_side=12)
    plans = [plan(*size, config) for size in sizes]
    kernel = merge * merge
    capacity = max(kernel, sum(p.num_patches for p in plans) + more_tokens * kernel)
    max_media = max(1, len(plans) + more_media)
    got = pack_index(plans, capacity=capacity, max_media=max_media)
    want = by_loop(
        [p.grid_thw for p in plans],
        range(len(plans)),
        capacity=capacity,
        max_media=max_media,
        merge=config.merge_kernel_size,
    )
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert_bit_equal(got[name], value, what=name)


def test_videos_count_as_chunks_and_name_their_source():
    frames = list(noise(9, 30, 30, 3))
    batch = Preprocessor(KIMI_K25, backend="numpy")([MEDIA[0], {"type": "video_chunk", "video_chunk": frames[:4]}])
    batch = dataclasses.replace(batch, sources=(4, 7))
    assert batch.pack(max_media=3).sources.tolist() == [4, 7, -1]


def test_fixed_output_tokens_do_not_change_the_tokens_of_a_pack():
    config = dataclasses.replace(KIMI_K25, fixed_output_tokens=7)
    index = pack_index([plan(0, 56, 56, config)], capacity=64)
    assert (int(index["num_tokens"]), int(index["token_ids"].max())) == (4, 16)


def test_an_empty_batch_is_an_empty_pack():
    batch = Preprocessor(KIMI_K25, backend="numpy")([])
    packed = batch.pack(capacity=8, max_media=1)
    check(packed, batch, capacity=8, max_media=1)
    assert packed.fill == 0.0


@pytest.mark.parametrize("merge", [1, 2, 3, 7])
def test_steps_of_the_capacity(merge):
    config = dataclasses.replace(KIMI_K25, merge_kernel_size=merge, in_patch_limit=10**6, patch_limit_on_one_side=10**4)
    kernel = merge * merge
    for side in (1, 400, 448, 500, 3000, 7000):
        plans = [plan(0, side, side, config)]
        capacity = pack_capacity(plans)
        assert capacity % kernel == 0
        assert capacity >= plans[0].num_patches
        steps = [step + -step % kernel for step in PACK_CAPACITIES]
        assert capacity == min(step for step in steps if step >= plans[0].num_patches)
    assert tuple(1024 * 2**i for i in range(13)) == PACK_CAPACITIES


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 4}, "the media have 8 patches, more than `capacity` = 4"),
        ({"capacity": 10}, "`capacity` is 10; expected a multiple of 4, `merge_kernel_size` squared"),
        ({"capacity": 0}, "`capacity` is 0; expected a positive whole number or None"),
        ({"capacity": 2**31}, "`capacity` is 2147483648; expected a number below"),
        ({"max_media": 1}, "there are 2 media, more than `max_media` = 1"),
        ({"max_media": -1}, "`max_media` is -1; expected a positive whole number or None"),
        ({"max_media": 10**400}, r"`max_media` is 1000.*; expected a number below 2\*\*31"),
    ],
)
def test_what_does_not_fit_is_an_error_with_both_numbers(options, message):
    batch = Preprocessor(KIMI_K25, backend="numpy")([noise(28, 28, 3), noise(28, 28, 3)])
    with pytest.raises(PlanError, match=message):
        batch.pack(**options)


def test_more_patches_than_the_largest_step():
    config = dataclasses.replace(KIMI_K25, in_patch_limit=10**8, patch_limit_on_one_side=10**4, patch_size=1)
    with pytest.raises(PlanError, match="the media have 9000000 patches, more than the largest step 4194304; pass"):
        pack_capacity([plan(0, 3000, 3000, config)])


def test_media_of_two_merge_sizes_are_no_pack():
    other = dataclasses.replace(KIMI_K25, merge_kernel_size=1)
    with pytest.raises(PlanError, match=r"`merge_kernel_size`; got \[1, 2\]"):
        pack_index([plan(0, 28, 28), plan(0, 28, 28, other)])


def test_pixels_that_fill_the_capacity_are_used_without_a_copy():
    plans = [plan(0, 28, 28)]
    pixel_values = np.zeros((8, 3, 14, 14), np.uint8)
    packed = PackedPatches(pixel_values, **pack_index(plans, capacity=8))
    assert packed.pixel_values is pixel_values
    assert (packed.capacity, packed.fill) == (8, 0.5)


def test_jax_arrays_are_packed_on_their_device():
    batch = Preprocessor(KIMI_K25, backend="numpy")(MEDIA)
    packed = pack_patches(jax.device_put(batch.pixel_values), batch.plans, capacity=256, sources=batch.sources)
    assert isinstance(packed.pixel_values, jax.Array)
    check(packed, batch, capacity=256, max_media=64)


def test_packs_and_batches_are_pytrees():
    batch = Preprocessor(KIMI_K25, backend="numpy")(MEDIA)
    packed = batch.pack(capacity=256, max_media=8)
    assert len(jax.tree.leaves(packed)) == len(dataclasses.fields(packed))
    pixel_values, grid_thws = jax.tree.leaves(batch)
    assert pixel_values is batch.pixel_values
    assert grid_thws is batch.grid_thws
    for tree in (packed, batch):
        on_device = jax.device_put(tree, jax.devices()[0])
        assert type(on_device) is type(tree)
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(on_device))
        back = jax.tree.map(np.asarray, on_device)
        assert_bit_equal(back.pixel_values, tree.pixel_values, what="back")
        doubled = jax.jit(lambda tree: jax.tree.map(lambda x: x + x, tree))(on_device)
        assert_bit_equal(doubled.pixel_values, tree.pixel_values * 2, what="jit")
    assert back.plans == batch.plans
    assert packed.num_patches.dtype == np.int32


def test_packs_can_be_donated_stacked_and_pickled():
    batch = Preprocessor(KIMI_K25, dtype="uint8", backend="numpy")(MEDIA)
    packed = batch.pack(capacity=256, max_media=8)
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), packed, packed)
    assert (stacked.pixel_values.shape, stacked.capacity) == ((2, 256, 3, 14, 14), 256)
    again = pickle.loads(pickle.dumps(packed))
    for one, other in zip(jax.tree.leaves(packed), jax.tree.leaves(again), strict=True):
        assert_bit_equal(one, other, what="pickled")
    passed = jax.jit(lambda p: p, donate_argnums=0)(jax.device_put(packed))
    assert_bit_equal(passed.pixel_values, packed.pixel_values, what="donated")


def test_one_compile_for_all_packs_of_one_capacity():
    traces = []

    @jax.jit
    def total(packed):
        traces.append(packed.pixel_values.shape)
        return jnp.where(packed.segment_ids[:, None, None, None] > 0, packed.pixel_values.astype(jnp.int32), 0).sum()

    prep = Preprocessor(KIMI_K25, dtype="uint8", backend="numpy")
    for media in (MEDIA, MEDIA[:1], MEDIA[3:], []):
        batch = prep(media)
        assert int(total(batch.pack(capacity=256))) == int(batch.pixel_values.sum(dtype=np.int64))
    assert len(traces) == 1


def test_the_merge_of_hidden_states_is_that_of_a_loop():
    batch = Preprocessor(KIMI_K25, backend="numpy")(MEDIA)
    packed = batch.pack(capacity=256, max_media=9)
    # Whole numbers and t of 1, 2 and 4 would be exact anyway; the order of the sum is the same for 3.
    hidden = np.random.default_rng(0).integers(0, 1000, (256, 5)).astype(np.float32)
    t = packed.grid_thws[:, 0][packed.segment_ids - 1]
    weighted = jnp.where(packed.segment_ids[:, None] > 0, hidden / np.maximum(t, 1)[:, None], 0)
    merged = jax.ops.segment_sum(weighted, packed.token_ids * 4 + packed.kernel_ids, num_segments=256)
    merged = np.asarray(merged).reshape(64, 20)
    want, start = [], 0
    for frames, h, w in batch.grid_thws.tolist():
        part = hidden[start : start + frames * h * w].reshape(frames, h // 2, 2, w // 2, 2, 5)
        mean = np.zeros(part.shape[1:], np.float32)
        for frame in part:
            mean += frame / np.float32(frames)
        want.append(mean.transpose(0, 2, 1, 3, 4).reshape(-1, 20))
        start += frames * h * w
    want = np.concatenate(want)
    assert_bit_equal(merged[: len(want)], want, what="merged")
    assert not merged[len(want) :].any()
    assert packed.token_segment_ids[: len(want)].all()


def test_segments_are_those_of_grains_packing():
    grain = pytest.importorskip("grain", reason="grain is an extra")
    batch = Preprocessor(KIMI_K25, dtype="uint8", backend="numpy")(MEDIA)
    elements = [{"patches": patches} for patches in batch.split()]
    source = grain.MapDataset.source(elements).to_iter_dataset()
    packs = grain.experimental.FirstFitPackIterDataset(source, length_struct={"patches": 256}, num_packing_bins=1)
    (theirs,) = list(packs)
    ours = batch.pack(capacity=256)
    assert_bit_equal(ours.pixel_values, theirs["patches"], what="patches")
    assert_bit_equal(ours.segment_ids, theirs["patches_segment_ids"], what="segment ids")
    # Grain counts patches, we count frames, rows and columns: both start at 0 in each medium.
    starts = ours.cu_seqlens[: int(ours.num_media)]
    assert not ours.positions[starts].any()
    assert not theirs["patches_positions"][starts].any()


WITHOUT_JAX = """
import sys
sys.modules["jax"] = None  # importing it fails
import numpy as np
from kimi_jax_prep.batch import PatchBatch
from kimi_jax_prep import KIMI_K25, plan_image
plan = plan_image(width=28, height=28, config=KIMI_K25)
batch = PatchBatch(np.ones((4, 3, 14, 14), np.uint8), np.array([[1, 2, 2]]), (plan,), (0,), (None,))
packed = batch.pack(capacity=8)
assert packed.segment_ids.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
del sys.modules["jax"]
import jax
from kimi_jax_prep.packed import register_pytrees
assert len(jax.tree.leaves(packed)) == 1
register_pytrees()
assert len(jax.tree.leaves(packed)) == 12
assert len(jax.tree.leaves(batch)) == 2
"""


def test_packing_needs_no_jax_and_pytrees_are_registered_later():
    done = subprocess.run([sys.executable, "-W", "error", "-c", WITHOUT_JAX], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
