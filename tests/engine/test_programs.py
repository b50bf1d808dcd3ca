"""The budget of compiled programs: counted, each compiled once, nobody waits longer than NumPy would have taken."""

import threading
import warnings
from dataclasses import replace

import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image

import kimi_jax_prep as kjp
from kimi_jax_prep import reference
from kimi_jax_prep.engine import programs, runtime
from kimi_jax_prep.engine.backends import Target, XlaBackend
from kimi_jax_prep.engine.buffers import Pool
from kimi_jax_prep.engine.tiles import CompositeTile, all_passes
from kimi_jax_prep.plan import CAPACITIES, patch_capacity

# Budgets so small that pictures of a few hundred pixels are resized.
SMALL = replace(kjp.KIMI_K25, in_patch_limit=300, in_patch_limit_each_frame=100)


@pytest.fixture
def compiling(monkeypatch):
    """A process without programs; yields the list of specs as they are compiled."""
    compiled: list[object] = []
    real = programs.compile_spec

    def counting(spec, device):
        compiled.append(spec)
        return real(spec, device)

    monkeypatch.setattr(runtime, "_current", None)
    monkeypatch.setattr(programs, "compile_spec", counting)
    yield compiled
    table().wait_for_requested()


def table() -> programs.Programs:
    """The process's programs."""
    here = runtime.runtime()
    assert here is not None
    return here.programs


def last_launch(capacity: int, config: kjp.MediaProcConfig = kjp.KIMI_K25) -> programs.Spec:
    return Target(config, "float32").program(capacity)


def picture(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


def stream(seed: int, count: int) -> list[list[Image.Image]]:
    rng = np.random.default_rng(seed)
    batches = []
    for _ in range(count):
        sizes = rng.integers(20, 700, (int(rng.integers(1, 4)), 2)).tolist()
        batches.append([picture(rng, w, h) for w, h in sizes])
    return batches


def test_all_programs_together_are_within_the_budget():
    resize = len({*all_passes(3), *all_passes(4), CompositeTile()})
    assert resize <= 24
    assert len(CAPACITIES) + resize <= 64


def test_a_stream_compiles_few_programs_each_once_and_none_in_its_second_pass(compiling):
    prep = kjp.Preprocessor(SMALL)
    batches = stream(0, 40)
    want = [reference.preprocess(batch, SMALL).pixel_values for batch in batches]
    for batch, patches in zip(batches, want, strict=True):
        assert_bit_equal(prep(batch).pixel_values, patches, what="first pass")
    # Requests beyond the queue's length are made again by the pass that finds the program missing.
    for _ in range(5):
        prep.wait_until_compiled()
        for batch, patches in zip(batches, want, strict=True):
            assert_bit_equal(prep(batch).pixel_values, patches, what="a later pass")
    prep.wait_until_compiled()
    known = list(compiling)
    assert len(known) == len(set(known)) <= 40
    assert len(prep.compiled_programs) == len(known)
    for batch in batches:
        prep(batch)
    prep.wait_until_compiled()
    assert compiling == known


def test_the_first_caller_is_answered_before_the_compiler_is_done(compiling, monkeypatch):
    let_go = threading.Event()
    counting = programs.compile_spec

    def slow(spec, device):
        let_go.wait(30)
        return counting(spec, device)

    monkeypatch.setattr(programs, "compile_spec", slow)
    prep = kjp.Preprocessor(SMALL)
    batch = stream(1, 1)[0]
    try:
        got = prep(batch)  # would wait for `let_go` if it waited for the compiler
    finally:
        let_go.set()
    assert compiling == []
    assert_bit_equal(got.pixel_values, reference.preprocess(batch, SMALL).pixel_values, what="answer without XLA")


def test_warmup_leaves_nothing_to_compile(compiling):
    prep = kjp.Preprocessor(SMALL, dtype="uint8")
    prep.warmup(max_patches=2000)
    known = list(compiling)
    for batch in stream(2, 10):
        prep(batch)
    prep.wait_until_compiled()
    assert compiling == known


@pytest.mark.usefixtures("compiling")
def test_a_larger_program_serves_until_the_right_one_is_there():
    here = runtime.runtime()
    assert here is not None
    backend = XlaBackend(Target(kjp.KIMI_K25, "float32"), here, Pool(1 << 20), 1)
    large = patch_capacity(400)
    table().wait(last_launch(large))
    spec, program = backend.program_for(300)
    assert (spec.capacity, program is not None) == (large, True)
    table().wait_for_requested()
    assert backend.program_for(300)[0].capacity == patch_capacity(300) < large


def test_eight_threads_compile_a_program_once(compiling):
    spec = last_launch(256)
    barrier = threading.Barrier(8)
    got = []

    def ask():
        barrier.wait()
        got.append(table().wait(spec))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiling == [spec]
    assert len(got) == 8
    assert len(set(map(id, got))) == 1


@pytest.mark.usefixtures("compiling")
def test_a_compiler_that_fails_is_reported_once_and_numpy_answers(monkeypatch):
    tried = []

    def failing(spec, _device):
        tried.append(spec)
        raise RuntimeError("no compiler today")

    monkeypatch.setattr(programs, "compile_spec", failing)
    with pytest.raises(programs.CompilationError, match="today"):
        table().wait(last_launch(256))
    prep = kjp.Preprocessor(SMALL)
    batch = stream(3, 1)[0]
    want = reference.preprocess(batch, SMALL).pixel_values
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            assert_bit_equal(prep(batch).pixel_values, want, what="without a compiler")
            prep.wait_until_compiled()
    assert len([w for w in caught if "no compiler today" in str(w.message)]) == 1
    assert len(tried) == len(set(tried))
    assert prep.compiled_programs == ()


@pytest.mark.usefixtures("compiling")
def test_an_xla_without_our_option_compiles_without_it(monkeypatch):
    monkeypatch.setattr(programs, "_COMPILER_OPTIONS", {"xla_no_such_option": 1})
    assert table().wait(last_launch(256))
    assert programs._COMPILER_OPTIONS is None


@pytest.mark.usefixtures("compiling")
def test_an_interrupt_while_compiling_belongs_to_its_thread(monkeypatch):
    """The others that wait for the same program compile it themselves."""
    spec, began, let_go = last_launch(256), threading.Event(), threading.Event()
    counting = programs.compile_spec

    def interrupted(spec, device):
        if threading.current_thread().name == "interrupted":
            began.set()
            let_go.wait(30)
            raise KeyboardInterrupt
        return counting(spec, device)

    monkeypatch.setattr(programs, "compile_spec", interrupted)
    outcomes: dict[str, object] = {}

    def ask():
        try:
            outcomes[threading.current_thread().name] = table().wait(spec)
        except BaseException as err:
            outcomes[threading.current_thread().name] = err

    first = threading.Thread(target=ask, name="interrupted")
    second = threading.Thread(target=ask, name="other")
    first.start()
    began.wait(30)
    second.start()
    let_go.set()
    first.join(60)
    second.join(60)
    assert isinstance(outcomes["interrupted"], KeyboardInterrupt)
    assert outcomes["other"] is table().ready(spec)


@pytest.mark.usefixtures("compiling")
def test_a_request_that_no_thread_can_serve_is_forgotten(monkeypatch):
    def no_thread(_self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    table().request(last_launch(256))
    table().wait_for_requested()  # used to wait for ever
    assert table().ready(last_launch(256)) is None
    assert table().wait(last_launch(256))


def test_capacities_waste_little():
    n = np.unique(np.geomspace(256, CAPACITIES[-1], 20_000).astype(int))
    waste = np.array([patch_capacity(int(k)) for k in n]) / n - 1
    assert waste.min() >= 0
    assert waste.max() < 0.30
    assert waste.mean() < 0.13
