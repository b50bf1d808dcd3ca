"""The engine's place in its process: JAX's settings set aside, re-entrant calls told apart, and a clean exit.

CPython stops daemon threads where they next ask for the interpreter; one that comes back from XLA's C++ then aborts the
process. So at exit this module waits for threads inside XLA and lets no daemon thread in again.
"""

import atexit
import contextlib
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax

# At exit, wait this long for daemon threads that are inside XLA.
_EXIT_SECONDS = 10.0

_exiting = False
# Threads that are inside XLA, by entry. A dict, whose single operations are atomic: see `buffers`.
_inside: dict[int, threading.Thread] = {}
_entries = itertools.count()
_at_exit: list[Callable[[], None]] = []


def num_cpus() -> int:
    """CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_exiting() -> bool:
    """Whether the interpreter runs its exit handlers: no thread is started any more, and nothing is compiled ahead."""
    return _exiting


def is_inside_xla() -> bool:
    """Whether this thread is inside XLA already: in a signal handler or `__del__` that interrupted a call there."""
    me = threading.current_thread()
    return any(thread is me for thread in list(_inside.values()))


def before_exit(stop: Callable[[], None]) -> None:
    """Have `stop` called at exit, before daemon threads are waited for."""
    _at_exit.append(stop)


class InsideXla:
    """Context of everything that enters XLA: with the engine's own settings of JAX, and waited for at exit.

    The caller's settings (a trace under `jit`, `jax.transfer_guard`, `jax.debug_nans`, ...) are about the caller's
    arrays. Setting them costs 5 to 10 microseconds each, reading one a tenth of one, so only those in force are set.
    """

    __slots__ = ("_entry", "_settings")

    def __enter__(self) -> None:
        thread = threading.current_thread()
        self._entry = next(_entries)
        _inside[self._entry] = thread
        if _exiting and thread.daemon:
            _inside.pop(self._entry, None)
            while True:
                time.sleep(3600)  # the process ends meanwhile
        self._settings = _own_settings()
        if self._settings is not None:
            self._settings.__enter__()

    def __exit__(self, *error: Any) -> None:
        try:
            if self._settings is not None:
                self._settings.__exit__(*error)
        finally:
            _inside.pop(self._entry, None)


def _own_settings() -> contextlib.ExitStack | None:
    config = jax.config
    for name in _NAMES:
        if getattr(config, name):
            break
    else:
        if _trace_is_clean():
            return None
    stack = contextlib.ExitStack()
    if not _trace_is_clean():
        stack.enter_context(jax.ensure_compile_time_eval())
    for name, context in _SETTINGS:
        if getattr(config, name, None):
            stack.enter_context(context())
    return stack


# Not public; without it every entry is made as if a trace were running.
_trace_is_clean: Callable[[], bool] = getattr(sys.modules.get("jax._src.core"), "trace_state_clean", lambda: False)


def _allow_transfers() -> contextlib.AbstractContextManager[Any]:
    return jax.transfer_guard("allow")


_SETTINGS: tuple[tuple[str, Callable[[], contextlib.AbstractContextManager[Any]]], ...] = (
    ("jax_transfer_guard", _allow_transfers),
    ("jax_transfer_guard_host_to_device", _allow_transfers),
    ("jax_transfer_guard_device_to_device", _allow_transfers),
    ("jax_transfer_guard_device_to_host", _allow_transfers),
    ("jax_debug_nans", lambda: jax.debug_nans(False)),
    ("jax_debug_infs", lambda: jax.debug_infs(False)),
    ("jax_disable_jit", lambda: jax.disable_jit(False)),
    ("jax_check_tracer_leaks", lambda: jax.check_tracer_leaks(False)),
)
# What a version of JAX does not have is not set.
_NAMES = tuple(name for name, _ in _SETTINGS if hasattr(jax.config, name))


def _wait_for_xla() -> None:
    global _exiting
    _exiting = True
    for stop in _at_exit:
        stop()
    deadline = time.monotonic() + _EXIT_SECONDS
    while any(thread.daemon for thread in list(_inside.values())) and time.monotonic() < deadline:
        time.sleep(0.001)


# Registered after JAX's own handler, and so run before it.
atexit.register(_wait_for_xla)


def _after_fork_in_child() -> None:
    _inside.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
