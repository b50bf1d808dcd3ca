"""What this process keeps for one CPU backend of JAX: its device, the compiled programs, and the taps on the device.

There is one `Runtime` at a time. It is made anew in a forked child, and when JAX's backends were cleared: programs and
arrays belong to the client that made them.
"""

import contextlib
import warnings
from typing import Any

import jax

from kimi_jax_prep.engine import process
from kimi_jax_prep.engine.buffers import Cache
from kimi_jax_prep.engine.programs import Programs
from kimi_jax_prep.fork import forked_after_jax

_TAPS_BYTES = 64 << 20

_current: "Runtime | None" = None
_warned = False
_warned_of_failure = False


class Runtime:
    """Programs and taps of one device.

    Args:
      device: of the CPU backend, also where JAX's default is an accelerator: pixels are prepared on the host.
    """

    def __init__(self, device: Any) -> None:
        self.device = device
        self.programs = Programs(device)
        self.taps = Cache(_TAPS_BYTES)
        """Of axes by their sizes: frames of one video or camera share them."""


def runtime() -> Runtime | None:
    """This process's, or None where JAX cannot be used: after a fork, or without a CPU backend (one warning each)."""
    global _current
    if forked_after_jax():
        return None
    try:
        # The first time, JAX makes the backend, and daemon threads must not be in there at exit.
        with process.InsideXla() if _current is None else contextlib.nullcontext():
            device = jax.local_devices(backend="cpu")[0]
    except RuntimeError as err:
        _warn_of_no_cpu(err)
        return None
    current = _current
    if current is None or current.device is not device:
        current = _current = Runtime(device)
    return current


def clear() -> None:
    """Forget everything that lies on the device but the compiled programs."""
    if _current is not None:
        _current.taps.clear()


def forget() -> None:
    """Have the next call make a new `Runtime`: what this one holds has turned out to be unusable."""
    global _current
    _current = None


def cached_bytes() -> int:
    """Bytes of taps that are kept."""
    return 0 if _current is None else _current.taps.cached_bytes


def is_deletion(err: Exception) -> bool:
    """Whether JAX refused an array because somebody deleted it."""
    return isinstance(err, RuntimeError | ValueError) and "has been deleted" in str(err)


def warn_of_failure(err: Exception) -> None:
    """One warning a process about a JAX that fails. Deleted arrays are made again without one."""
    global _warned_of_failure
    if not _warned_of_failure and not is_deletion(err):
        _warned_of_failure = True
        warnings.warn(
            f"JAX failed ({type(err).__name__}: {err}). It is started anew; while that does not work, NumPy computes "
            "the same bits, more slowly.",
            RuntimeWarning,
            stacklevel=5,
        )


def _warn_of_no_cpu(err: RuntimeError) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"JAX has no CPU backend here ({err}), so NumPy computes the same bits, more slowly. Add it: "
            "JAX_PLATFORMS=cuda,cpu in place of JAX_PLATFORMS=cuda.",
            RuntimeWarning,
            stacklevel=4,
        )


def _abandon_requests() -> None:
    if _current is not None:
        _current.programs.abandon_queue()


process.before_exit(_abandon_requests)
