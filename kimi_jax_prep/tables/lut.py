"""The byte table: the normalized value of every byte in each channel, as in the checkpoint's `normalize`."""

import functools
from typing import Any

import ml_dtypes
import numpy as np
from jaxtyping import Shaped

from kimi_jax_prep.checks import shown
from kimi_jax_prep.config import ConfigLike, as_config
from kimi_jax_prep.errors import PlanError

DTYPES = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "uint8": np.dtype(np.uint8),
}


def dtype_name(dtype: Any) -> str:
    """Return the canonical name of an output dtype.

    Args:
      dtype: "float32", "bfloat16", "float16" or "uint8"; or the same dtype as NumPy, JAX or torch write it, such as
        `np.float32`, `np.dtype("uint8")`, `jnp.bfloat16` or `torch.bfloat16`.

    Raises:
      PlanError: another dtype; the message lists the valid ones.
    """
    name = dtype
    if type(dtype).__module__ == "torch":
        name = str(dtype).removeprefix("torch.")
    elif isinstance(dtype, np.dtype | type):
        try:
            given = np.dtype(dtype)
        except TypeError:
            given = None
        # By equality, not by name: a dtype of the other byte order has the same name.
        name = next((valid for valid, known in DTYPES.items() if known == given), None)
    if not isinstance(name, str) or name not in DTYPES:
        raise PlanError(
            f"`dtype` is {shown(dtype)}; expected one of {', '.join(map(repr, DTYPES))}, or the same dtype of NumPy, "
            "JAX or torch."
        )
    return name


def output_dtype(dtype: Any) -> np.dtype:
    """Return the NumPy dtype of an output dtype, which is anything that `dtype_name` accepts.

    Raises:
      PlanError: another dtype; the message lists the valid ones.
    """
    return DTYPES[dtype_name(dtype)]


def normalize_lut(config: ConfigLike, *, dtype: Any = "float32") -> Shaped[np.ndarray, "256 3"]:
    """Return the byte table: `lut[v, c]` is the normalized value of byte `v` in channel `c`.

    Args:
      config: provides `image_mean` and `image_std`.
      dtype: "float32"; "bfloat16" or "float16", which are the float32 table rounded to nearest even; or
        "uint8", which is the byte itself (normalize later, on the device). Also as a dtype of NumPy, JAX or torch.

    Returns:
      A read-only NumPy array, shared between calls.

    Raises:
      PlanError: an unknown dtype.
      TypeError: `config` is not a config.
    """
    read = as_config(config)
    return _normalize_lut(read.image_mean, read.image_std, output_dtype(dtype))


@functools.lru_cache(maxsize=32)
def _normalize_lut(
    mean: tuple[float, float, float], std: tuple[float, float, float], dtype: np.dtype
) -> Shaped[np.ndarray, "256 3"]:
    if dtype == np.uint8:
        lut = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, axis=1)
    else:
        # The checkpoint computes in float64 and stores float32 after each of the three steps. Computing all of
        # it in float32 changes 422 of 768 entries for CLIP's mean and std.
        unit = (np.arange(256, dtype=np.float64) / 255.0).astype(np.float32)
        # Legal means and stds beyond float32 give infinities and NaN here, as they do in the checkpoint.
        with np.errstate(all="ignore"):
            shifted = (unit[:, None].astype(np.float64) - np.array(mean)).astype(np.float32)
            scaled = shifted.astype(np.float64) * (1.0 / np.array(std))
            lut = scaled.astype(np.float32).astype(dtype)
    lut.flags.writeable = False
    return lut
