"""Seeded pictures: noise, which nothing can predict, and photo-like ones for JPEG."""

import io

import numpy as np
from PIL import Image, ImageFilter


def noise(width: int, height: int, *, seed: int) -> Image.Image:
    """Independent random bytes."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def photo_like(width: int, height: int, *, seed: int) -> Image.Image:
    """Structure at every scale: noise of growing size added up."""
    total = np.zeros((height, width, 3), np.float32)
    for octave in range(1, 8):
        small = noise(max(width >> octave, 1), max(height >> octave, 1), seed=seed + octave)
        total += np.asarray(small.resize((width, height), Image.Resampling.BILINEAR), np.float32) * 2 ** (octave - 7)
    scaled = (total - total.min()) * (255 / np.ptp(total))
    return Image.fromarray(scaled.astype(np.uint8)).filter(ImageFilter.GaussianBlur(0.7))


def jpeg(image: Image.Image) -> bytes:
    """Encoded as cameras and browsers do."""
    out = io.BytesIO()
    image.save(out, "JPEG", quality=90)
    return out.getvalue()
