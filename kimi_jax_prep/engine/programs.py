"""Compiled programs of this process: each compiled once, on request or in the background, and countable.

A program is named by a frozen `Spec` that knows how to lower itself; equal specs are one program, whoever asks.
"""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import numpy as np

# Compiling in the background keeps a core from the work at hand and, at exit, the interpreter waiting.
_MOST_QUEUED = 8

# LLVM's default for these machines is 256 bits, which halves the speed of the integer passes on AVX-512. On
# narrower machines the option changes nothing.
_COMPILER_OPTIONS = {"xla_cpu_prefer_vector_width": 512}


@runtime_checkable
class Spec(Protocol):
    """A program to be compiled for the CPU: hashable, with all of its static sizes."""

    donate: ClassVar[tuple[int, ...]]
    """Arguments whose memory the result may take over."""

    @property
    def __call__(self) -> Callable[..., Any]:
        """The pure function."""
        ...

    def shapes(self) -> Sequence[tuple[tuple[int, ...], Any]]:
        """Shape and dtype of each argument."""
        ...


def cpu_device() -> Any:
    """The CPU, also where JAX's default is an accelerator: pixels are prepared on the host."""
    return jax.local_devices(backend="cpu")[0]


def compile_spec(spec: Spec) -> Callable[..., jax.Array]:
    """Lower and compile one program for the CPU."""
    sharding = jax.sharding.SingleDeviceSharding(cpu_device())
    args = [jax.ShapeDtypeStruct(shape, np.dtype(dtype), sharding=sharding) for shape, dtype in spec.shapes()]
    jitted = jax.jit(spec.__call__, donate_argnums=spec.donate, keep_unused=True, compiler_options=_COMPILER_OPTIONS)
    return jitted.lower(*args).compile()


class Programs:
    """Programs by spec. Thread-safe; a spec that several threads ask for is compiled once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._futures: dict[Spec, Future[Callable[..., jax.Array]]] = {}
        self._queued = 0
        self._background: ThreadPoolExecutor | None = None

    def ready(self, spec: Spec) -> Callable[..., jax.Array] | None:
        """The program if it is compiled; no side effect."""
        future = self._futures.get(spec)
        return future.result() if future is not None and future.done() else None

    def wait(self, spec: Spec) -> Callable[..., jax.Array]:
        """The program, compiled by this thread if nobody has begun to."""
        with self._lock:
            future = self._futures.get(spec)
            mine = future is None
            if future is None:
                future = self._futures[spec] = Future()
        if mine:
            self._compile(spec, future)
        return future.result()

    def request(self, spec: Spec) -> None:
        """Have the program compiled in the background. Nothing happens if enough is queued: ask again."""
        with self._lock:
            if spec in self._futures or self._queued >= _MOST_QUEUED:
                return
            future = self._futures[spec] = Future()
            self._queued += 1
            if self._background is None:
                self._background = ThreadPoolExecutor(1, thread_name_prefix="kimi_jax_prep-compile")
            self._background.submit(self._compile_queued, spec, future)

    def wait_for_requested(self) -> None:
        """Return when nothing that was requested is left to compile; errors stay with who asks for the program."""
        for future in list(self._futures.values()):
            future.exception()

    def compiled(self) -> tuple[Spec, ...]:
        """Every program that is compiled."""
        return tuple(spec for spec, future in list(self._futures.items()) if future.done())

    def _compile_queued(self, spec: Spec, future: Future) -> None:
        try:
            self._compile(spec, future)
        finally:
            with self._lock:
                self._queued -= 1

    def _compile(self, spec: Spec, future: Future) -> None:
        try:
            future.set_result(compile_spec(spec))
        except BaseException as err:
            # Whoever waits sees the error; the next one may try again.
            with self._lock:
                self._futures.pop(spec, None)
            future.set_exception(err)
            if not isinstance(err, Exception):
                raise


PROGRAMS = Programs()


def _renew_after_fork() -> None:
    # Locks may have been held and threads are gone in the child. JAX itself is dead there if it had started.
    global PROGRAMS
    PROGRAMS = Programs()


os.register_at_fork(after_in_child=_renew_after_fork)
