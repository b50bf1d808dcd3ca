"""Pad + look-up + patchify in every mode of running it, its inverse, and the whole pure function."""

import dataclasses

import einops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image

from kimi_jax_prep import (
    KIMI_K3,
    KIMI_K25,
    PlanError,
    normalize,
    normalize_lut,
    patchify,
    plan_chunk,
    plan_image,
    preprocess_frames,
    reference,
    unpatchify,
)

DTYPES = ["float32", "bfloat16", "float16", "uint8"]
MODES = {"eager": lambda f: f, "jit": jax.jit, "vmap": lambda f: lambda x: jax.vmap(f)(x[None])[0]}
# (height, width): unit, thin, 28 and beside it, primes, the side limit
SIZES = [(1, 1), (1, 997), (27, 29), (28, 28), (29, 56), (211, 307), (7168, 1)]
CLIP = dataclasses.replace(
    KIMI_K25, image_mean=(0.48145466, 0.4578275, 0.40821073), image_std=(0.26862954, 0.26130258, 0.27577711)
)
LUT = normalize_lut(CLIP)
every_mode = pytest.mark.parametrize("mode", MODES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).integers(0, 256, shape, np.uint8)


def padded(frames: np.ndarray) -> np.ndarray:
    *_, height, width, _ = frames.shape
    around = [(0, 0)] * (frames.ndim - 3) + [(0, -height % 28), (0, -width % 28), (0, 0)]
    return np.pad(frames, around)


def laid_out(frames: np.ndarray) -> np.ndarray:
    return einops.rearrange(frames, "t (r p) (k q) c -> (t r k) c p q", p=14, q=14)


def table_of(dtype: str, config=CLIP) -> np.ndarray | None:
    return None if dtype == "uint8" else normalize_lut(config, dtype=dtype)


def looked_up(frames: np.ndarray, dtype: str, config=CLIP) -> np.ndarray:
    return frames if dtype == "uint8" else normalize_lut(config, dtype=dtype)[frames, np.arange(3)]


@every_mode
@pytest.mark.parametrize("size", SIZES, ids=lambda s: "x".join(map(str, s)))
def test_patchify_is_the_stated_layout(mode, size):
    frames = noise(2, *size, 3)
    want = laid_out(looked_up(padded(frames), "float32"))
    got = MODES[mode](lambda x: patchify(x, LUT))(jnp.asarray(frames))
    assert_bit_equal(got, want, what=f"{mode} {size}")


@every_mode
@every_dtype
def test_patchify_in_every_dtype(mode, dtype):
    frames = noise(30, 57, 3)
    want = laid_out(looked_up(padded(frames)[None], dtype))
    got = MODES[mode](lambda x: patchify(x, table_of(dtype)))(frames)
    assert_bit_equal(got, want, what=f"{mode} {dtype}")


def test_a_table_of_bytes_gives_the_bytes():
    frames = noise(28, 28, 3)
    got = patchify(frames, normalize_lut(KIMI_K25, dtype="uint8"))
    assert_bit_equal(got, patchify(frames, None), what="table of bytes")


def test_the_table_may_be_an_argument_of_the_program():
    frames = noise(28, 30, 3)
    assert_bit_equal(jax.jit(patchify)(frames, LUT), patchify(frames, LUT), what="traced table")


def test_all_leading_axes_are_frames():
    frames = noise(2, 3, 28, 29, 3)
    assert_bit_equal(patchify(frames, LUT), patchify(frames.reshape(6, 28, 29, 3), LUT), what="leading axes")


@pytest.mark.parametrize(("patch_size", "merge"), [(14, 1), (7, 2), (4, 3), (1, 1)])
def test_other_patch_sizes(patch_size, merge):
    frames, token = noise(30, 41, 3), patch_size * merge
    full = np.pad(frames, ((0, -30 % token), (0, -41 % token), (0, 0)))
    want = einops.rearrange(full, "(r p) (k q) c -> (r k) c p q", p=patch_size, q=patch_size)
    got = patchify(frames, None, patch_size=patch_size, merge_kernel_size=merge)
    assert_bit_equal(got, want, what=f"{patch_size} {merge}")


def test_one_trace_for_one_shape():
    traces = []

    def spy(frames, lut):
        traces.append(frames.shape)  # runs only while tracing
        return patchify(frames, lut)

    compiled = jax.jit(spy)
    for height, width in [(30, 40), (56, 56), (30, 40), (30, 40), (56, 56)]:
        compiled(noise(height, width, 3), LUT)
    assert traces == [(30, 40, 3), (56, 56, 3)]


def test_eager_calls_of_one_shape_compile_once(caplog):
    frames = noise(31, 43, 3)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        patchify(frames, LUT)
        first = len(caplog.records)
        patchify(frames, LUT)
    assert 0 < first == len(caplog.records)


def test_patches_are_row_by_row_not_grouped_by_four():
    # smg-project/smg#1097: Qwen's order has the same shape.
    image = np.kron(np.arange(0, 80, 10, dtype=np.uint8).reshape(2, 4), np.ones((14, 14), np.uint8))
    lut = normalize_lut(KIMI_K25)
    patches = patchify(np.repeat(image[..., None], 3, axis=2), lut)
    want = np.broadcast_to(lut[0:80:10, 0].reshape(8, 1, 1, 1), (8, 3, 14, 14))
    assert_bit_equal(patches, want, what="order")


@every_dtype
@pytest.mark.parametrize("config", [KIMI_K25, CLIP], ids=["half", "clip"])
def test_unpatchify_is_the_inverse(dtype, config):
    frames = noise(2, 29, 60, 3)
    frames[0, :16, :16] = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    lut = table_of(dtype, config)
    patches = patchify(frames, lut)
    if (dtype, config) == ("bfloat16", CLIP):
        # Some bytes share a value; any of them is an inverse.
        assert_bit_equal(patchify(unpatchify(patches, (2, 4, 6), lut), lut), patches, what=dtype)
        return
    assert_bit_equal(unpatchify(patches, (2, 4, 6), lut), padded(frames), what=dtype)
    again = unpatchify(np.asarray(patches), np.array([2, 4, 6]), lut)
    assert_bit_equal(again, padded(frames), what=f"{dtype} from NumPy")


@pytest.mark.parametrize("config", [KIMI_K25, CLIP], ids=["half", "clip"])
def test_unpatchify_goes_to_the_nearer_byte(config):
    lut = normalize_lut(config)
    bytes_ = np.arange(256, dtype=np.uint8)
    frames = np.repeat(np.resize(bytes_, (28, 28))[..., None], 3, axis=2)
    step = np.float32(np.diff(lut, axis=0).min() * 0.4)
    for shift in (-step, step):
        moved = np.asarray(patchify(frames, lut)) + shift
        assert_bit_equal(unpatchify(moved, (1, 2, 2), lut), frames[None], what=f"{shift}")
    far = np.full((4, 3, 14, 14), np.inf, np.float32)
    for sign, byte in ((1, 255), (-1, 0)):
        assert_bit_equal(unpatchify(sign * far, (1, 2, 2), lut), np.full((1, 28, 28, 3), byte, np.uint8), what="inf")


# Each shape: an image that stays, one that is only padded, one that shrinks, chunks that stay and shrink.
SHAPES = [(28, 56, 3), (30, 41, 3), (210, 301, 3), (4, 28, 41, 3), (3, 210, 301, 3), (1, 210, 301, 3)]


def small(config):
    return dataclasses.replace(config, in_patch_limit=150, in_patch_limit_each_frame=60)


def reference_of(frames: np.ndarray, config) -> np.ndarray:
    media = frames if frames.ndim == 3 else {"type": "video_chunk", "video_chunk": list(frames)}
    return reference.preprocess([media], config).pixel_values


@every_mode
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_preprocess_frames_is_the_reference(mode, shape):
    frames, config = noise(*shape), small(CLIP)
    got = MODES[mode](lambda x: preprocess_frames(x, config=config))(frames)
    assert_bit_equal(got, reference_of(frames, config), what=f"{mode} {shape}")


@every_dtype
@pytest.mark.parametrize("config", [KIMI_K25, KIMI_K3], ids=["K2.5", "K3"])
def test_preprocess_frames_in_every_dtype(dtype, config):
    frames, config = noise(210, 301, 3), small(config)
    plan = plan_image(width=301, height=210, config=config)
    resized = Image.fromarray(frames).resize((plan.width, plan.height), Image.Resampling.BICUBIC)
    want = laid_out(looked_up(padded(np.asarray(resized))[None], dtype, config))
    assert_bit_equal(preprocess_frames(frames, config=config, dtype=dtype), want, what=dtype)


@every_mode
@every_dtype
def test_x64_changes_nothing(mode, dtype):
    frames, config = noise(2, 90, 61, 3), small(CLIP)

    grid = plan_chunk(width=61, height=90, num_frames=2, config=config).grid_thw

    def there(x):
        return preprocess_frames(x, config=config, dtype=dtype)

    def back(x):
        return unpatchify(x, grid, table_of(dtype))

    results = {}
    for wide in (False, True):
        with jax.enable_x64(wide):
            patches = np.asarray(MODES[mode](there)(frames))
            results[wide] = patches, np.asarray(MODES[mode](back)(patches))
    for off, on in zip(results[False], results[True], strict=True):
        assert_bit_equal(on, off, what=f"{mode} {dtype}")


def exported(function, *shapes) -> str:
    args = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    return jax.export.export(jax.jit(function), platforms=("cpu", "cuda", "tpu"))(*args).mlir_module()


@every_dtype
def test_export_lowers_for_every_platform_without_custom_calls(dtype):
    config = small(KIMI_K25)
    text = exported(lambda x: preprocess_frames(x, config=config, dtype=dtype), ((210, 301, 3), jnp.uint8))
    assert "stablehlo.gather" in text or dtype == "uint8"
    assert "stablehlo.custom_call" not in text


def test_the_export_probe_sees_custom_calls():
    assert "stablehlo.custom_call" in exported(jnp.linalg.qr, ((3, 3), jnp.float32))


@pytest.mark.parametrize("call", [lambda x: patchify(x, LUT), lambda x: preprocess_frames(x, config=KIMI_K25)])
@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (np.zeros((28, 28, 3), np.float32), r"`frames` must be a uint8 array \(.*h, w, 3\); got float32 \(28, 28, 3\)"),
        (np.zeros((28, 28, 3), bool), "; got bool"),
        ([[[0, 0, 0]]], r"; got list \[\[\[0, 0, 0\]\]\]"),
        (None, "; got NoneType None"),
        (np.zeros((28, 28), np.uint8), r"\(28, 28\)"),
        (np.zeros((3, 28, 28), np.uint8), r"\(3, 28, 28\)"),
        (np.zeros((28, 28, 4), np.uint8), r"\(28, 28, 4\)"),
        (np.zeros((0, 28, 3), np.uint8), r"no empty axis; got uint8 \(0, 28, 3\)"),
        (np.zeros((0, 28, 28, 3), np.uint8), r"\(0, 28, 28, 3\)"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_frames(call, frames, message):
    with pytest.raises(PlanError, match=message):
        call(frames)


@pytest.mark.usefixtures("unchecked")
def test_bad_frames_are_seen_while_tracing():
    with pytest.raises(PlanError, match=r"\(28, 28, 4\)"):
        jax.eval_shape(lambda x: preprocess_frames(x, config=KIMI_K25), jax.ShapeDtypeStruct((28, 28, 4), jnp.uint8))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: patchify(noise(28, 28, 3), LUT.T), r"`lut` must be an array of shape \(256, 3\).*\(3, 256\)"),
        (lambda: patchify(noise(28, 28, 3), LUT, patch_size=0), "`patch_size` is 0"),
        (lambda: patchify(noise(28, 28, 3), LUT, patch_size=True), "`patch_size` is True"),
        (lambda: patchify(noise(28, 28, 3), LUT, merge_kernel_size=-2), "`merge_kernel_size` is -2"),
        (lambda: preprocess_frames(noise(28, 28, 3), config=KIMI_K25, dtype="int8"), "`dtype` is 'int8'"),
        (lambda: preprocess_frames(noise(1, 1, 28, 28, 3), config=KIMI_K25), r"got shape \(1, 1, 28, 28, 3\)"),
        (lambda: preprocess_frames(noise(5, 28, 28, 3), config=KIMI_K25), "1 to 4 frames.*got 5"),
        (lambda: unpatchify(noise(4, 3, 14, 14), (1, 2, 3), None), r"needs an array of patches \(6, 3, p, p\)"),
        (lambda: unpatchify(noise(4, 3, 14, 14), (-1, -2, 2), None), "`grid_thw` is -1"),
        (lambda: unpatchify(noise(4, 3, 14, 14), (1, 2, 2.5), None), "`grid_thw` is 2.5"),
        (
            lambda: unpatchify(noise(4, 3, 14, 14), (2, 2), None),
            r"`grid_thw` is \(2, 2\); expected three whole numbers",
        ),
        (lambda: unpatchify(noise(4, 3, 14, 14), (1, 2, 2), LUT.T), r"`lut` must be an array of shape \(256, 3\)"),
        (lambda: patchify(noise(28, 28, 3), LUT.tolist()), r"`lut` must be .* got list"),
        (lambda: patchify(noise(28, 28, 3), LUT.astype(str)), r"`lut` must be .* got <U"),
        (lambda: patchify(noise(28, 28, 3), None, patch_size=10**9), "the padded frames would have shape"),
        (lambda: patchify(noise(28, 28, 3), None, patch_size=10**400), "the padded frames would have shape"),
        (lambda: unpatchify(noise(4, 3, 14, 14), None, None), "`grid_thw` is None; expected three whole numbers"),
        (lambda: unpatchify(noise(4, 3, 14, 14), "122", None), "`grid_thw` is '122'; expected three whole numbers"),
        (lambda: unpatchify(None, (1, 2, 2), None), r"needs an array of patches \(4, 3, p, p\); got NoneType"),
        (lambda: unpatchify(noise(4, 3, 14, 14), (1, 2, 2), LUT), "needs float32 patches; got uint8 patches"),
        (lambda: unpatchify(LUT[:196].reshape(1, 3, 14, 14), (1, 1, 1), None), r"needs uint8 patches.*; got float32"),
        (lambda: normalize(noise(4, 3, 14, 14), None), "`lut` must be an array"),
        (lambda: normalize(None, LUT), r"`patches` must be a uint8 array .*; got NoneType None"),
        (
            lambda: normalize(LUT.reshape(4, 3, 8, 8), LUT),
            r"`patches` must be a uint8 array .*; got float32 \(4, 3, 8, 8\)",
        ),
        (lambda: normalize(noise(4, 14, 14, 3), LUT), r"; got uint8 \(4, 14, 14, 3\)"),
        (lambda: normalize(noise(4, 3, 14, 14), LUT, dtype="int8"), "`dtype` is 'int8'"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_options(call, message):
    with pytest.raises(PlanError, match=message):
        call()


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"patch_size": 1500, "merge_kernel_size": 1}, (300, 40, 3)),
        ({"patch_size": 2, "merge_kernel_size": 1, "in_patch_limit": 10**7}, (300, 300, 3)),
        ({"patch_size": 1, "merge_kernel_size": 3}, (31, 47, 3)),
        ({"patch_size": 7, "merge_kernel_size": 5, "in_patch_limit": 3}, (31, 47, 3)),
        ({"in_patch_limit": 10**400, "patch_limit_on_one_side": 10**400}, (31, 47, 3)),
        ({"in_patch_limit": 1, "patch_limit_on_one_side": 2}, (310, 470, 3)),
        ({"in_patch_limit_video": 1, "temporal_merge_kernel_size": 10**400}, (9, 30, 47, 3)),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "x".join(map(str, value)),
)
def test_unusual_legal_configs_give_the_references_patches(options, shape):
    config, frames = dataclasses.replace(CLIP, **options), noise(*shape)
    assert_bit_equal(preprocess_frames(frames, config=config), reference_of(frames, config), what=f"{options}")


@pytest.mark.usefixtures("unchecked")
def test_a_patch_that_no_machine_can_hold_is_an_error():
    for patch_size in (2**21, 2**31, 2**53, 10**400):
        config = dataclasses.replace(KIMI_K25, patch_size=patch_size)
        with pytest.raises(
            PlanError, match=r"the padded frames would have shape .*, which is more than 2\*\*40 values"
        ):
            preprocess_frames(noise(28, 28, 3), config=config)
