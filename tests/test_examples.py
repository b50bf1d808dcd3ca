"""The example tower: packs and the usual form agree, and packs of all sizes compile one program."""

import importlib.util
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bits import assert_bit_equal

import kimi_jax_prep as kjp

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def example():
    sys.path.insert(0, str(EXAMPLES))
    try:
        spec = importlib.util.spec_from_file_location("packed_tower", EXAMPLES / "packed_tower.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def weights(example):
    return jax.tree.map(jnp.asarray, example.moonvit.init(jax.random.key(0), example.SIZES))


def twelve_pictures_and_three_videos():
    rng = np.random.default_rng(0)
    media = [rng.integers(0, 256, (20 + 17 * i, 230 - 13 * i, 3), np.uint8) for i in range(12)]
    for t in (4, 3, 1):
        frames = list(rng.integers(0, 256, (t, 50 + 20 * t, 90, 3), np.uint8))
        media.insert(2 * t, {"type": "video_chunk", "video_chunk": frames})
    return media


def test_packs_give_the_tokens_of_the_usual_form(example, weights):
    media = twelve_pictures_and_three_videos()
    packed, usual = example.packed_tokens(weights, media, capacity=1024), example.usual_tokens(weights, media)
    assert packed.keys() == usual.keys() == set(range(15))
    for i, want in usual.items():
        assert packed[i].shape == want.shape
        # float32 sums in another order, through the blocks of the tower. Tokens are of the size of 1.
        np.testing.assert_allclose(packed[i], want, rtol=0, atol=5e-5, err_msg=f"medium {i}")
    assert max(np.abs(want).max() for want in usual.values()) > 1


def test_the_inputs_of_both_forms_have_equal_bits(example):
    media = twelve_pictures_and_three_videos()
    for pack in kjp.pack_stream(media, capacity=1024, dtype="uint8"):
        n = int(pack.num_patches)
        normalized = np.asarray(kjp.normalize(pack.pixel_values, example.LUT))[:n]
        chosen = [media[i] for i in pack.sources[: int(pack.num_media)]]
        assert_bit_equal(normalized, kjp.preprocess(chosen).pixel_values, what="inputs")


def test_random_pictures_compile_one_program(example, weights):
    example.moonvit.packed_tower.clear_cache()
    tokens = example.packed_tokens(weights, example.random_media(60, seed=1), capacity=1024)
    assert len(tokens) == 60
    assert len({t.shape for t in tokens.values()}) > 20
    assert example.moonvit.packed_tower._cache_size() == 1
