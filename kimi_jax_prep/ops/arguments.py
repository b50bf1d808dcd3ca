"""Array arguments of the pure functions: checks, explicit transfers, and NumPy tables as constants of a program."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

from kimi_jax_prep.checks import shown
from kimi_jax_prep.errors import PlanError

# No machine holds an array of so many bytes; XLA's own error for it would come late, or as an overflow.
_MOST_VALUES = 1 << 40


def described(value: Any) -> str:
    """Dtype and shape of an array, or the value itself, for a message."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype} {tuple(value.shape)}"
    return f"{type(value).__name__} {shown(value)}"


def check_pixels(name: str, value: Any, *, channels: tuple[int, ...], layout: str) -> None:
    """Raise unless `value` is a uint8 array (..., h, w, c) that is not empty.

    Args:
      name: of the argument, for the message.
      channels: valid sizes of the last axis.
      layout: the expected shape, for the message.

    Raises:
      PlanError: with the expected and the given dtype and shape.
    """
    is_array = hasattr(value, "dtype") and hasattr(value, "shape")
    if not is_array or value.dtype != np.uint8:
        raise PlanError(f"`{name}` must be a uint8 array {layout}; got {described(value)}.")
    if len(value.shape) < 3 or value.shape[-1] not in channels or 0 in value.shape:
        raise PlanError(f"`{name}` must be a uint8 array {layout} with no empty axis; got {described(value)}.")


def check_lut(lut: Any) -> None:
    """Raise unless `lut` is a (256, 3) array of numbers.

    Raises:
      PlanError: with what was given.
    """
    is_array = hasattr(lut, "dtype") and hasattr(lut, "shape")
    if not is_array or tuple(lut.shape) != (256, 3) or not jnp.issubdtype(lut.dtype, jnp.number):
        raise PlanError(f"`lut` must be an array of shape (256, 3), from `normalize_lut`; got {described(lut)}.")


def check_size(name: str, shape: tuple[int, ...]) -> None:
    """Raise for arrays that cannot exist.

    Raises:
      PlanError: an axis is longer than int32, or the array has more than 2**40 values.
    """
    if max(shape) >= 2**31 or math.prod(shape) > _MOST_VALUES:
        raise PlanError(f"{name} would have shape {shown(shape)}, which is more than 2**40 values or too long an axis.")


def on_device(array: Shaped[Array | np.ndarray, "..."]) -> Shaped[Array, "..."]:
    """Copy a NumPy array to JAX's default device; pass JAX arrays and tracers through.

    The transfer is explicit, so that `jax.transfer_guard("disallow")` allows it, and a copy, so that the caller may
    overwrite the array while the program still runs.
    """
    return jax.device_put(np.array(array)) if isinstance(array, np.ndarray) else array


class Constant:
    """A NumPy array as a static argument of `jax.jit`: equal bits share one compiled program."""

    __slots__ = ("_key", "value")

    def __init__(self, value: Shaped[np.ndarray, "..."]) -> None:
        self.value = np.array(value)
        self._key = (self.value.dtype.str, str(self.value.dtype), self.value.shape, self.value.tobytes())

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self._key == other._key


def table_arguments(
    lut: Shaped[Array | np.ndarray, "256 3"] | None,
) -> tuple[Shaped[Array, "256 3"] | None, Constant | None]:
    """Split a byte table into a traced and a static argument, of which at most one is given.

    A NumPy table is a constant of the program. It needs no transfer and no sharding, and where all channels are equal
    it has shape (256,): one table is faster to look up.
    """
    if lut is None or not isinstance(lut, np.ndarray):
        return lut, None
    lut = np.ascontiguousarray(lut)
    # Bits are compared, because -0.0 == 0.0.
    bits = lut.view(f"V{lut.itemsize}") if lut.itemsize > 8 else lut.view(f"u{lut.itemsize}")
    return None, Constant(lut[:, 0] if (bits == bits[:, :1]).all() else lut)
