"""Memory that is used again is never memory that somebody still looks at."""

import gc
import subprocess
import sys
import textwrap
import threading
import types

import jax
import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image

import kimi_jax_prep as kjp
from kimi_jax_prep.engine import buffers
from kimi_jax_prep.engine.buffers import Cache, HostBuffer, Pool


def test_pool_returns_what_was_given_and_nothing_twice():
    pool = Pool(100)
    first, second = object(), object()
    pool.give("a", 10, first)
    pool.give("b", 10, second)
    assert pool.cached_bytes == 20
    assert pool.take("a") is first
    assert pool.take("a") is None
    assert pool.cached_bytes == 10


def test_pool_drops_the_oldest_beyond_its_bytes():
    pool = Pool(25)
    for name in "abc":
        pool.give(name, 10, name)
    assert pool.cached_bytes == 20
    assert [pool.take(name) for name in "abc"] == [None, "b", "c"]
    pool.give("big", 26, "big")
    assert pool.take("big") is None


def test_pool_that_keeps_nothing():
    pool = Pool(0)
    pool.give("a", 1, "a")
    assert (pool.take("a"), pool.cached_bytes) == (None, 0)


def test_a_signal_handler_may_use_the_pool_in_the_middle_of_any_of_its_functions():
    """Every line of `take`, `give`, `clear` and `cached_bytes` is interrupted by all the others on the same thread."""
    pool, inside = Pool(100), [False]
    used: list[int] = []

    def interrupt(frame: types.FrameType, event: str, _: object):
        if frame.f_code.co_filename == buffers.__file__ and event == "line" and not inside[0]:
            inside[0] = True
            used.append(frame.f_lineno)
            # Something else each time, so that every line of the interrupted function is reached.
            [lambda: pool.give("b", 30, "b"), lambda: pool.take("a"), lambda: pool.cached_bytes, pool.clear][
                len(used) % 4
            ]()
            inside[0] = False
        return interrupt

    sys.settrace(interrupt)
    try:
        for _ in range(30):
            pool.give("a", 60, "a")
            pool.take("b")
            pool.give("a", 60, "a")
            pool.take("a")
            pool.clear()
    finally:
        sys.settrace(None)
    assert len(set(used)) > 10
    assert pool.cached_bytes <= 100


def test_cache_is_bounded_in_bytes_and_keyed_by_all_that_is_given():
    cache = Cache(10_000)

    def get(key: object, size: int, value: str, *, usable: bool = True) -> str:
        return cache.get(key, lambda: (size, value), usable=lambda _: usable)

    assert get((30, 150), 1, "wide") == "wide"
    assert get((150, 30), 1, "tall") == "tall"
    assert get((30, 150), 1, "again") == "wide"
    assert get((30, 150), 1, "made anew", usable=False) == "made anew"
    for i in range(100):
        get(i, 5_000, "large")
        assert cache.cached_bytes <= 10_000
    assert get((30, 150), 1, "made again") == "made again"
    cache.clear()
    assert cache.cached_bytes == 0


def test_host_buffers_are_read_in_place_also_after_somebody_deleted_their_jax_array():
    buffer = HostBuffer((8, 3), np.uint32, jax.local_devices(backend="cpu")[0])
    for _ in range(2):
        on_device = buffer.on_device()
        buffer.array[:] = 7
        assert on_device.unsafe_buffer_pointer() == buffer.array.ctypes.data
        on_device.delete()


def pictures(rng: np.random.Generator, *, most: int = 3) -> list[Image.Image]:
    sizes = rng.integers(1, 120, (int(rng.integers(1, most + 1)), 2))
    return [Image.fromarray(rng.integers(0, 256, (h, w, 3), np.uint8)) for w, h in sizes.tolist()]


def look(alive) -> np.ndarray:
    return alive.numpy() if hasattr(alive, "numpy") else np.asarray(alive)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_results_that_are_alive_are_never_written_to(dtype):
    """Random subsets of results, views of views and tensors are kept and compared with their own copies."""
    torch = pytest.importorskip("torch", reason="tensors are one of the ways to keep a result")
    prep = kjp.Preprocessor(dtype=dtype)
    prep.warmup(max_patches=512, resize=False)
    rng = np.random.default_rng(5)
    kept: list[tuple[object, np.ndarray]] = []
    for turn in range(2000):
        values = prep(pictures(rng)).pixel_values.view(np.uint16 if dtype == "bfloat16" else np.uint32)
        how = turn % 4
        if how == 0:
            alive: object = values
        elif how == 1:
            alive = values[1:][..., ::2].T
        elif how == 2:
            alive = torch.from_numpy(values.view(np.int16 if dtype == "bfloat16" else np.int32))[:2]
        else:
            alive = memoryview(values[-1])
        kept.append((alive, look(alive).copy()))
        del values, alive
        while len(kept) > 30:
            kept.pop(int(rng.integers(len(kept))))
        if turn % 50 == 49:
            for alive, copy in kept:
                assert_bit_equal(look(alive), copy, what=f"a result kept until call {turn}")
            del alive, copy
    assert prep.cached_bytes > 0


def test_memory_comes_back_and_only_when_the_last_view_is_gone():
    prep = kjp.Preprocessor()
    prep.warmup(max_patches=256, resize=False)
    picture = Image.new("RGB", (28, 28))
    first = prep([picture]).pixel_values
    address = first.ctypes.data
    view = first[0, 0].T
    del first
    gc.collect()
    other = prep([picture]).pixel_values
    assert other.ctypes.data != address
    del view
    gc.collect()
    assert prep([picture]).pixel_values.ctypes.data == address


def test_keeping_can_be_turned_off():
    prep = kjp.Preprocessor(max_cached_bytes=0)
    prep.warmup(max_patches=256, resize=False)
    for _ in range(3):
        prep([Image.new("RGB", (28, 28))])
    assert prep.cached_bytes == 0


def test_cached_bytes_stay_below_their_limit():
    prep = kjp.Preprocessor(max_cached_bytes=3_000_000)
    prep.warmup(max_patches=2000, resize=False)
    rng = np.random.default_rng(6)
    for side in rng.integers(20, 600, 60).tolist():
        prep([Image.new("RGB", (side, 300))])
        assert prep.cached_bytes <= 3_000_000
    prep.clear_cache()
    assert prep.cached_bytes == 0


def test_results_are_writable_contiguous_and_their_own():
    prep = kjp.Preprocessor()
    prep.warmup(max_patches=256, resize=False)
    picture = Image.new("RGB", (40, 30), (9, 99, 199))
    one, two = prep([picture]).pixel_values, prep([picture]).pixel_values
    want = two.copy()
    assert one.flags.writeable
    assert one.flags.c_contiguous
    one += 1
    assert_bit_equal(two, want, what="the other result")
    assert_bit_equal(prep([picture]).pixel_values, want, what="the next result")


def test_inputs_may_change_right_after_the_call():
    prep = kjp.Preprocessor()
    prep.warmup(max_patches=2000, resize=False)
    array = np.full((400, 400, 3), 11, np.uint8)
    before = prep([array]).pixel_values
    copy = before.copy()
    array[:] = 200
    assert_bit_equal(before, copy, what="a result whose input was overwritten")


def test_buffers_may_be_released_in_any_thread():
    prep = kjp.Preprocessor()
    prep.warmup(max_patches=256, resize=False)
    results = [prep([Image.new("RGB", (28, 28))]).pixel_values for _ in range(20)]
    threads = [threading.Thread(target=results.pop) for _ in range(len(results))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert prep.cached_bytes > 0


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("beside", [0, 3])
def test_an_error_keeps_no_picture(on_error, beside):
    # In an interpreter without jaxtyping's checks, whose frames are part of the traceback and a cycle of their own.
    code = f"""
        import gc, io, weakref
        import kimi_jax_prep as kjp
        from PIL import Image

        stream = io.BytesIO()
        Image.effect_noise((600, 600), 50).save(stream, "PNG")
        broken = Image.open(io.BytesIO(stream.getvalue()[:100_000]))
        gone = weakref.ref(broken)
        medias = [broken] + [Image.new("RGB", (600, 600))] * {beside}
        prep = kjp.Preprocessor(kjp.KIMI_K25, num_threads=2)
        gc.disable()
        try:
            batch = prep(medias, on_error="{on_error}")
        except kjp.MediaError as err:
            assert "{on_error}" == "raise" and err.__traceback__ is not None
        else:
            error = batch.failures[0].error
            assert isinstance(error, kjp.MediaError) and isinstance(error.__cause__.__cause__, OSError)
        assert gone() is broken
        del medias, broken
        assert gone() is None
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
