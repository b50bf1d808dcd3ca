"""Reusable memory: result buffers that XLA owns, host buffers that XLA reads in place, and a byte-bounded cache.

The first touch of a page costs more than the work done on it, so buffers return to a pool when nothing refers to them
any more, and never before.

Nothing here takes a lock: finalizers and signal handlers may come in at any moment, also in the middle of one of these
functions on the same thread. Every shared structure is a dict whose single operations are atomic.
"""

import itertools
import math
import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import UInt8

from kimi_jax_prep.engine.process import InsideXla
from kimi_jax_prep.fork import is_forked

# XLA reads host memory without a copy only where it is aligned to this.
_ALIGNMENT = 64
# What an entry of a cache costs beside its value.
_ENTRY_BYTES = 1024


class _Free(NamedTuple):
    key: Hashable
    size: int
    buffer: Any


class Pool:
    """Free buffers by key; the least recently used ones go first when they exceed a number of bytes.

    Args:
      max_bytes: of free buffers held; 0 keeps none.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._free: dict[int, _Free] = {}
        self._tickets = itertools.count()

    @property
    def cached_bytes(self) -> int:
        """Bytes of free buffers held."""
        return sum(free.size for free in list(self._free.values()))

    def take(self, key: Hashable) -> Any | None:
        """The free buffer of this key that was used last, or None."""
        for ticket in reversed(list(self._free)):
            free = self._free.get(ticket)
            if free is not None and free.key == key and self._free.pop(ticket, None) is not None:
                return free.buffer
        return None

    def give(self, key: Hashable, size: int, buffer: Any) -> None:
        """Return a buffer that nothing refers to any more and nothing writes to. Finalizers may call this."""
        if size > self.max_bytes:
            return
        self._free[next(self._tickets)] = _Free(key, size, buffer)
        excess = self.cached_bytes - self.max_bytes
        if excess > 0:
            self._drop(excess)

    def clear(self) -> None:
        """Free all buffers held."""
        self._drop(None)

    def _drop(self, excess: int | None) -> None:
        """Free so many bytes, the least recently used first, or everything."""
        with InsideXla():  # which freeing a buffer enters
            for ticket in list(self._free):
                dropped = self._free.pop(ticket, None)
                if dropped is not None and excess is not None:
                    excess -= dropped.size
                    if excess <= 0:
                        return


class Cache:
    """Values by key, the least recently used dropped first when they exceed a number of bytes.

    Not `cachetools.LRUCache`, which needs a lock around each access.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._values: dict[Hashable, tuple[int, Any]] = {}
        self._used: dict[Hashable, int] = {}
        self._clock = itertools.count()

    @property
    def cached_bytes(self) -> int:
        """Bytes of the values held."""
        return sum(size for size, _ in list(self._values.values()))

    def get(self, key: Hashable, make: Callable[[], tuple[int, Any]], *, usable: Callable[[Any], bool]) -> Any:
        """The value of a key.

        Args:
          make: returns (bytes, value); it may run twice if two threads need it at once.
          usable: whether a value that is held can still be used; if not, it is made again.
        """
        self._used[key] = next(self._clock)
        held = self._values.get(key)
        if held is not None and usable(held[1]):
            return held[1]
        size, value = make()
        self._values[key] = (size + _ENTRY_BYTES, value)
        self._trim(key)
        return value

    def clear(self) -> None:
        """Drop all values."""
        for key in list(self._values):
            self._drop(key)

    def _trim(self, newest: Hashable) -> None:
        excess = self.cached_bytes - self._max_bytes
        if excess <= 0:
            return
        keys = list(self._values)
        keys.sort(key=lambda key: self._used.get(key, 0))
        for key in keys:
            if key != newest:
                excess -= self._drop(key)
            if excess <= 0:
                return

    def _drop(self, key: Hashable) -> int:
        self._used.pop(key, None)
        dropped = self._values.pop(key, None)
        return 0 if dropped is None else dropped[0]


class HostBuffer:
    """Memory that the host writes and XLA reads in place. The host must not write while a launch may be reading."""

    __slots__ = ("_device", "_on_device", "array")

    def __init__(self, shape: tuple[int, ...], dtype: Any, device: Any) -> None:
        dtype = np.dtype(dtype)
        size = math.prod(shape) * dtype.itemsize
        raw = np.empty(size + _ALIGNMENT, np.uint8)
        skip = -raw.ctypes.data % _ALIGNMENT
        self.array = raw[skip : skip + size].view(dtype).reshape(shape)
        self._device = device
        self._on_device: dict[int | None, jax.Array] = {}

    def on_device(self, length: int | None = None) -> jax.Array:
        """The memory, or its first entries, as an argument of a launch.

        The jax.Array is kept, but others can delete it (`jax.live_arrays()` lists it), so it is looked at each time.
        """
        shared = self._on_device.get(length)
        if shared is None or shared.is_deleted():
            part = self.array if length is None else self.array[:length]
            shared = jax.device_put(part, self._device, may_alias=True)
            if shared.unsafe_buffer_pointer() != part.ctypes.data:
                raise RuntimeError(f"JAX {jax.__version__} copied aligned host memory instead of sharing it")
            self._on_device[length] = shared
        return shared


class ResultBuffer:
    """Lease of one XLA buffer by all NumPy arrays and tensors that look into it; the last of them returns it.

    NumPy collapses chains of views to the first array, whose base is this object: it dies with the last view.
    """

    def __init__(self, buffer: jax.Array, pool: Pool, key: Hashable) -> None:
        # A buffer that is exported through the buffer protocol keeps its memory even if somebody deletes the
        # jax.Array (`jax.live_arrays()` lists it).
        hold = memoryview(buffer)
        self.__array_interface__ = {
            "version": 3,
            "data": (buffer.unsafe_buffer_pointer(), False),
            "shape": (buffer.nbytes,),
            "typestr": "|u1",
        }
        # The finalizer's arguments keep the memory alive until then.
        weakref.finalize(self, _return, pool, key, buffer, hold).atexit = False

    def bytes(self) -> UInt8[np.ndarray, "n"]:
        """All bytes of the buffer, writable."""
        return np.asarray(self)


# Buffers of the parent in a forked child: freeing them would enter XLA there.
_abandoned: list[Any] = []


def _return(pool: Pool, key: Hashable, buffer: jax.Array, hold: memoryview) -> None:
    if is_forked():
        _abandoned.append((buffer, hold))
        return
    with InsideXla():
        # XLA does not take over the memory of a buffer that is exported.
        hold.release()
        if not buffer.is_deleted():
            pool.give(key, buffer.nbytes, buffer)
