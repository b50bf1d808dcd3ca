"""`normalize` on the device: the bits of a batch that was normalized on the host, in every dtype and mode."""

import dataclasses

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from bits import assert_bit_equal

from kimi_jax_prep import KIMI_K3, KIMI_K25, Preprocessor, normalize, normalize_lut
from kimi_jax_prep.ops import patchify

MODES = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "vmap": lambda f: lambda x: jax.vmap(f)(x[None])[0],
    "vmap over patches": jax.vmap,
    "map": lambda f: lambda x: jax.lax.map(f, x),
    "scan": lambda f: jax.jit(lambda x: jax.lax.scan(lambda c, y: (c, f(y)), 0, x)[1]),
}
CLIP = dataclasses.replace(
    KIMI_K25, image_mean=(0.48145466, 0.4578275, 0.40821073), image_std=(0.26862954, 0.26130258, 0.27577711)
)
CONFIGS = {"K2.5": KIMI_K25, "K3": KIMI_K3, "CLIP": CLIP}
every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
every_dtype = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "uint8"])
MEDIA = [
    np.random.default_rng(0).integers(0, 256, (60, 90, 3), np.uint8),
    np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, axis=2),
]


def batches(config, dtype):
    return [Preprocessor(config, dtype=d, backend="numpy")(MEDIA).pixel_values for d in ("uint8", dtype)]


@every_config
@every_dtype
@pytest.mark.parametrize("mode", MODES)
def test_the_bits_are_the_hosts(mode, dtype, config):
    patches, want = batches(config, dtype)
    lut = normalize_lut(config, dtype=dtype)
    assert_bit_equal(MODES[mode](lambda x: normalize(x, lut))(patches), want, what=f"{mode} {dtype}")


@every_config
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_float32_table_is_rounded_to_the_dtype(dtype, config):
    patches, want = batches(config, dtype)
    lut = normalize_lut(config)
    assert_bit_equal(normalize(patches, lut, dtype=dtype), want, what=dtype)
    assert_bit_equal(normalize(patches, lut, dtype=jnp.dtype(dtype)), want, what=f"{dtype} of JAX")
    traced = jax.jit(lambda x, lut: normalize(x, lut, dtype=dtype))(patches, lut)
    assert_bit_equal(traced, want, what=f"{dtype}, traced table")


def test_any_leading_axes():
    patches = np.random.default_rng(1).integers(0, 256, (2, 3, 5, 3, 7, 7), np.uint8)
    lut = normalize_lut(CLIP)
    want = lut[patches, np.arange(3)[:, None, None]]
    assert_bit_equal(normalize(patches, lut), want, what="leading axes")
    assert_bit_equal(normalize(patches[0, 0, 0], lut), want[0, 0, 0], what="one patch")


def test_padding_becomes_the_value_of_byte_0_and_can_be_masked():
    packed = Preprocessor(KIMI_K25, dtype="uint8", backend="numpy")(MEDIA).pack(capacity=64)
    lut, n = normalize_lut(KIMI_K25), int(packed.num_patches)
    got = np.asarray(normalize(packed.pixel_values, lut))
    assert (got[n:] == -1).all()
    masked = jnp.where(packed.segment_ids[:, None, None, None] > 0, got, jnp.float32(0))
    want = Preprocessor(KIMI_K25, backend="numpy")(MEDIA).pack(capacity=64)
    assert_bit_equal(masked, want.pixel_values, what="masked")


@every_dtype
def test_it_lowers_for_every_platform_without_custom_calls(dtype):
    lut = normalize_lut(CLIP, dtype=dtype)
    patches = jax.ShapeDtypeStruct((8, 3, 14, 14), jnp.uint8)
    exported = jax.export.export(jax.jit(lambda x: normalize(x, lut)), platforms=("cpu", "cuda", "tpu"))(patches)
    assert "stablehlo.gather" in exported.mlir_module()
    assert "stablehlo.custom_call" not in exported.mlir_module()


def test_equal_tables_share_one_program():
    patches = np.zeros((4, 3, 9, 9), np.uint8)
    normalize(patches, normalize_lut(CLIP))
    before = patchify._normalize._cache_size()
    for _ in range(3):
        normalize(patches, np.array(normalize_lut(CLIP)))
    assert patchify._normalize._cache_size() == before
    normalize(patches, np.array(normalize_lut(CLIP))[::-1])
    assert patchify._normalize._cache_size() == before + 1
