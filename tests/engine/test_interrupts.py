"""Whatever leaves a call, the next one is right: interrupts, calls inside calls, deleted arrays, traces, settings."""

import contextlib
import io
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace

import jax
import numpy as np
import pytest
from bits import assert_bit_equal
from jax.extend.backend import clear_backends
from PIL import Image

import kimi_jax_prep as kjp
from kimi_jax_prep import reference
from kimi_jax_prep.engine import buffers, preprocessor, runtime, workers

SMALL = replace(kjp.KIMI_K25, in_patch_limit=300)


def noise(seed: int, *sizes: tuple[int, int]) -> list[Image.Image]:
    rng = np.random.default_rng(seed)
    return [Image.fromarray(rng.integers(0, 256, (h, w, 3), np.uint8)) for w, h in sizes]


def png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def expected(medias: list[Image.Image], config: kjp.MediaProcConfig = kjp.KIMI_K25) -> np.ndarray:
    return reference.preprocess(medias, config).pixel_values


@contextlib.contextmanager
def handler(react) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, lambda *_: react())
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def raise_(error: type[BaseException]):
    def react():
        raise error

    return react


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "Timeout"])
def test_after_an_interrupted_call_the_next_result_holds_its_own_patches(error):
    # In an interpreter without jaxtyping's checks, which are compiled at run time and would be interrupted as well.
    run_python(f"""
        import io, signal, time
        import numpy as np
        import kimi_jax_prep as kjp
        from kimi_jax_prep import reference
        from PIL import Image

        class Timeout(Exception):
            "As task queues raise it from a signal handler."

        def react(*_):
            raise {error}

        def png(image):
            stream = io.BytesIO()
            image.save(stream, "PNG")
            return stream.getvalue()

        signal.signal(signal.SIGALRM, react)
        rng = np.random.default_rng(0)
        def noise(side):
            return [Image.fromarray(rng.integers(0, 256, (side, side, 3), np.uint8)) for _ in range(12)]
        slow, others = [png(image) for image in noise(700)], noise(600)
        want = reference.preprocess(others, kjp.KIMI_K25).pixel_values.tobytes()
        prep = kjp.Preprocessor(num_threads=2)
        prep.warmup(max_patches=30_000)
        prep(slow)
        start = time.perf_counter()
        prep(slow)
        usual = time.perf_counter() - start
        interrupted = 0
        for k in range(40):
            try:
                signal.setitimer(signal.ITIMER_REAL, usual * (k + 1) / 41)
                prep(slow)
            except {error}:
                interrupted += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert prep(others).pixel_values.tobytes() == want, k
        assert interrupted > 10
    """)


def test_an_interrupted_call_leaves_no_task_running():
    begun, ended = [], []

    def task() -> None:
        begun.append(1)
        time.sleep(0.02)
        ended.append(1)

    def run() -> None:
        with workers.Call(buffers.Pool(0), 3) as call:
            call.run([task] * 200)

    with handler(raise_(KeyboardInterrupt)):
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            run()
    # The interrupted thread's own task did not end.
    assert len(begun) - len(ended) in (0, 1)
    count = len(begun)
    time.sleep(0.1)
    assert len(begun) == count < 200


# The next two run in an interpreter without jaxtyping's checks too: beartype takes locks of its own.
def test_a_signal_handler_may_preprocess_while_a_call_runs():
    run_python("""
        import signal
        from dataclasses import replace
        import numpy as np
        import kimi_jax_prep as kjp
        from kimi_jax_prep import reference
        from PIL import Image

        rng = np.random.default_rng(0)
        def noise(*sizes):
            return [Image.fromarray(rng.integers(0, 256, (h, w, 3), np.uint8)) for w, h in sizes]
        small = replace(kjp.KIMI_K25, in_patch_limit=300)
        outer, inner = noise((900, 700), (300, 500), (1000, 40)), noise((640, 480))
        want = reference.preprocess(outer, small).pixel_values.tobytes()
        want_inner = reference.preprocess(inner, small).pixel_values.tobytes()
        prep = kjp.Preprocessor(small, num_threads=2)
        prep.warmup(max_patches=2000)
        calls = []

        def react(*_):
            calls.append(prep(inner).pixel_values.tobytes() == want_inner)
            prep.clear_cache()
            signal.setitimer(signal.ITIMER_REAL, 0.002)

        signal.signal(signal.SIGALRM, react)
        for k in range(200):
            signal.setitimer(signal.ITIMER_REAL, 0.0001 * (k + 1))
            assert prep(outer).pixel_values.tobytes() == want, k
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert len(calls) > 100 and all(calls), calls
    """)


def test_a_finalizer_may_preprocess_while_a_call_runs():
    run_python("""
        import gc
        import numpy as np
        import kimi_jax_prep as kjp
        from kimi_jax_prep import reference
        from PIL import Image

        rng = np.random.default_rng(0)
        def noise(*sizes):
            return [Image.fromarray(rng.integers(0, 256, (h, w, 3), np.uint8)) for w, h in sizes]
        outer, inner = noise((300, 300), (200, 500)), noise((64, 48))
        want, want_inner = (reference.preprocess(m, kjp.KIMI_K25).pixel_values.tobytes() for m in (outer, inner))
        prep = kjp.Preprocessor()
        got = []

        class Finalized:
            def __init__(self):
                self.me = self  # only the garbage collector frees it

            def __del__(self):
                got.append(prep(inner).pixel_values.tobytes() == want_inner)

        gc.set_threshold(20, 2, 2)
        for _ in range(60):
            Finalized()
            assert prep(outer).pixel_values.tobytes() == want
        gc.collect()
        assert len(got) > 50 and all(got)
    """)


@pytest.mark.parametrize("num_threads", [1, 2, 4])
def test_a_picture_whose_loading_preprocesses(num_threads):
    (small,) = noise(7, (60, 60))
    pictures = noise(8, *[(600, 600)] * 6)
    prep = kjp.Preprocessor(num_threads=num_threads)

    class Lazy(Image.Image):
        def load(self):
            prep([small] * 8)
            return super().load()

    def lazy(image: Image.Image) -> Image.Image:
        made = image.copy()
        made.__class__ = Lazy
        return made

    got = prep([lazy(image) for image in pictures]).pixel_values
    assert_bit_equal(got, expected(pictures), what="pictures that preprocess while they load")


def test_results_outlive_whoever_deletes_all_arrays():
    pictures = noise(9, (300, 500), (64, 900), (2300, 2100))
    want = expected(pictures)
    prep = kjp.Preprocessor()
    prep.warmup(max_patches=6000)
    kept = prep(pictures).pixel_values
    for _ in range(3):
        for array in jax.live_arrays():
            array.delete()
        assert_bit_equal(prep(pictures).pixel_values, want, what="a call after all arrays were deleted")
        np.full(kept.nbytes // 4, 7.0, np.float32)  # freed memory would be taken by this
        assert_bit_equal(kept, want, what="a result returned before")


def test_cleared_caches_and_backends_are_recovered_from():
    code = """
        import jax, numpy as np
        from jax.extend.backend import clear_backends
        from PIL import Image
        import kimi_jax_prep as kjp
        from kimi_jax_prep import reference

        rng = np.random.default_rng(0)
        pictures = [Image.fromarray(rng.integers(0, 256, (h, w, 3), np.uint8)) for w, h in ((300, 500), (2300, 2100))]
        want = reference.preprocess(pictures, kjp.KIMI_K25).pixel_values.tobytes()
        prep = kjp.Preprocessor()
        prep.warmup(max_patches=6000)
        kept = prep(pictures).pixel_values
        for clear in (jax.clear_caches, clear_backends) * 2:
            clear()
            for _ in range(2):
                assert prep(pictures).pixel_values.tobytes() == want, clear
                prep.wait_until_compiled()
            assert kept.tobytes() == want
        assert len(prep.compiled_programs) > 0
    """
    run_python(code)
    assert clear_backends is not None


def test_a_call_inside_a_trace():
    pictures = noise(10, (333, 222), (900, 700))
    want = expected(pictures, SMALL)
    for prep in (kjp.Preprocessor(SMALL), kjp.Preprocessor(SMALL, dtype="float32", num_threads=1)):
        prep.warmup(max_patches=1000)

        def step(x, prep=prep):
            return x + prep(pictures).pixel_values.sum()

        with jax.ensure_compile_time_eval():
            jax.clear_caches()
        runtime.clear()
        jax.jit(step)(1.0)
        jax.vmap(lambda x, step=step: step(x))(jax.numpy.ones(3))
        jax.grad(lambda x, step=step: step(x))(1.0)
        assert_bit_equal(prep(pictures).pixel_values, want, what="after a call inside a trace")


SETTINGS = {
    "transfer guard": lambda: jax.transfer_guard("disallow_explicit"),
    "x64": lambda: jax.enable_x64(True),
    "debug_nans": lambda: jax.debug_nans(True),
    "disable_jit": lambda: jax.disable_jit(True),
    "tracer leaks": lambda: jax.check_tracer_leaks(True),
    "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "a mesh": lambda: jax.set_mesh(jax.make_mesh((1,), ("x",))),
    "a default device": lambda: jax.default_device(jax.devices()[0]),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_callers_settings_of_jax_are_about_the_callers_arrays(name, monkeypatch):
    pictures = noise(11, (300, 500), (64, 900))
    want = expected(pictures, SMALL)
    monkeypatch.setattr(runtime, "_current", None)  # programs are compiled under the setting as well
    prep = kjp.Preprocessor(SMALL)
    with SETTINGS[name]():
        for _ in range(2):
            assert_bit_equal(prep(pictures).pixel_values, want, what=name)
            prep.wait_until_compiled()
    assert prep.compiled_programs
    assert_bit_equal(prep(pictures).pixel_values, want, what=f"after {name}")


def test_settings_of_the_whole_process():
    run_python("""
        import jax, numpy as np
        from PIL import Image
        import kimi_jax_prep as kjp
        from kimi_jax_prep import reference

        for name, value in {"jax_transfer_guard": "disallow_explicit", "jax_disable_jit": True, "jax_enable_x64": True,
                            "jax_debug_nans": True, "jax_check_tracer_leaks": True}.items():
            jax.config.update(name, value)
        rng = np.random.default_rng(0)
        pictures = [Image.fromarray(rng.integers(0, 256, (h, w, 3), np.uint8)) for w, h in ((300, 500), (2300, 2100))]
        want = reference.preprocess(pictures, kjp.KIMI_K25).pixel_values.tobytes()
        prep = kjp.Preprocessor(num_threads=3)
        for _ in range(3):
            assert prep(pictures).pixel_values.tobytes() == want
            prep.wait_until_compiled()
        assert prep.compiled_programs
    """)


def test_without_a_cpu_backend_numpy_answers_after_one_warning(monkeypatch):
    pictures = noise(12, (900, 700))
    want = expected(pictures)

    def no_cpu(*_, **__):
        raise RuntimeError("Unknown backend cpu")

    monkeypatch.setattr(jax, "local_devices", no_cpu)
    monkeypatch.setattr(runtime, "_warned", False)
    prep = kjp.Preprocessor()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert_bit_equal(prep(pictures).pixel_values, want, what="without a CPU backend")
        prep.warmup()
        prep.wait_until_compiled()
        assert prep.compiled_programs == ()
    assert len(caught) == 1
    assert "JAX_PLATFORMS=cuda,cpu" in str(caught[0].message)


def test_a_jax_that_fails_at_every_launch_is_replaced_by_numpy(monkeypatch):
    pictures = noise(13, (300, 400))

    def broken(*_, **__):
        raise jax.errors.JaxRuntimeError("INTERNAL: the client is gone")

    prep = kjp.Preprocessor()
    prep.warmup(max_patches=800, resize=False)
    monkeypatch.setattr(preprocessor.XlaBackend, "_old_result", broken)
    monkeypatch.setattr(runtime, "_warned_of_failure", False)
    with pytest.warns(RuntimeWarning, match="the client is gone"):
        got = prep(pictures).pixel_values
    assert_bit_equal(got, expected(pictures), what="NumPy's answer")


def test_settings_cannot_be_changed():
    prep = kjp.Preprocessor()
    for name in ("config", "dtype", "device", "backend", "options", "num_threads", "in_patch_limit"):
        with pytest.raises(AttributeError, match=f"`{name}` of a Preprocessor cannot be set"):
            setattr(prep, name, None)


def test_a_preprocessor_with_a_device_travels_by_pickle():
    prep = kjp.Preprocessor(device=jax.devices()[0], dtype="uint8")
    again = pickle.loads(pickle.dumps(prep))
    assert again.device is prep.device
    mesh = jax.make_mesh((1,), ("data",))
    prep = kjp.Preprocessor(device=(mesh, jax.sharding.PartitionSpec("data")))
    again = pickle.loads(pickle.dumps(prep))
    assert again.device == prep.device


def test_one_medium_of_more_patches_than_any_program():
    # 2 x 2 pixels a patch: a picture of 3000 x 3000 has 2.2 million.
    config = replace(
        kjp.KIMI_K25, patch_size=2, merge_kernel_size=1, in_patch_limit=10**7, patch_limit_on_one_side=4096
    )
    pictures = noise(14, (3000, 3000), (30, 20))
    assert_bit_equal(kjp.Preprocessor(config)(pictures).pixel_values, expected(pictures, config), what="a large medium")


def test_a_patch_too_large_for_any_program():
    config = replace(kjp.KIMI_K25, patch_size=1500, merge_kernel_size=1)
    pictures = noise(15, (40, 30))
    prep = kjp.Preprocessor(config)
    prep.warmup()
    assert_bit_equal(prep(pictures).pixel_values, expected(pictures, config), what="one patch of 1500 x 1500")


def test_threads_end_and_all_memory_is_counted(monkeypatch):
    monkeypatch.setattr(workers, "_IDLE_SECONDS", 0.2)
    monkeypatch.setattr(workers, "_workers", workers.Workers())
    pictures = noise(16, (900, 900), (800, 900))
    preps = [kjp.Preprocessor(SMALL, num_threads=n) for n in (2, 3, 4, 8)]
    preps[0].warmup(max_patches=1000)

    def call(prep: kjp.Preprocessor) -> None:
        prep(pictures)

    for prep in preps:
        threads = [threading.Thread(target=call, args=(prep,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert prep.cached_bytes > 560 * 4112 * 4  # scratch of the resize included
        prep.clear_cache()
        assert prep.cached_bytes == 0
    deadline = time.monotonic() + 20
    while any(t.name == "kimi_jax_prep" for t in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [t for t in threading.enumerate() if t.name == "kimi_jax_prep"] == []


def test_what_preprocess_keeps_can_be_freed():
    kjp.preprocess(noise(17, (400, 400)), config=SMALL)
    assert kjp.cached_bytes() > 0
    kjp.clear_cache()
    assert kjp.cached_bytes() == 0


def run_python(code: str, *, options: tuple[str, ...] = (), seconds: float = 120) -> str:
    """Standard output of a fresh interpreter that must end well and say nothing else."""
    done = subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


START = """
    import atexit, sys, threading, time
    import numpy as np
    import kimi_jax_prep as kjp
    from kimi_jax_prep import reference
    from PIL import Image

    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 256, (h, w, 3), np.uint8)) for w, h in ((300, 500), (900, 800))]
    want = reference.preprocess(pictures, kjp.KIMI_K25).pixel_values.tobytes()

    def check(prep):
        assert prep(pictures).pixel_values.tobytes() == want
"""
ENDS = {
    "right after a first call": "kept = kjp.preprocess(pictures)",
    "with daemon threads inside calls": """
        def serve():
            while True:
                check(prep)
        prep = kjp.Preprocessor(num_threads=2)
        for _ in range(4):
            threading.Thread(target=serve, daemon=True).start()
        time.sleep(1)
    """,
    "in atexit, with nothing called before": """
        @atexit.register
        def last():
            prep = kjp.Preprocessor(num_threads=3)
            check(prep)
            prep.wait_until_compiled()
            check(prep)
    """,
    "in atexit, with programs requested": """
        prep = kjp.Preprocessor(num_threads=3)
        check(prep)
        @atexit.register
        def last():
            prep.wait_until_compiled()
            check(prep)
            kjp.Preprocessor(kjp.KIMI_K3, dtype="uint8")(pictures)
            prep.wait_until_compiled()
    """,
    "in a thread that outlives the main one": """
        def serve():
            threading.main_thread().join()
            time.sleep(0.2)
            prep = kjp.Preprocessor(num_threads=4)
            check(prep)
            prep.wait_until_compiled()
            check(prep)
        threading.Thread(target=serve).start()
    """,
}


@pytest.mark.parametrize("name", ENDS)
def test_the_end_of_a_process(name):
    run_python(textwrap.dedent(START) + textwrap.dedent(ENDS[name]), options=("-X", "dev"))
