"""Placeholder"""

import numpy as np

from kimi_jax_prep.host.render import render


def frame_patches(image, plan, config, lut, out):
    pixels = np.asarray(render(image, plan, config))
    p = config.patch_size
    f = np.pad(pixels, ((0, plan.pad_bottom), (0, plan.pad_right), (0, 0)))
    h, w, _ = f.shape
    x = f.reshape(h // p, p, w // p, p, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, p, p)
    for c in range(3):
        out[:, c] = (lut if lut.ndim == 1 else lut[:, c])[x[:, c]]
