"""Whether JAX can be used in this process: the threads that XLA starts do not survive a fork.

May import: the standard library. The package registers these hooks before it loads anything else. Nothing here takes a
lock that another thread may have held when the process was forked.
"""

import importlib
import os
import sys
import threading
import time
import warnings
from pathlib import Path

# A fork waits this long for other threads that import one of these, which a child may need: a module lock that another
# thread holds is never released in the child.
_IMPORT_SECONDS = 5.0
_NEEDED = frozenset({"kimi_jax_prep", "numpy", "PIL", "av", "jax", "jaxlib", "jaxtyping", "ml_dtypes", "transformers"})

_dead = False
_warned = False


def _jax_has_started() -> bool:
    """Whether JAX has made a backend, or is making one. `backends_are_initialized` would wait for JAX's lock."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is None:
        return False
    spec = getattr(sys.modules.get("jax"), "__spec__", None)
    if getattr(spec, "_initializing", False):
        return True
    lock = getattr(bridge, "_backend_lock", None)
    if not hasattr(bridge, "_backends") or lock is None:
        return True  # a layout that is not known here: NumPy is always right
    return bool(bridge._backends) or lock.locked()


def _has_xla_threads() -> bool | None:
    """Whether XLA's threads run in this process, or None where the system does not list threads."""
    tasks = Path("/proc/self/task")
    try:
        names = [(task / "comm").read_text() for task in tasks.iterdir()]
    except OSError:
        return None
    return any("xla" in name.lower() for name in names)


def _wait_for_imports() -> None:
    """In the parent, before a fork: wait until no other thread imports a module that the child may need."""
    locks = getattr(getattr(importlib, "_bootstrap", None), "_module_locks", None)
    if locks is None:
        return
    me, deadline = threading.get_ident(), time.monotonic() + _IMPORT_SECONDS
    while time.monotonic() < deadline:
        held = {name: getattr(lock(), "owner", None) for name, lock in list(locks.items())}
        # A thread that forks inside an import may be what the others wait for.
        if me in held.values():
            return
        if not any(owner is not None and name.partition(".")[0] in _NEEDED for name, owner in held.items()):
            return
        time.sleep(0.0002)


def _after_fork_in_child() -> None:
    global _dead
    _dead = _dead or _jax_has_started()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_imports, after_in_child=_after_fork_in_child)
# Imported for the first time in a child: JAX may have started before the fork.
if _jax_has_started() and _has_xla_threads() is False:
    _dead = True


def is_forked() -> bool:
    """True in a process that was forked after JAX had started."""
    return _dead


def forked_after_jax() -> bool:
    """True in a process that was forked after JAX had started; the first time with a warning."""
    global _warned
    if _dead and not _warned:
        _warned = True
        warnings.warn(
            "this process was forked after JAX had started, and JAX would hang in it. NumPy computes the same bits, "
            "more slowly. Start worker processes with the 'spawn' or 'forkserver' method.",
            RuntimeWarning,
            stacklevel=3,
        )
    return _dead


def require_jax(what: str) -> None:
    """Refuse what only JAX can do in a process where JAX would hang.

    Args:
      what: the subject of the message, such as "`patchify`".

    Raises:
      RuntimeError: the process was forked after JAX had started.
    """
    if _dead:
        raise RuntimeError(
            f"{what} needs JAX, which would hang here: this process was forked after JAX had started. Start worker "
            "processes with the 'spawn' or 'forkserver' method."
        )
