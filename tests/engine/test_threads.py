"""Threads, processes and cores: the bits of serial calls, never a hang."""

import pickle
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace

import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image

import kimi_jax_prep as kjp

SMALL = replace(kjp.KIMI_K25, in_patch_limit=300)


def run_python(code: str, *, prefix: tuple[str, ...] = ()) -> str:
    """Standard output of a fresh interpreter; a hang fails after two minutes."""
    done = subprocess.run(
        [*prefix, sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_eight_threads_give_the_bits_of_serial_calls():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 600, (40, 2)).tolist()
    pictures = [Image.fromarray(rng.integers(0, 256, (h, w, 3), np.uint8)) for w, h in sizes]
    batches = [pictures[i : i + 1 + i % 3] for i in range(len(pictures))]
    serial = kjp.Preprocessor(SMALL, num_threads=1, backend="numpy")
    want = [serial(batch).pixel_values for batch in batches]
    prep = kjp.Preprocessor(SMALL)
    wrong: list[str] = []

    def work(offset: int) -> None:
        for turn in range(len(batches)):
            i = (turn * 7 + offset) % len(batches)
            got = prep(batches[i]).pixel_values
            if got.tobytes() != want[i].tobytes():
                wrong.append(f"batch {i} in thread {offset}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_any_number_of_threads_gives_the_same_bits(num_threads):
    rng = np.random.default_rng(1)
    pictures = [Image.fromarray(rng.integers(0, 256, (700, 900, 3), np.uint8)) for _ in range(3)]
    prep = kjp.Preprocessor(SMALL, num_threads=num_threads)
    prep.warmup(max_patches=1500)
    want = kjp.Preprocessor(SMALL, backend="numpy")(pictures)
    assert_bit_equal(prep(pictures).pixel_values, want.pixel_values, what=f"{num_threads} threads")


def test_two_threads_may_meet_at_one_undecoded_image(tmp_path):
    path = tmp_path / "picture.png"
    Image.fromarray(np.random.default_rng(2).integers(0, 256, (500, 500, 3), np.uint8)).save(path)
    prep = kjp.Preprocessor(num_threads=4)
    want = prep([path]).pixel_values
    for _ in range(5):
        with Image.open(path) as image:
            got = prep([image] * 4).pixel_values
        assert_bit_equal(got, np.concatenate([want] * 4), what="the same image four times")


COMMON = """
    import multiprocessing, queue, sys, warnings
    import numpy as np
    from PIL import Image
    import kimi_jax_prep as kjp

    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 500, 3), np.uint8))

    def child(results):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            batches = [kjp.preprocess([picture]) for _ in range(2)]
        ours = [str(w.message) for w in caught if "NumPy computes" in str(w.message)]
        results.put((batches[1].pixel_values.tobytes(), ours))

    def in_child():
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        process = context.Process(target=child, args=(results,))
        process.start()
        answer = results.get(timeout=60)
        process.join(60)
        return answer
"""


def test_forked_after_jax_started_numpy_answers_after_one_warning():
    out = run_python(
        COMMON
        + """
    prep = kjp.Preprocessor()
    prep.warmup(max_patches=1500, resize=False)
    want = prep([picture]).pixel_values.tobytes()
    got, said = in_child()
    assert got == want
    assert len(said) == 1 and "spawn" in said[0] and "forkserver" in said[0], said
    assert prep([picture]).pixel_values.tobytes() == want
    print("done")
    """
    )
    assert out == "done\n"


def test_forked_before_jax_started_everything_works():
    out = run_python(
        COMMON
        + """
    got, said = in_child()
    assert said == []
    assert got == kjp.preprocess([picture]).pixel_values.tobytes()
    print("done")
    """
    )
    assert out == "done\n"


def test_first_imported_in_a_child_that_was_forked_after_jax_started():
    out = run_python(
        """
    import multiprocessing
    import jax

    jax.numpy.zeros(3).block_until_ready()

    def child(results):
        import kimi_jax_prep as kjp
        import numpy as np
        results.put(kjp.preprocess([np.zeros((28, 28, 3), np.uint8)]).pixel_values.shape)

    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=child, args=(results,))
    process.start()
    print(results.get(timeout=60))
    process.join(60)
    """
    )
    assert out == "(4, 3, 14, 14)\n"


def test_one_core_is_enough():
    out = run_python(
        """
    import numpy as np
    import kimi_jax_prep as kjp

    prep = kjp.Preprocessor()
    assert prep.num_threads == 1
    prep.warmup(max_patches=300, resize=False)
    print(prep([np.zeros((28, 28, 3), np.uint8)]).pixel_values.shape)
    """,
        prefix=("taskset", "-c", "0"),
    )
    assert out == "(4, 3, 14, 14)\n"


def test_a_preprocessor_travels_by_pickle():
    prep = kjp.Preprocessor(kjp.KIMI_K3, dtype="uint8", num_threads=3, max_cached_bytes=5)
    data = pickle.dumps(prep)
    again = pickle.loads(data)
    assert len(data) < 10_000
    assert (again.config, again.dtype, again.num_threads) == (prep.config, "uint8", 3)
    picture = Image.new("RGB", (30, 40), (1, 2, 3))
    assert_bit_equal(again([picture]).pixel_values, prep([picture]).pixel_values, what="after a journey")


def test_jaxs_persistent_cache_serves_the_next_process(tmp_path):
    code = f"""
    import jax

    jax.config.update("jax_compilation_cache_dir", {str(tmp_path)!r})
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    hits = []
    jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if "cache_hits" in event else None)
    import kimi_jax_prep as kjp

    kjp.Preprocessor().warmup(max_patches=300, resize=False)
    print(len(hits))
    """
    assert run_python(code) == "0\n"
    assert list(tmp_path.iterdir()) != []
    assert run_python(code) == "2\n"  # capacities 256 and 320
