"""Every legal number has an answer or a PlanError: sizes and rates near the limits of int32 and float64."""

import dataclasses
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_jax_prep import KIMI_K25, MediaProcConfig, PlanError, plan_chunk, plan_image, plan_video
from kimi_jax_prep.plan import MAX_SAMPLED_FRAMES, MediaPlan, format_timestamp, sample_frames

unchecked = pytest.mark.usefixtures("unchecked")
properties = settings(derandomize=True, database=None, deadline=None, max_examples=500)

# Small numbers, those near the limits of int32, of float64's whole numbers and of float64 itself, and longer ones.
edge = st.sampled_from([2**31, 2**32, 2**53, 2**63, 2**1023, 2**1024, 10**400])
whole = st.one_of(st.integers(1, 5000), st.builds(lambda n, d: max(1, n + d), edge, st.integers(-2, 2)))
rate = st.one_of(
    st.floats(min_value=5e-324, allow_infinity=False, exclude_min=False, allow_subnormal=True),
    st.sampled_from([5e-324, 1e-320, 1e-308, 1e-300, 1e300, 1.7e308, 0.1, 29.97]),
)
keys = st.fixed_dictionaries(
    {
        **dict.fromkeys(("in_patch_limit", "patch_limit_on_one_side", "patch_size", "merge_kernel_size"), whole),
        **dict.fromkeys(("fixed_output_tokens", "in_patch_limit_each_frame"), st.none() | whole),
        **dict.fromkeys(("in_patch_limit_video", "max_num_frames_each_video"), st.none() | whole),
        "sample_fps": rate,
        "temporal_merge_kernel_size": whole,
    }
)


def check_plan(plan: MediaPlan, width: int, height: int, config: MediaProcConfig) -> None:
    t, rows, columns = plan.grid_thw
    assert 1 <= plan.width <= width
    assert 1 <= plan.height <= height
    patch, merge = config.patch_size, config.merge_kernel_size
    assert (plan.width + plan.pad_right, plan.height + plan.pad_bottom) == (columns * patch, rows * patch)
    assert (rows % merge, columns % merge) == (0, 0)
    assert plan.num_tokens == (config.fixed_output_tokens or rows * columns // merge**2)
    assert plan.num_patches == t * rows * columns


@properties
@given(keys, whole, whole, whole)
def test_every_legal_number_has_a_plan_or_a_plan_error(values, width, height, num_frames):
    config = MediaProcConfig(**values)
    for make in (
        lambda: plan_image(width=width, height=height, config=config),
        lambda: plan_chunk(width=width, height=height, num_frames=num_frames, config=config),
    ):
        try:
            plan = make()
        except PlanError:
            continue
        check_plan(plan, width, height, config)


@properties
@given(keys, whole, rate | st.fractions(min_value=Fraction(1, 10**6)) | whole)
@unchecked
def test_every_legal_rate_is_sampled_or_a_plan_error(values, num_frames, fps):
    config = MediaProcConfig(**values)
    # What comes out is bounded here, so that the test is fast; the bound itself is tested below.
    config = dataclasses.replace(config, max_num_frames_each_video=min(config.max_num_frames_each_video or 50, 50))
    try:
        chunks = plan_video(num_frames=num_frames, fps=fps, width=30, height=40, config=config)
    except PlanError:
        return
    indices = [i for chunk in chunks for i in chunk.frame_indices]
    assert indices[0] == 0
    assert indices[-1] == (num_frames - 1 if len(indices) > 1 else 0)
    assert indices == sorted(indices)
    assert len(indices) == max(1, min(50, len(indices)))


@pytest.mark.parametrize("num_frames", [MAX_SAMPLED_FRAMES + 1, 2**31, 2**53, 10**300], ids=lambda n: f"{n:.0e}")
def test_more_frames_than_fit_are_an_error_and_no_endless_list(num_frames):
    with pytest.raises(PlanError, match=r"sampled frames, more than 1048576; set `max_num_frames_each_video`"):
        sample_frames(num_frames=num_frames, fps=2.0, config=KIMI_K25)
    few = dataclasses.replace(KIMI_K25, max_num_frames_each_video=3)
    assert sample_frames(num_frames=num_frames, fps=2.0, config=few)[::2] == (0, num_frames - 1)


def test_the_most_frames_are_sampled():
    assert len(sample_frames(num_frames=MAX_SAMPLED_FRAMES, fps=2.0, config=KIMI_K25)) == MAX_SAMPLED_FRAMES


@pytest.mark.parametrize(
    ("num_frames", "fps", "sample_fps", "count"),
    [
        (3, 1e-308, 2.0, 3),
        (3, 5e-324, 5e-324, 3),
        (100, 1e308, 1e307, 10),
        (100, 1e308, 1e308, 100),
        (10**300, 1e300, 1e10, None),
    ],
)
def test_products_beyond_float64(num_frames, fps, sample_fps, count):
    config = dataclasses.replace(KIMI_K25, sample_fps=sample_fps)
    if count is None:
        with pytest.raises(PlanError, match="sampled frames, more than"):
            sample_frames(num_frames=num_frames, fps=fps, config=config)
    else:
        assert len(sample_frames(num_frames=num_frames, fps=fps, config=config)) == count


def test_a_time_beyond_float64_is_an_error():
    with pytest.raises(PlanError, match="frame 4 at `fps` = 1e-308 has a time beyond float64"):
        plan_video(num_frames=9, fps=1e-308, width=28, height=28, config=KIMI_K25)
    with pytest.raises(PlanError, match="`seconds` is nan"):
        format_timestamp(math.nan, timestamp_mode="mm:ss")
    with pytest.raises(PlanError, match="`timestamp_mode` is 'ss'"):
        format_timestamp(1.0, timestamp_mode="ss")


@pytest.mark.parametrize("fps", [10**400, Fraction(10**400), Fraction(1, 10**400)], ids=["int", "large", "small"])
@unchecked
def test_rates_beyond_float64_are_errors(fps):
    with pytest.raises(PlanError, match=r"`fps` is .*finite number above 0"):
        plan_video(num_frames=3, fps=fps, width=28, height=28, config=KIMI_K25)


def test_sizes_beyond_float64_are_errors():
    with pytest.raises(PlanError, match=r"`width` is 1000.*; expected a number within float64"):
        plan_image(width=10**400, height=1, config=KIMI_K25)
    with pytest.raises(PlanError, match="`height` is a whole number of about 5000 digits"):
        plan_image(width=1, height=10**5000, config=KIMI_K25)
    huge = dataclasses.replace(KIMI_K25, in_patch_limit=10**400, patch_limit_on_one_side=10**400)
    assert plan_image(width=2**53 + 1, height=30, config=huge).width == 2**53 + 1


@pytest.mark.parametrize("config", [None, 3, [KIMI_K25]])
@unchecked
def test_a_wrong_config_is_named(config):
    for plan in (
        lambda: plan_image(width=1, height=1, config=config),
        lambda: plan_chunk(width=1, height=1, num_frames=1, config=config),
        lambda: plan_video(width=1, height=1, num_frames=1, fps=1.0, config=config),
        lambda: sample_frames(num_frames=1, fps=1.0, config=config),
    ):
        with pytest.raises(TypeError, match="`config` is a MediaProcConfig such as KIMI_K25"):
            plan()
