"""Memory that is used again: result buffers that XLA owns, byte canvases that XLA reads, and a cache bounded in bytes.

Pages that a process touches for the first time cost more than the work done on them, so buffers come back here when
nothing refers to them any more, and never before.
"""

import itertools
import math
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np
from jaxtyping import UInt8

# XLA reads lent memory without a copy only where it is aligned to this.
_ALIGNMENT = 64
# What an entry of a cache costs beside its value.
_ENTRY_BYTES = 1024


class Pool:
    """Free buffers by key, the least recently used dropped first when they exceed a number of bytes.

    Args:
      max_bytes: of free buffers held; 0 turns keeping off.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._free: OrderedDict[int, tuple[Hashable, int, Any]] = OrderedDict()
        self._returned: deque[tuple[Hashable, int, Any]] = deque()
        self._bytes = 0
        self._tickets = itertools.count()

    @property
    def cached_bytes(self) -> int:
        """Bytes of free buffers held."""
        return self._bytes

    def take(self, key: Hashable) -> Any | None:
        """A free buffer of this key, the one used last, or None."""
        with self._lock:
            self._sort_in()
            for ticket in reversed(self._free):
                if self._free[ticket][0] == key:
                    _, size, buffer = self._free.pop(ticket)
                    self._bytes -= size
                    return buffer
        return None

    def give(self, key: Hashable, size: int, buffer: Any) -> None:
        """Hand a buffer back that nothing refers to any more. Finalizers may call this at any moment."""
        if size > self.max_bytes:
            return
        self._returned.append((key, size, buffer))
        # A finalizer may run in a thread that is inside this pool: then whoever holds the lock sorts in what came.
        while self._returned and self._lock.acquire(blocking=False):
            try:
                self._sort_in()
            finally:
                self._lock.release()

    def clear(self) -> None:
        """Drop all free buffers."""
        with self._lock:
            self._returned.clear()
            self._free.clear()
            self._bytes = 0

    def _sort_in(self) -> None:
        while self._returned:
            key, size, buffer = self._returned.popleft()
            self._free[next(self._tickets)] = (key, size, buffer)
            self._bytes += size
        while self._bytes > self.max_bytes:
            _, (_, dropped, _) = self._free.popitem(last=False)
            self._bytes -= dropped


class Cache:
    """Values by key, bounded in bytes; the least recently used go first. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable, make: Callable[[], tuple[int, Any]]) -> Any:
        """The value of a key; `make` returns (bytes, value) and may run twice if two threads need it at once."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][1]
        size, value = make()
        size += _ENTRY_BYTES
        with self._lock:
            if key not in self._values:
                self._values[key] = (size, value)
                self._bytes += size
            while self._bytes > self._max_bytes and len(self._values) > 1:
                _, (dropped, _) = self._values.popitem(last=False)
                self._bytes -= dropped
            return self._values[key][1] if key in self._values else value


class Lent:
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
        """The memory, or its first entries, as an argument of a launch."""
        lent = self._on_device.get(length)
        if lent is None:
            part = self.array if length is None else self.array[:length]
            lent = jax.device_put(part, self._device, may_alias=True)
            if lent.unsafe_buffer_pointer() != part.ctypes.data:
                raise RuntimeError(f"JAX {jax.__version__} copied aligned host memory instead of sharing it")
            self._on_device[length] = lent
        return lent


class Owner:
    """Keeps one XLA buffer alive for all NumPy arrays and tensors that look into it, then hands it back.

    NumPy collapses chains of views to the first array, whose base is this object: it dies with the last of them.
    """

    def __init__(self, buffer: jax.Array, pool: Pool, key: Hashable) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (buffer.unsafe_buffer_pointer(), False),
            "shape": (buffer.nbytes,),
            "typestr": "|u1",
        }
        # The finalizer's arguments keep the buffer alive until then.
        weakref.finalize(self, pool.give, key, buffer.nbytes, buffer).atexit = False

    def bytes(self) -> UInt8[np.ndarray, "n"]:
        """All bytes of the buffer, writable."""
        return np.asarray(self)
