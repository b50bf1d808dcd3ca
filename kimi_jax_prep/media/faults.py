"""Whose fault an exception is: the medium's, the machine's, or the caller's own.

Decoders, and files and generators that callers pass, raise exceptions of all classes about a medium. Two kinds that
pass through the same code are not about it: a signal handler's (the time limit of a task queue), and the machine's (no
more open files or memory).
"""

import errno
import signal
from types import CodeType, TracebackType
from typing import Any

from kimi_jax_prep.errors import MediaError, PrepError

_OF_THE_MACHINE = frozenset(
    getattr(errno, name)
    for name in ("EMFILE", "ENFILE", "ENOMEM", "ENOSPC", "EDQUOT", "ENOBUFS", "EAGAIN")
    if hasattr(errno, name)
)


class Reading:
    """Context in which an exception is about a medium: it becomes a `MediaError` with a sentence in front.

    Args:
      what: such as "cannot decode the image".
      keep: classes that stay as they are, such as FileNotFoundError for a path.
    """

    def __init__(self, what: str, *, keep: tuple[type[BaseException], ...] = ()) -> None:
        self._what = what
        self._keep = keep

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, err: BaseException | None, traceback: object) -> None:
        if isinstance(err, Exception) and not isinstance(err, (PrepError, *self._keep)) and is_about_a_medium(err):
            try:
                raise MediaError(f"{self._what}: {described(err)}") from err
            finally:
                del err  # this frame is in the traceback of the new error: a cycle, which would keep the picture


def described(err: BaseException) -> str:
    """The text of an exception, or its class where it has none."""
    return str(err) or type(err).__name__


def is_about_a_medium(err: BaseException) -> bool:
    """Whether it is an `Exception` of neither the machine nor a signal handler."""
    return isinstance(err, Exception) and not is_of_the_machine(err) and not is_of_a_signal_handler(err)


def is_of_the_machine(err: BaseException | None) -> bool:
    """Whether memory, disk space or file descriptors ran out, here or in a cause."""
    while err is not None:
        if isinstance(err, MemoryError) or (isinstance(err, OSError) and err.errno in _OF_THE_MACHINE):
            return True
        err = err.__cause__
    return False


def is_of_a_signal_handler(err: BaseException | None) -> bool:
    """Whether it came out of a function that is registered as a signal handler, here or in a cause."""
    handlers: set[CodeType] | None = None
    while err is not None:
        traceback: TracebackType | None = err.__traceback__
        if traceback is not None and handlers is None:
            handlers = _handlers()
        while traceback is not None and handlers:
            if traceback.tb_frame.f_code in handlers:
                return True
            traceback = traceback.tb_next
        err = err.__cause__
    return False


def _handlers() -> set[CodeType]:
    return {code for number in signal.valid_signals() if (code := _code(signal.getsignal(number))) is not None}


def _code(handler: Any) -> CodeType | None:
    """The code of a function, method, `functools.partial` or callable object."""
    for _ in range(8):
        if hasattr(handler, "__code__"):
            return handler.__code__
        if isinstance(handler, int) or handler is None or isinstance(handler, type(len)):
            return None
        handler = getattr(handler, "func", None) or getattr(handler, "__func__", None) or type(handler).__call__
    return None
