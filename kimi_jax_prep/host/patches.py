"""One frame to patches with NumPy and Pillow: render, pad, cut, look up."""

import numpy as np
from jaxtyping import Shaped
from PIL import Image

from kimi_jax_prep.config import MediaProcConfig
from kimi_jax_prep.host.render import render
from kimi_jax_prep.plan import MediaPlan


def frame_patches(
    image: Image.Image,
    plan: MediaPlan,
    config: MediaProcConfig,
    lut: Shaped[np.ndarray, "..."],
    out: Shaped[np.ndarray, "n 3 p p"],
) -> None:
    """Write the patches of one decoded frame: patch rows, then patch columns; channels first in each patch.

    Args:
      plan: sizes of the image or video chunk that the frame belongs to.
      lut: the byte table in the dtype of `out`: (256,) for all channels, or (256, 3).
      out: memory for the patches of this frame.

    Raises:
      MediaError: the frame cannot become RGB, or be resized.
    """
    pixels = np.asarray(render(image, plan, config))
    padded = np.pad(pixels, ((0, plan.pad_bottom), (0, plan.pad_right), (0, 0)))
    p = config.patch_size
    rows, columns = padded.shape[0] // p, padded.shape[1] // p
    # (r p) (k q) c -> r k c p q
    cut = padded.reshape(rows, p, columns, p, 3).transpose(0, 2, 4, 1, 3)
    shaped = out.reshape(rows, columns, 3, p, p)
    for c in range(3):
        shaped[:, :, c] = (lut if lut.ndim == 1 else lut[:, c])[cut[:, :, c]]
