"""Whether JAX is dead in this process: XLA's threads do not survive a fork, and its first call would hang.

Imports nothing but the standard library: the package registers its hook before anything else is loaded.
"""

import os
import sys
import warnings
from pathlib import Path

_dead = False
_warned = False


def _jax_has_started() -> bool:
    bridge = sys.modules.get("jax._src.xla_bridge")
    started = getattr(bridge, "backends_are_initialized", None)
    return started is not None and bool(started())


def _after_fork_in_child() -> None:
    global _dead
    _dead = _dead or _jax_has_started()


os.register_at_fork(after_in_child=_after_fork_in_child)
# Imported for the first time in a child: if JAX has started but its threads are not there, they were left behind.
_tasks = Path("/proc/self/task")
if _jax_has_started() and _tasks.is_dir() and len(list(_tasks.iterdir())) == 1:
    _dead = True


def forked_after_jax() -> bool:
    """True in a process that was forked after JAX had started; the first time with a warning."""
    global _warned
    if _dead and not _warned:
        _warned = True
        warnings.warn(
            "this process was forked after JAX had started, so JAX would hang in it; NumPy answers instead, with the "
            "same bits but more slowly. Start worker processes with the 'spawn' or 'forkserver' method.",
            RuntimeWarning,
            stacklevel=3,
        )
    return _dead
