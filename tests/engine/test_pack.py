"""`Preprocessor.pack` and `device=`: the bits of a batch, in arrays of fixed shapes and on devices."""

from dataclasses import fields

import jax
import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image
from test_interrupts import run_python

import kimi_jax_prep as kjp
from kimi_jax_prep.engine import runtime


def medias(seed: int) -> list[object]:
    rng = np.random.default_rng(seed)

    def noise(width: int, height: int) -> Image.Image:
        return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))

    chunk = {"type": "video_chunk", "video_chunk": [noise(70, 50) for _ in range(int(rng.integers(1, 5)))]}
    return [noise(300, 200), chunk, noise(28, 28), noise(int(rng.integers(1, 200)), 90)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "uint8"])
@pytest.mark.parametrize("config", ["k2.5", "k3"])
@pytest.mark.parametrize("backend", ["jax", "numpy"])
def test_a_pack_is_the_batchs_pack(dtype, config, backend):
    prep = kjp.Preprocessor(config, dtype=dtype, backend=backend)
    for seed in range(3):
        want = prep(medias(seed)).pack(capacity=1200, max_media=6)
        got = prep.pack(medias(seed), capacity=1200, max_media=6)
        for field in fields(want):
            assert_bit_equal(getattr(got, field.name), getattr(want, field.name), what=field.name)


def test_a_capacity_is_compiled_once_and_written_at_once(monkeypatch):
    prep = kjp.Preprocessor()
    prep.pack(medias(0), capacity=800)
    before = prep.compiled_programs
    packs = [prep.pack(medias(seed), capacity=800) for seed in range(1, 6)]
    assert prep.compiled_programs == before
    # A view of the memory that XLA wrote, not a copy of it.
    assert all(type(pack.pixel_values.base.base).__name__ == "ResultBuffer" for pack in packs)
    monkeypatch.setattr(runtime, "runtime", lambda: None)
    assert_bit_equal(prep.pack(medias(1), capacity=800).pixel_values, packs[0].pixel_values, what="NumPy's pack")


def test_too_much_for_a_pack_is_an_error_before_any_work():
    prep = kjp.Preprocessor()
    with pytest.raises(kjp.PlanError, match=r"\d+ patches, more than `capacity` = 100"):
        prep.pack(medias(0), capacity=100)
    with pytest.raises(kjp.PlanError, match="4 media, more than `max_media` = 2"):
        prep.pack(medias(0), capacity=800, max_media=2)


def test_results_on_a_device():
    prep = kjp.Preprocessor(device=jax.devices()[0])
    batch = prep(medias(0))
    assert isinstance(batch.pixel_values, jax.Array)
    assert_bit_equal(batch.pixel_values, kjp.Preprocessor()(medias(0)).pixel_values, what="on the device")
    assert batch.grid_thws.dtype == np.int32
    assert isinstance(prep.pack(medias(0)).segment_ids, jax.Array)


def test_what_is_no_device_is_refused():
    for device in ("cpu", 0, (1, 2)):
        with pytest.raises(kjp.PlanError, match=r"`device` is .*jax.sharding"):
            kjp.Preprocessor(device=device)


def test_results_on_eight_devices():
    run_python("""
        import os
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
        import jax, numpy as np, pickle
        from jax.sharding import NamedSharding, PartitionSpec as P, AxisType
        from PIL import Image
        import kimi_jax_prep as kjp

        rng = np.random.default_rng(0)
        pictures = [Image.fromarray(rng.integers(0, 256, (h, w, 3), np.uint8)) for w, h in ((300, 200), (28, 28))]
        want = kjp.Preprocessor()(pictures).pixel_values
        n = len(want)
        assert n % 8
        for types in (AxisType.Auto, AxisType.Explicit):
            mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(types, types))
            for device in ((mesh, P("data")), NamedSharding(mesh, P(("data", "model"))), NamedSharding(mesh, P())):
                prep = pickle.loads(pickle.dumps(kjp.Preprocessor(device=device)))
                batch = prep(pictures)
                assert len(batch.pixel_values.sharding.device_set) == 8
                assert np.asarray(batch.pixel_values)[:n].tobytes() == want.tobytes()
                assert not np.asarray(batch.pixel_values)[n:].any()
                assert batch.grid_thws.sharding.is_fully_replicated
                pack = prep.pack(pictures, capacity=1024, max_media=4)
                assert np.asarray(pack.pixel_values)[:n].tobytes() == want.tobytes()
                assert pack.segment_ids.sharding.spec[:1] == pack.pixel_values.sharding.spec[:1]
                assert pack.num_media.sharding.is_fully_replicated
                try:
                    prep.pack(pictures, capacity=1028)
                except kjp.PlanError as err:
                    assert "multiple of 8" in str(err)
    """)
