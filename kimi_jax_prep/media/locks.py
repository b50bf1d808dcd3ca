"""Locks around decoding: Pillow and PyAV read a file by its one position, so its readers take turns.

The only file outside the engine that has locks. They are re-entrant, since a signal handler may decode too, and a
forked child starts without those of its parent.
"""

import contextlib
import io
import os
import threading
from collections.abc import Iterator
from typing import Any

_held: dict[int, Any] = {}


def new_lock() -> Any:
    """A re-entrant lock for one video."""
    return threading.RLock()


@contextlib.contextmanager
def reading(image: Any) -> Iterator[None]:
    """Take turns with whoever reads the file under a PIL image, and leave the file at the position that it had.

    An image that is in memory has no file, and no turn to wait for.
    """
    file = getattr(image, "fp", None) or getattr(image, "_fp", None)
    if file is None:
        yield
        return
    with _turn(_key(image, file)):
        position = _position(file)
        try:
            yield
        finally:
            # Pillow closes files that it has opened itself.
            if position is not None and not getattr(file, "closed", False):
                with contextlib.suppress(OSError, ValueError):
                    file.seek(position)


def _key(image: Any, file: Any) -> int:
    """What two images must share to wait for each other."""
    if getattr(image, "_exclusive_fp", False):
        return id(image)
    if type(file) is io.BytesIO or (type(file) is io.BufferedReader and type(file.raw) is io.FileIO):
        return id(file)
    return 0  # a member of an archive or a remote file: nobody knows what lies under it


@contextlib.contextmanager
def _turn(key: int) -> Iterator[None]:
    # Dict operations are atomic: no further lock is needed, which a signal handler could find taken.
    while True:
        lock = _held.setdefault(key, threading.RLock())
        outermost = not lock._is_owned()  # as `threading.Condition` asks; there is no public name for it
        # A `with` statement instead of `acquire`: Python runs no signal handler between taking the lock and the block
        # that releases it, so a handler that raises cannot leave the lock taken for ever.
        with lock:
            if _held.get(key) is not lock:
                continue
            try:
                yield
            finally:
                if outermost:
                    _held.pop(key, None)
            return


def is_reading() -> bool:
    """Whether this thread is inside `reading`: a file or a signal handler of the caller runs, and preprocesses too."""
    return any(lock._is_owned() for lock in list(_held.values()))


def _position(file: Any) -> int | None:
    try:
        return file.tell()
    except (AttributeError, OSError, ValueError):
        return None


def _after_fork_in_child() -> None:
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
