"""Sizes, token counts, video sampling: the recorded answers, and what must hold for every size."""

import dataclasses
import itertools
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_jax_prep import KIMI_K3, KIMI_K25, PlanError, plan_chunk, plan_image, plan_video
from kimi_jax_prep.plan import (
    CAPACITIES,
    MediaPlan,
    format_timestamp,
    patch_capacity,
    sample_frames,
    total_patches,
)

GOLDEN = Path(__file__).parent / "golden"
ROWS = json.loads((GOLDEN / "geometry.json").read_text())["rows"]
VIDEOS = json.loads((GOLDEN / "video.json").read_text())["videos"]
unchecked = pytest.mark.usefixtures("unchecked")
properties = settings(derandomize=True, database=None, deadline=None, max_examples=300)
side = st.one_of(st.integers(1, 60), st.integers(1, 9000), st.integers(1, 10**7))


def numbers(plan: MediaPlan) -> list[int]:
    return [plan.width, plan.height, plan.pad_right, plan.pad_bottom, plan.num_tokens]


def budget(limit: int, **more):
    return dataclasses.replace(KIMI_K25, in_patch_limit=limit, **more)


def test_all_recorded_sizes():
    assert len(ROWS) == 421
    wrong = []
    for width, height, k25, k3, frame in ROWS:
        plans = [plan_image(width=width, height=height, config=config) for config in (KIMI_K25, KIMI_K3)]
        plans.append(plan_chunk(width=width, height=height, num_frames=1, config=KIMI_K25))
        if [numbers(plan) for plan in plans] != [k25, k3, frame]:
            wrong.append((width, height, plans))
    assert wrong == []


@pytest.mark.parametrize("video", VIDEOS, ids=lambda v: f"{v['num_frames']}-{v['fps']}-{v['timestamp_mode']}")
def test_all_recorded_videos(video):
    config = dataclasses.replace(KIMI_K25, timestamp_mode=video["timestamp_mode"])
    chunks = plan_video(num_frames=video["num_frames"], fps=video["fps"], width=448, height=448, config=config)
    assert [[list(c.frame_indices), c.timestamp] for c in chunks] == video["chunks"]
    for chunk in chunks:
        assert chunk.plan.grid_thw == (len(chunk.frame_indices), 32, 32)
        assert chunk.prompt == (f"{chunk.timestamp}<|media_begin|>video<|media_content|><|media_pad|><|media_end|>")


@pytest.mark.parametrize(
    ("width", "height", "config", "grid", "tokens"),
    [
        (224, 224, KIMI_K25, (1, 16, 16), 64),
        (448, 449, KIMI_K25, (1, 34, 32), 272),
        (29, 28, KIMI_K25, (1, 2, 4), 2),
        (1024, 768, KIMI_K25, (1, 56, 74), 1036),
        (4000, 3000, KIMI_K25, (1, 112, 150), 4200),
        (2048, 2048, KIMI_K25, (1, 130, 130), 4225),
        (4000, 3000, KIMI_K3, (1, 216, 286), 15444),
        (1, 1, KIMI_K25, (1, 2, 2), 1),
        (499, 1, KIMI_K25, (1, 2, 36), 18),
        (1, 499, KIMI_K25, (1, 36, 2), 18),
        (8000, 1, KIMI_K25, (1, 2, 512), 256),
        (30000, 10, KIMI_K25, (1, 2, 512), 256),
    ],
)
def test_sizes_from_the_field(width, height, config, grid, tokens):
    plan = plan_image(width=width, height=height, config=config)
    assert (plan.grid_thw, plan.num_tokens, plan.num_patches) == (grid, tokens, grid[1] * grid[2])


@pytest.mark.parametrize(
    ("width", "height", "frames", "size", "grid", "tokens"),
    [
        (1920, 1080, 4, (1196, 672), (4, 48, 86), 1032),
        (1280, 720, 4, (1202, 676), (4, 50, 86), 1075),
        (448, 448, 3, (448, 448), (3, 32, 32), 256),
    ],
)
def test_chunks_from_the_field(width, height, frames, size, grid, tokens):
    plan = plan_chunk(width=width, height=height, num_frames=frames, config=KIMI_K25)
    assert ((plan.width, plan.height), plan.grid_thw, plan.num_tokens) == (size, grid, tokens)
    assert plan.num_patches == math.prod(grid)


@pytest.mark.parametrize(
    ("limit", "width", "height", "patches"),
    [(4096, 6761, 153, 5352), (16384, 7088, 489, 17856), (65536, 1917, 7489, 67320)],
)
def test_padding_goes_over_the_budget(limit, width, height, patches):
    assert plan_image(width=width, height=height, config=budget(limit)).num_patches == patches
    assert plan_image(width=height, height=width, config=budget(limit)).num_patches == patches


@properties
@given(side, side, st.sampled_from([(4096, 5352), (16384, 17856), (65536, 67320)]))
def test_no_size_pads_to_more_than_the_worst_known(width, height, limit_and_worst):
    limit, worst = limit_and_worst
    assert plan_image(width=width, height=height, config=budget(limit)).num_patches <= worst


@properties
@given(side, side, st.integers(1, 4), st.integers(1, 70000), st.integers(1, 300).map(lambda n: 2 * n))
def test_every_plan(width, height, num_frames, limit, side_limit):
    config = budget(limit, in_patch_limit_each_frame=limit, patch_limit_on_one_side=side_limit)
    plan = plan_chunk(width=width, height=height, num_frames=num_frames, config=config)
    assert 1 <= plan.width <= width
    assert 1 <= plan.height <= height
    assert 0 <= plan.pad_right < 28
    assert 0 <= plan.pad_bottom < 28
    t, rows, columns = plan.grid_thw
    assert (plan.width + plan.pad_right, plan.height + plan.pad_bottom) == (columns * 14, rows * 14)
    assert (rows % 2, columns % 2, t) == (0, 0, num_frames)
    assert max(rows, columns) <= side_limit
    assert plan.num_tokens * 4 * num_frames == plan.num_patches
    assert total_patches([plan, plan]) == 2 * t * rows * columns
    image = plan_image(width=width, height=height, config=config)
    assert (numbers(image), image.grid_thw) == (numbers(plan), (1, rows, columns))
    turned = plan_image(width=height, height=width, config=config)
    assert turned.grid_thw == (1, columns, rows)


@properties
@given(side, side)
def test_what_fits_is_left_alone(width, height):
    plan = plan_image(width=width, height=height, config=KIMI_K3)
    if width <= 7168 and height <= 7168 and (width // 14) * (height // 14) <= 65536:
        assert (plan.width, plan.height) == (width, height)
    else:
        assert plan.width < width or plan.height < height


def test_an_odd_side_limit_is_an_error_unless_tokens_are_fixed():
    odd = budget(16384, patch_limit_on_one_side=511)
    with pytest.raises(PlanError, match=r"9000x100 pads to 512x6 patches.*`patch_limit_on_one_side` = 511.*multiple"):
        plan_image(width=9000, height=100, config=odd)
    assert plan_image(width=900, height=100, config=odd).grid_thw == (1, 8, 66)
    fixed = plan_image(width=9000, height=100, config=dataclasses.replace(odd, fixed_output_tokens=77))
    assert (fixed.grid_thw, fixed.num_tokens) == ((1, 6, 512), 77)


def test_fixed_output_tokens_change_the_count_only():
    plan = plan_image(width=4000, height=3000, config=KIMI_K25)
    fixed = plan_image(width=4000, height=3000, config=dataclasses.replace(KIMI_K25, fixed_output_tokens=9))
    assert fixed == dataclasses.replace(plan, num_tokens=9)


@pytest.mark.parametrize(
    ("video", "each_frame", "frames", "limit"),
    [
        (10000, 4096, 4, 2500),
        (10000, 4096, 1, 4096),
        (10002, 4096, 4, 2500),
        (10006, 4096, 4, 2502),
        (999, None, 3, 333),
    ],
)
def test_the_budget_of_a_video_is_shared_by_its_frames(video, each_frame, frames, limit):
    config = budget(16384, in_patch_limit_video=video, in_patch_limit_each_frame=each_frame)
    plan = plan_chunk(width=1920, height=1080, num_frames=frames, config=config)
    assert numbers(plan) == numbers(plan_image(width=1920, height=1080, config=budget(limit)))


def test_a_frame_without_a_budget_of_its_own_has_the_images():
    config = dataclasses.replace(KIMI_K25, in_patch_limit_each_frame=None)
    frame = plan_chunk(width=4000, height=3000, num_frames=1, config=config)
    assert frame == plan_image(width=4000, height=3000, config=config)


@properties
@given(st.integers(1, 5000), st.floats(0.01, 240), st.one_of(st.none(), st.integers(1, 40)))
def test_every_sampling(num_frames, fps, most):
    config = dataclasses.replace(KIMI_K25, max_num_frames_each_video=most)
    indices = sample_frames(num_frames=num_frames, fps=fps, config=config)
    count = max(round(num_frames * min(2.0, fps) / fps), 1)
    count = count if most is None else min(count, most)
    expected = np.linspace(0, num_frames - 1, count).round().astype(int).tolist()
    assert list(indices) == expected
    chunks = plan_video(num_frames=num_frames, fps=fps, width=56, height=28, config=config)
    assert [i for c in chunks for i in c.frame_indices] == expected
    assert all(len(c.frame_indices) == 4 for c in chunks[:-1])


def test_nine_sampled_frames_make_three_chunks():
    chunks = plan_video(num_frames=9, fps=2.0, width=448, height=448, config=KIMI_K25)
    assert [c.plan.grid_thw for c in chunks] == [(4, 32, 32), (4, 32, 32), (1, 32, 32)]
    assert [c.plan.num_tokens for c in chunks] == [256, 256, 256]


@pytest.mark.parametrize(
    ("seconds", "mode", "text"),
    [
        (0.0, "hh:mm:ss.fff", "00:00:00.000"),
        (3599.9999, "hh:mm:ss.fff", "00:59:59.999"),
        (86400.5, "hh:mm:ss.fff", "00:00:00.500"),
        (3661.25, "mm:ss.fff", "01:01.250"),
        (3661.25, "mm:ss", "01:01"),
        (1e300, "mm:ss", format_timestamp(1e300 % 86400, timestamp_mode="mm:ss")),
    ],
)
def test_timestamps(seconds, mode, text):
    assert format_timestamp(seconds, timestamp_mode=mode) == text


@properties
@given(st.integers(1, CAPACITIES[-1]), st.integers(0, 5000))
def test_capacities_hold_what_they_are_asked_for(num_patches, more):
    capacity = patch_capacity(num_patches)
    assert num_patches <= capacity
    assert capacity in CAPACITIES
    assert capacity <= patch_capacity(num_patches + more)
    assert patch_capacity(capacity) == capacity


def test_capacities_are_few_and_near():
    assert all(c % 32 == 0 for c in CAPACITIES)
    for rung, following in itertools.pairwise(CAPACITIES):
        assert rung < following <= rung * 5 / 4 + 32
        assert patch_capacity(rung + 1) == following
    assert patch_capacity(1) == CAPACITIES[0] == 256
    assert patch_capacity(CAPACITIES[-1] + 1) == CAPACITIES[-1]
    assert len(CAPACITIES) <= 40


NOT_SIZES = [0, -1, True, 14.0, "14", None, math.nan, [14]]


@pytest.mark.parametrize("value", NOT_SIZES, ids=repr)
@pytest.mark.parametrize("name", ["width", "height", "num_frames"])
@unchecked
def test_sizes_are_positive_whole_numbers(name, value):
    sizes = {"width": 28, "height": 28, "num_frames": 1} | {name: value}
    calls = [(plan_chunk, sizes), (plan_video, sizes | {"fps": 30.0})]
    if name != "num_frames":
        calls.append((plan_image, {k: sizes[k] for k in ("width", "height")}))
    for plan, arguments in calls:
        with pytest.raises(PlanError) as caught:
            plan(config=KIMI_K25, **arguments)
        assert f"`{name}` is {value!r}; expected a positive whole number" in str(caught.value)


@pytest.mark.parametrize("fps", [0, 0.0, -1.0, True, "30", None, math.nan, math.inf, 1j], ids=repr)
@unchecked
def test_a_rate_is_a_finite_number_above_0(fps):
    with pytest.raises(PlanError) as caught:
        plan_video(num_frames=3, fps=fps, width=28, height=28, config=KIMI_K25)
    assert f"`fps` is {fps!r}; expected a finite number above 0" in str(caught.value)


@pytest.mark.parametrize("fps", [30, np.float64(30), np.float32(30), np.int64(30), Fraction(30)], ids=repr)
@unchecked
def test_rates_of_every_numeric_type(fps):
    sizes = {"num_frames": 99, "width": 56, "height": 28, "config": KIMI_K25}
    assert plan_video(fps=fps, **sizes) == plan_video(fps=30.0, **sizes)


def test_a_chunk_has_at_most_four_frames():
    with pytest.raises(PlanError, match=r"1 to 4 frames.*got 5"):
        plan_chunk(width=28, height=28, num_frames=5, config=KIMI_K25)


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.uint32, np.int64])
@unchecked
def test_numpy_integers_are_whole_numbers(kind):
    plan = plan_chunk(width=kind(100), height=kind(60), num_frames=kind(2), config=KIMI_K25)
    assert plan == plan_chunk(width=100, height=60, num_frames=2, config=KIMI_K25)
    assert {type(n) for n in (*numbers(plan), *plan.grid_thw)} == {int}


def test_plans_are_hashable():
    plan, again = (plan_image(width=30, height=40, config=KIMI_K25) for _ in range(2))
    assert len({plan, again}) == 1
