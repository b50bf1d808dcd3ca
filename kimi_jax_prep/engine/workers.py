"""Tasks in turn or side by side, in a pool of this library's own; one pool for each number of threads."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

_EXECUTORS: dict[int, ThreadPoolExecutor] = {}


def in_turn(tasks: Iterable[Callable[[], None]]) -> None:
    """Run tasks one after another."""
    for task in tasks:
        task()


def side_by_side(tasks: Iterable[Callable[[], None]], num_threads: int) -> None:
    """Run tasks on so many threads. Returns when all have ended, also when one fails; raises the first one's error."""
    pending = list(tasks)
    if len(pending) == 1:
        pending[0]()
        return
    futures = [_executor(num_threads).submit(task) for task in pending]
    errors = [future.exception() for future in futures]  # waits for all: the canvas must be at rest
    error = next((error for error in errors if error is not None), None)
    if error is not None:
        try:
            raise error
        finally:
            # This frame is in its traceback: with these names it would be a cycle that keeps the pictures.
            del futures, errors, error


def _executor(num_threads: int) -> ThreadPoolExecutor:
    executor = _EXECUTORS.get(num_threads)
    if executor is None:
        executor = ThreadPoolExecutor(num_threads, thread_name_prefix="kimi_jax_prep")
        executor = _EXECUTORS.setdefault(num_threads, executor)
    return executor
