"""The budget of compiled programs: counted, each compiled once, nobody waits longer than NumPy would have taken."""

import threading
from dataclasses import replace

import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image

import kimi_jax_prep as kjp
from kimi_jax_prep import reference
from kimi_jax_prep.engine import programs as _programs
from kimi_jax_prep.engine.tiles import CompositeTile, all_passes
from kimi_jax_prep.plan import CAPACITIES, patch_capacity

# Budgets so small that pictures of a few hundred pixels are resized.
SMALL = replace(kjp.KIMI_K25, in_patch_limit=300, in_patch_limit_each_frame=100)


@pytest.fixture
def compiling(monkeypatch):
    """A process without programs; yields the list of specs as they are compiled."""
    compiled: list[object] = []
    real = _programs.compile_spec

    def counting(spec):
        compiled.append(spec)
        return real(spec)

    monkeypatch.setattr(_programs, "PROGRAMS", _programs.Programs())
    monkeypatch.setattr(_programs, "compile_spec", counting)
    yield compiled
    _programs.PROGRAMS.wait_for_requested()


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
    counting = _programs.compile_spec

    def slow(spec):
        let_go.wait(30)
        return counting(spec)

    monkeypatch.setattr(_programs, "compile_spec", slow)
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
    prep = kjp.Preprocessor()
    large = patch_capacity(400)
    _programs.PROGRAMS.wait(prep._cut(large))
    spec, program = prep._program_for(300)
    assert (spec.capacity, program is not None) == (large, True)
    prep.wait_until_compiled()
    assert prep._program_for(300)[0].capacity == patch_capacity(300) < large


def test_eight_threads_compile_a_program_once(compiling):
    prep = kjp.Preprocessor(SMALL)
    spec = prep._cut(256)
    barrier = threading.Barrier(8)
    programs = []

    def ask():
        barrier.wait()
        programs.append(_programs.PROGRAMS.wait(spec))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiling == [spec]
    assert len(programs) == 8
    assert len(set(map(id, programs))) == 1


@pytest.mark.usefixtures("compiling")
def test_a_failed_compilation_is_the_askers_error_and_can_be_tried_again(monkeypatch):
    counting = _programs.compile_spec

    def failing(_spec):
        raise RuntimeError("no compiler today")

    monkeypatch.setattr(_programs, "compile_spec", failing)
    spec = kjp.Preprocessor()._cut(256)
    with pytest.raises(RuntimeError, match="today"):
        _programs.PROGRAMS.wait(spec)
    monkeypatch.setattr(_programs, "compile_spec", counting)
    assert _programs.PROGRAMS.wait(spec)


def test_capacities_waste_little():
    n = np.unique(np.geomspace(256, CAPACITIES[-1], 20_000).astype(int))
    waste = np.array([patch_capacity(int(k)) for k in n]) / n - 1
    assert waste.min() >= 0
    assert waste.max() < 0.30
    assert waste.mean() < 0.13
