"""Results as the kind that a caller asks for: NumPy, torch or JAX."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kimi_jax_prep.errors import PlanError
from kimi_jax_prep.fork import forked_after_jax

RETURN_TENSORS = ("np", "pt", "jax", None)


def converter(return_tensors: Any) -> Callable[[np.ndarray], Any]:
    """A function that turns a result into the kind asked for.

    Raises:
      PlanError: an unknown kind.
      ImportError: "pt" without torch.
      RuntimeError: "jax" in a process that was forked after JAX had started.
    """
    name = getattr(return_tensors, "value", return_tensors)  # transformers' TensorType
    if name is None or isinstance(name, str):
        if name in ("np", None):
            return lambda array: array
        if name == "pt":
            return _torch_converter()
        if name == "jax":
            return _jax_converter()
    valid = ", ".join(map(repr, RETURN_TENSORS))
    raise PlanError(f"`return_tensors` is {return_tensors!r}; expected one of {valid}.")


def _torch_converter() -> Callable[[np.ndarray], Any]:
    try:
        import torch
    except ImportError as err:
        raise ImportError("return_tensors='pt' needs torch: pip install 'kimi-jax-prep[torch]'") from err

    def convert(array: np.ndarray) -> Any:
        if array.dtype.name == "bfloat16":  # which NumPy's bridge does not know
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    return convert


def _jax_converter() -> Callable[[np.ndarray], Any]:
    if forked_after_jax():
        raise RuntimeError(
            "this process was forked after JAX had started, so it cannot make jax.Arrays; ask for 'np', or start "
            "worker processes with the 'spawn' or 'forkserver' method."
        )
    import jax

    from kimi_jax_prep.engine.process import InsideXla

    def convert(array: np.ndarray) -> Any:
        if array.dtype == np.int64 and not jax.config.read("jax_enable_x64"):
            array = array.astype(np.int32)  # as JAX would, but without its warning; grids are far below the limit
        with InsideXla():  # the caller's trace and transfer guard are about the caller's arrays
            return jax.device_put(array)

    return convert
