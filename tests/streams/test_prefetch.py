"""`prefetch`: order, bounded look-ahead, exceptions in their place, and a thread that always ends."""

import gc
import itertools
import os
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

from kimi_jax_prep import PlanError, prefetch

NAME = "kimi-jax-prep-prefetch"


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == NAME]


@pytest.fixture(autouse=True)
def _no_thread_stays():
    yield
    assert threads() == []


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("items", [[], [1], list(range(50)), [None, None]], ids=len)
def test_items_come_in_order(items, size):
    assert list(prefetch(items, size=size)) == items


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_look_ahead_is_bounded(size):
    taken, enough = [], threading.Event()

    def items():
        for i in itertools.count():
            taken.append(i)
            if i == size:
                enough.set()
            yield i

    ahead = prefetch(items(), size=size)
    assert taken == []
    assert next(ahead) == 0
    assert enough.wait(10)  # item 0 is out, and `size` more are being prepared
    assert max(taken) == size
    ahead.close()
    assert max(taken) == size


def test_work_happens_on_another_thread():
    names = []

    def items():
        names.append(threading.current_thread().name)
        yield 1

    assert list(prefetch(items())) == [1]
    assert names == [NAME]


@pytest.mark.parametrize("place", [0, 1, 5])
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, StopAsyncIteration])
def test_an_exception_takes_the_place_of_its_item(place, kind):
    def items():
        for i in range(10):
            if i == place:
                raise kind("here")
            yield i

    ahead = prefetch(items(), size=3)
    assert list(itertools.islice(ahead, place)) == list(range(place))
    with pytest.raises(kind, match="here"):
        next(ahead)
    assert list(ahead) == []


def test_closing_stops_the_thread_and_closes_the_generator():
    closed = []

    def items():
        try:
            yield from itertools.count()
        finally:
            closed.append(threading.current_thread().name)

    ahead = prefetch(items(), size=2)
    assert [next(ahead), next(ahead)] == [0, 1]
    ahead.close()
    assert closed == [NAME]
    assert threads() == []
    assert list(ahead) == []


def test_an_error_in_the_loop_stops_the_thread():
    def loop():
        for i in prefetch(itertools.count()):
            if i == 3:
                raise RuntimeError("mine")

    # The frame that holds the iterator is part of the traceback; the error is gone behind the block.
    with pytest.raises(RuntimeError, match="mine"):
        loop()
    gc.collect()


def test_a_generator_that_was_never_started_has_no_thread():
    prefetch(itertools.count()).close()
    prefetch(itertools.count())


def test_items_are_not_kept():
    ahead = prefetch((np.zeros(3) + i for i in range(3)), size=1)
    first = weakref.ref(next(ahead))
    next(ahead)
    gc.collect()
    assert first() is None
    ahead.close()


@pytest.mark.parametrize("size", [0, -1, True, 1.5])
@pytest.mark.usefixtures("unchecked")
def test_a_bad_size_is_an_error_at_once(size):
    with pytest.raises(PlanError, match=f"`size` is {size}; expected a positive whole number"):
        prefetch([], size=size)


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_iterable_is_an_error_at_once():
    with pytest.raises(TypeError, match="not iterable"):
        prefetch(3)


def test_without_threads_items_come_in_turn(monkeypatch):
    def cannot_start(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", cannot_start)
    assert list(prefetch(range(5))) == [0, 1, 2, 3, 4]


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_the_interpreter_exits_while_an_iterator_is_open():
    done = run(
        "import itertools, kimi_jax_prep as k; ahead = k.prefetch(itertools.count()); print(next(ahead));"
        "import builtins; builtins.kept = ahead"
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_gets_an_error_instead_of_a_hang():
    done = run(
        """
import itertools, os, sys, warnings
import kimi_jax_prep as k
warnings.simplefilter("ignore")
ahead = k.prefetch(iter([1, 2]), size=1)
next(ahead), next(ahead)
ahead = k.prefetch(itertools.chain([1], iter(__import__("time").sleep, 1)), size=1)
next(ahead)
pid = os.fork()
if pid:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os._exit(status)
try:
    while True:
        next(ahead)
except RuntimeError as err:
    os._exit(0 if "forked while it ran" in str(err) else 2)
"""
    )
    assert done.returncode == 0, done.stderr
