"""Worker threads that help callers with their tasks, and the call that owns tasks and buffers.

The calling thread runs tasks itself and never waits for a thread to become free: a call inside a task of another call,
one at the interpreter's exit, and one where no thread can be started all end. Idle threads end after some seconds.
`concurrent.futures.ThreadPoolExecutor` has none of this: its `submit` takes locks that a signal handler on the same
thread would wait for, and it refuses work once the main thread has ended.
"""

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from kimi_jax_prep.engine import process
from kimi_jax_prep.engine.buffers import Pool

Task = Callable[[], None]

_IDLE_SECONDS = 5.0
# An interrupted call waits this long for tasks on other threads, which may be reading the caller's pictures.
_GRACE_SECONDS = 1.0


class Job:
    """Tasks, taken in order by the calling thread and by the threads that help it."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._tasks = deque(enumerate(tasks))
        self._unfinished = len(self._tasks)
        self._ended: queue.SimpleQueue[tuple[int, BaseException | None]] = queue.SimpleQueue()
        self._helpers: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def help(self) -> None:
        """Run tasks until none is left to start. For worker threads."""
        me = threading.get_ident()
        self._helpers[me] = None
        try:
            while (taken := self._take()) is not None:
                i, task = taken
                error = None
                try:
                    task()
                except BaseException as err:
                    error = err
                # Results and errors go to the caller; this frame keeps neither, nor the task's pictures.
                del taken, task
                self._ended.put((i, error))
                del error
        finally:
            self._helpers.pop(me, None)

    def finish(self) -> None:
        """Run tasks until all have ended. For the calling thread.

        After an error, tasks that have not started are dropped.

        Raises: the error of the first task, in order, that failed.
        """
        failed: dict[int, BaseException] = {}
        while (taken := self._take()) is not None:
            i, task = taken
            try:
                task()
            except Exception as err:
                failed[i] = err
                self.cancel()
            del taken, task
            self._unfinished -= 1
        while self._unfinished:
            i, error = self._ended.get()
            self._unfinished -= 1
            if error is not None:
                failed[i] = error
                self.cancel()
            del error
        if failed:
            try:
                raise failed[min(failed)]
            finally:
                # This frame is in its traceback: with this name it would be a cycle that keeps the pictures.
                del failed

    def cancel(self) -> None:
        """Start no further task."""
        while self._take() is not None:
            self._unfinished -= 1

    def settle(self, seconds: float) -> None:
        """After `cancel`: wait for tasks on other threads, at most so long."""
        deadline = time.monotonic() + seconds
        while self._helpers and time.monotonic() < deadline:
            time.sleep(0.001)

    def _take(self) -> tuple[int, Task] | None:
        try:
            return self._tasks.popleft()
        except IndexError:
            return None


class Workers:
    """Threads that help with jobs; at most one fewer than the largest `num_threads` that was asked for."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._threads: dict[threading.Thread, None] = {}

    def run(self, job: Job, num_threads: int) -> None:
        """Finish a job on the calling thread and up to `num_threads - 1` others. Raises: as `Job.finish`."""
        helpers = min(num_threads, len(job)) - 1
        for _ in range(helpers):
            if len(self._threads) < num_threads - 1:
                self._start()
            self._jobs.put(job)
        job.finish()

    def _start(self) -> None:
        if process.is_exiting():
            return
        # Daemon threads, for `process` sees to it that none is inside XLA when the interpreter ends; others would be
        # joined while they wait for work.
        thread = threading.Thread(target=self._serve, name="kimi_jax_prep", daemon=True)
        self._threads[thread] = None
        try:
            thread.start()
        except (RuntimeError, MemoryError):  # no more threads here: the caller does all tasks
            self._threads.pop(thread, None)

    def _serve(self) -> None:
        try:
            while True:
                job = self._jobs.get(timeout=_IDLE_SECONDS)
                job.help()
                del job
        except queue.Empty:
            pass
        finally:
            self._threads.pop(threading.current_thread(), None)


_workers = Workers()


def _after_fork_in_child() -> None:
    global _workers
    _workers = Workers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Call:
    """Owns the tasks and buffers of one call from start to end. A context.

    Buffers return to the pool only from a call that ends normally. Whatever else ends it (an error, KeyboardInterrupt,
    a timeout's signal handler), tasks that have not started are dropped, those that run are waited for within limits,
    and the buffers are left to the garbage collector: a task or a launch may still write to them.
    """

    def __init__(self, pool: Pool, num_threads: int) -> None:
        self._pool = pool
        self._num_threads = num_threads
        self._leases: list[tuple[Hashable, int, Any]] = []
        self._jobs: dict[int, Job] = {}
        self.is_stopped = False
        """Whether the call has failed: long tasks look at it and end."""

    def __enter__(self) -> "Call":
        return self

    def __exit__(self, kind: object, err: object, traceback: object) -> None:
        leases, self._leases = self._leases, []
        if kind is None:
            for lease in leases:
                self._pool.give(*lease)
            return
        self.is_stopped = True
        jobs = list(self._jobs.values())
        for job in jobs:
            job.cancel()
        for job in jobs:
            job.settle(_GRACE_SECONDS)

    def lease(self, key: Hashable, size: int, make: Callable[[], Any]) -> Any:
        """A buffer for the whole call: a free one of the pool, or a new one of `size` bytes."""
        buffer = self._pool.take(key)
        if buffer is None:
            buffer = make()
        self._leases.append((key, size, buffer))
        return buffer

    def run(self, tasks: Iterable[Task]) -> None:
        """Run tasks side by side. Returns when all have ended.

        Raises: the error of the first one, in order, that failed.
        """
        job = Job(tasks)
        self._jobs[id(job)] = job
        _workers.run(job, self._num_threads)
        self._jobs.pop(id(job), None)

    def run_in_turn(self, tasks: Iterable[Task]) -> None:
        """Run tasks one after another on this thread."""
        for task in tasks:
            task()


class Borrowed:
    """A buffer of the pool for one task. A context; after an error the buffer is left to the garbage collector."""

    __slots__ = ("_buffer", "_key", "_make", "_pool", "_size")

    def __init__(self, pool: Pool, key: Hashable, size: int, make: Callable[[], Any]) -> None:
        self._pool, self._key, self._size, self._make = pool, key, size, make

    def __enter__(self) -> Any:
        self._buffer = self._pool.take(self._key)
        if self._buffer is None:
            self._buffer = self._make()
        return self._buffer

    def __exit__(self, kind: object, err: object, traceback: object) -> None:
        buffer, self._buffer = self._buffer, None
        if kind is None:
            self._pool.give(self._key, self._size, buffer)
