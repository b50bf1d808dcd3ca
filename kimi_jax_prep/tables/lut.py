"""The byte table: the normalized value of every byte in each channel, as in the checkpoint's `normalize`."""

import functools

import ml_dtypes
import numpy as np
from jaxtyping import Shaped

from kimi_jax_prep.checks import shown
from kimi_jax_prep.config import MediaProcConfig, as_config
from kimi_jax_prep.errors import PlanError

DTYPES = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "uint8": np.dtype(np.uint8),
}


def output_dtype(dtype: str) -> np.dtype:
    """Return the NumPy dtype for one of the four output names.

    Raises:
      PlanError: an unknown name; the message lists the valid ones.
    """
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise PlanError(f"`dtype` is {shown(dtype)}; expected one of {', '.join(map(repr, DTYPES))}.")
    return DTYPES[dtype]


def normalize_lut(config: MediaProcConfig, *, dtype: str = "float32") -> Shaped[np.ndarray, "256 3"]:
    """Return the byte table: `lut[v, c]` is the normalized value of byte `v` in channel `c`.

    Args:
      config: `image_mean` and `image_std` are used.
      dtype: "float32"; "bfloat16" or "float16", which are the float32 table rounded to nearest even; or "uint8",
        which is the byte itself (to normalize later, on the device).

    Returns:
      A read-only NumPy array, shared between calls.

    Raises:
      PlanError: an unknown dtype.
      ConfigError: `config` is not a MediaProcConfig.
    """
    config = as_config(config)
    return _normalize_lut(config.image_mean, config.image_std, output_dtype(dtype))


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
