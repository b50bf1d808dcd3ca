"""Compiled programs: each compiled once, on request or in the background, and countable.

A program is named by a frozen `Spec` that knows how to lower itself; equal specs are one program, whoever asks.
"""

import contextlib
import queue
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import numpy as np

from kimi_jax_prep.engine import process
from kimi_jax_prep.engine.process import InsideXla

Program = Callable[..., jax.Array]

# Compiling in the background takes a core from the work at hand, and the interpreter's exit waits for it.
_MOST_QUEUED = 8
_IDLE_SECONDS = 5.0

# LLVM's default for these machines is 256 bits, which halves the speed of the integer passes on AVX-512. On narrower
# machines the option changes nothing. It is XLA's own and may go away: see `compile_spec`.
_COMPILER_OPTIONS: dict[str, Any] | None = {"xla_cpu_prefer_vector_width": 512}


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


def compile_spec(spec: Spec, device: Any) -> Program:
    """Lower and compile one program for a device of the CPU backend."""
    global _COMPILER_OPTIONS
    sharding = jax.sharding.SingleDeviceSharding(device)
    args = [jax.ShapeDtypeStruct(shape, np.dtype(dtype), sharding=sharding) for shape, dtype in spec.shapes()]
    with InsideXla():
        if _COMPILER_OPTIONS is not None:
            try:
                return _lowered(spec, args, _COMPILER_OPTIONS).compile()
            except Exception:  # an XLA that refuses the option; if it is something else, it comes again below
                pass
        program = _lowered(spec, args, None).compile()
        _COMPILER_OPTIONS = None
        return program


def _lowered(spec: Spec, args: Sequence[Any], options: dict[str, Any] | None) -> Any:
    return jax.jit(spec.__call__, donate_argnums=spec.donate, keep_unused=True, compiler_options=options).lower(*args)


class CompilationError(RuntimeError):
    """A program cannot be compiled here; NumPy computes the same bits."""


class _Abandoned(Exception):
    """Whoever was to compile a program was interrupted, or the process exits."""


class _Entry:
    """A program that was asked for."""

    def __init__(self) -> None:
        self.future: Future[Program] = Future()
        self.claims: dict[str, int] = {}

    def claim(self) -> int:
        """The thread that compiles it: the first that asks. Atomic."""
        return self.claims.setdefault("thread", threading.get_ident())


class Programs:
    """Programs by spec. Thread-safe without a lock, so that signal handlers may ask; each spec is compiled once.

    Args:
      device: of the CPU backend.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._entries: dict[Spec, _Entry] = {}
        self._queue: queue.SimpleQueue[Spec] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failure: CompilationError | None = None
        self._warned = False

    def ready(self, spec: Spec) -> Program | None:
        """The program if it is compiled; no side effect."""
        entry = self._entries.get(spec)
        if entry is None or not entry.future.done() or entry.future.exception() is not None:
            return None
        return entry.future.result()

    def wait(self, spec: Spec) -> Program:
        """The program, compiled by this thread if no other has begun to.

        Raises:
          CompilationError: it cannot be compiled.
        """
        while True:
            entry = self._entries.setdefault(spec, _Entry())
            me = threading.get_ident()
            if not entry.future.done() and entry.claim() == me:
                # A signal handler may have interrupted this very thread while it compiles: both do the work then.
                self._compile(spec, entry)
            try:
                return entry.future.result()
            except _Abandoned:
                continue

    def request(self, spec: Spec) -> None:
        """Have the program compiled in the background. Nothing happens if enough is queued: ask again."""
        if spec in self._entries or self._queue.qsize() >= _MOST_QUEUED or process.is_exiting():
            return
        entry = _Entry()
        if self._entries.setdefault(spec, entry) is not entry:
            return
        self._queue.put(spec)
        if self._thread is None and not self._start():
            self.abandon_queue()

    def wait_for_requested(self) -> None:
        """Return when nothing that was requested is left to compile; errors stay with who asks for the program."""
        for entry in list(self._entries.values()):
            entry.future.exception()

    def warn_of_failure(self) -> None:
        """One warning, on the calling thread, if a program could not be compiled."""
        failure, self._failure = self._failure, None
        if failure is not None and not self._warned:
            self._warned = True
            warnings.warn(
                f"{failure}. NumPy and Pillow compute the same bits, more slowly.", RuntimeWarning, stacklevel=4
            )

    def compiled(self) -> tuple[Spec, ...]:
        """Every program that is compiled."""
        return tuple(spec for spec in list(self._entries) if self.ready(spec) is not None)

    def _start(self) -> bool:
        thread = threading.Thread(target=self._compile_queued, name="kimi_jax_prep-compile", daemon=True)
        self._thread = thread
        try:
            thread.start()
        except (RuntimeError, MemoryError):  # no more threads here
            self._thread = None
            return False
        return True

    def _compile_queued(self) -> None:
        while True:
            try:
                spec = self._queue.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                self._thread = None
                # A request that came in between has seen a thread, and relies on it.
                if self._queue.empty():
                    return
                self._thread = threading.current_thread()
                continue
            entry = self._entries.get(spec)
            if entry is None or entry.future.done() or entry.claim() != threading.get_ident():
                continue
            try:
                self._compile(spec, entry)
            except BaseException:  # reported by `_compile`; this thread serves other requests
                continue

    def _compile(self, spec: Spec, entry: _Entry) -> None:
        try:
            program = compile_spec(spec, self._device)
        except Exception as err:
            # Kept: a compiler that fails once fails at every call.
            error = CompilationError(f"XLA cannot compile {spec!r} here: {type(err).__name__}: {err}")
            self._failure = self._failure or error
            _settle(lambda: entry.future.set_exception(error))
        except BaseException:
            # An interrupt belongs to the thread that got it; others that wait compile for themselves.
            self._abandon(spec, entry)
            raise
        else:
            _settle(lambda: entry.future.set_result(program))

    def _abandon(self, spec: Spec, entry: _Entry) -> None:
        if self._entries.get(spec) is entry:
            self._entries.pop(spec, None)
        _settle(lambda: entry.future.set_exception(_Abandoned()))

    def abandon_queue(self) -> None:
        """Forget requests that no thread has begun to compile."""
        while True:
            try:
                spec = self._queue.get_nowait()
            except queue.Empty:
                return
            entry = self._entries.get(spec)
            if entry is not None and not entry.future.done() and entry.claim() == threading.get_ident():
                self._abandon(spec, entry)


def _settle(settle: Callable[[], None]) -> None:
    # A thread that was interrupted by its own signal handler may compile a program twice.
    with contextlib.suppress(InvalidStateError):
        settle()
