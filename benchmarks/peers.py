"""What our users run today, each as a function from PIL images to a float32 array of patches."""

from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

import kimi_jax_prep as kjp

Peer = Callable[[Sequence[Image.Image]], np.ndarray]


def checkpoint_arithmetic(images: Sequence[Image.Image]) -> np.ndarray:
    """The reference: NumPy and Pillow, as the checkpoint's own processor computes."""
    from kimi_jax_prep import reference

    return reference.preprocess(images, kjp.KIMI_K25).pixel_values


def numba_kernel() -> Callable[..., None]:
    """One parallel loop over every element of the padded frames, compiled by numba."""
    import numba

    @numba.njit(parallel=True)
    def fill(frames, height, width, lut, patch, out):  # frames (t, h, w, 3) before padding to (height, width)
        t, h, w, _ = frames.shape
        columns = width // patch
        rows = height // patch
        for i in numba.prange(t * height * width * 3):
            c = i % 3
            x = i // 3 % width
            y = i // (3 * width) % height
            f = i // (3 * width * height)
            byte = frames[f, y, x, c] if y < h and x < w else 0
            n = (f * rows + y // patch) * columns + x // patch
            out[n, c, y % patch, x % patch] = lut[byte, c]

    return fill


def numba_processor(resize: Callable[[Image.Image, int, int], np.ndarray]) -> Peer:
    """A serial resize of each picture, then the numba loop."""
    fill, lut = numba_kernel(), kjp.normalize_lut(kjp.KIMI_K25)

    def run(images: Sequence[Image.Image]) -> np.ndarray:
        parts = []
        for image in images:
            plan = kjp.plan_image(width=image.width, height=image.height, config=kjp.KIMI_K25)
            frame = resize(image, plan.width, plan.height)
            out = np.empty((plan.num_patches, 3, 14, 14), np.float32)
            fill(frame[None], plan.height + plan.pad_bottom, plan.width + plan.pad_right, lut, 14, out)
            parts.append(out)
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    return run


def pillow_resize(image: Image.Image, width: int, height: int) -> np.ndarray:
    """The exact one."""
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


def opencv_resize(image: Image.Image, width: int, height: int) -> np.ndarray:
    """Fast and inexact: no antialiasing, another kernel."""
    import cv2

    return cv2.resize(np.asarray(image), (width, height), interpolation=cv2.INTER_CUBIC)


def transformers_processor() -> Peer | None:
    """transformers' own port (torchvision's resize, other pixels), or None without torchvision."""
    try:
        import torchvision  # noqa: F401
        from transformers.models.kimi_k25.image_processing_kimi_k25 import Kimi_K25ImageProcessor
    except ImportError:
        return None
    processor = Kimi_K25ImageProcessor()
    return lambda images: processor(list(images), return_tensors="pt")["pixel_values"].numpy()


def all_peers() -> dict[str, tuple[Peer, bool]]:
    """Every peer at hand, and whether its pixels are the checkpoint's."""
    peers: dict[str, tuple[Peer, bool]] = {
        "checkpoint's arithmetic": (checkpoint_arithmetic, True),
        "numba": (numba_processor(pillow_resize), True),
        "numba + OpenCV": (numba_processor(opencv_resize), False),
    }
    transformers = transformers_processor()
    if transformers is not None:
        peers["transformers"] = (transformers, False)
    return peers
