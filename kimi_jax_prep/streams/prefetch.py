"""`prefetch`: prepare the next items of an iterator on another thread."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from kimi_jax_prep.checks import positive_int

T = TypeVar("T")
# Seconds between looks at whether the other side is still there.
_POLL = 0.5


def prefetch(iterable: Iterable[T], *, size: int = 2) -> Iterator[T]:
    """Iterate with up to `size` items prepared ahead on a host thread, while the device works on the current one.

    Items come in order. An exception of the iterable is raised in the place of the item that it replaces. Closing the
    generator, leaving its scope or an exception in the loop's body stop the thread after the item it is working on, and
    close the iterable if that is a generator. The thread starts with the first item. It has none of JAX's thread-local
    contexts, such as `jax.default_device` or `jax.set_mesh`.

    Args:
      iterable: for example batches, packs or `jax.device_put` of these. Only that thread iterates over it.
      size: items ahead, at least 1.

    Raises:
      PlanError: `size` is not a positive whole number.
      TypeError: `iterable` cannot be iterated over.
      RuntimeError: while iterating, in a process forked after the first item.
    """
    return _items(iter(iterable), positive_int("size", size))


def _items(iterator: Iterator[T], size: int) -> Iterator[T]:
    worker = _Worker(iterator, size)
    try:
        worker.start()
    except RuntimeError:  # the system or the exiting interpreter has no more threads
        yield from iterator
        return
    try:
        while True:
            item, error = worker.next()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
            del item
    finally:
        worker.stop()


_END: Any = object()


class _Worker:
    """A thread that fills a queue. It asks for the next item only when the queue has space."""

    def __init__(self, iterator: Iterator[Any], size: int) -> None:
        self._iterator = iterator
        self._room = threading.Semaphore(size)
        self._ready: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="kimi-jax-prep-prefetch")

    def start(self) -> None:
        self._thread.start()

    def next(self) -> tuple[Any, BaseException | None]:
        while True:
            try:
                found = self._ready.get(timeout=_POLL)
            except queue.Empty:
                if self._thread.is_alive() or not self._ready.empty():
                    continue
                raise RuntimeError(
                    "the prefetch thread is gone: this process was forked while it ran. Call `prefetch` in the process "
                    "that iterates."
                ) from None
            self._room.release()
            return found

    def stop(self) -> None:
        self._stopped = True
        self._room.release()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._has_room():
                item = next(self._iterator, _END)
                self._ready.put((item, None))
                if item is _END:
                    return
                del item
        except BaseException as err:
            self._ready.put((None, err))
        finally:
            close = getattr(self._iterator, "close", None)
            if self._stopped and close is not None:
                close()

    def _has_room(self) -> bool:
        # A generator that nobody closes must not keep the interpreter from exiting.
        while not self._room.acquire(timeout=_POLL):
            if not threading.main_thread().is_alive():
                return False
        return not self._stopped
