"""Reading Pillow's memory: in place, by rectangles, or as a cropped copy; all the same words."""

import gc

import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image

from kimi_jax_prep.host import pixels as _pixels
from kimi_jax_prep.host.pixels import Pixels

BOX = (3, 40, 5, 61)  # top, bottom, left, right


def picture(mode: str) -> Image.Image:
    array = np.random.default_rng(0).integers(0, 256, (50, 70, 4), np.uint8)
    return Image.fromarray(array[..., :3]) if mode == "RGB" else Image.fromarray(array).convert(mode)


@pytest.fixture(params=["shared", "encoded", "cropped"])
def way(request, monkeypatch):
    if request.param != "shared":
        monkeypatch.setattr(_pixels, "_shared_memory", lambda _image: None)
    if request.param == "cropped":
        monkeypatch.setattr(_pixels, "_get_encoder", None)
    return request.param


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "RGBa"])
def test_every_way_reads_the_same_words(mode, way):
    image = picture(mode)
    top, bottom, left, right = BOX
    words = Pixels(image).box(*BOX)
    channels = 3 if mode == "RGB" else 4
    got = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)[..., :channels]
    want = np.frombuffer(image.tobytes(), np.uint8).reshape(50, 70, channels)[top:bottom, left:right]
    assert_bit_equal(got, want, what=f"{mode} {way}")
    assert not words.flags.writeable


def test_words_outlive_the_image_and_the_reader():
    want = np.asarray(picture("RGB")).copy()
    words = Pixels(picture("RGB")).box(0, 50, 0, 70)
    gc.collect()
    clutter = [picture("RGB") for _ in range(50)]  # would take the memory if it were free
    got = np.ascontiguousarray(words).view(np.uint8).reshape(50, 70, 4)[..., :3]
    assert_bit_equal(got, want, what=f"words after {len(clutter)} other pictures")


def test_other_modes_are_refused():
    with pytest.raises(ValueError, match="'CMYK'"):
        Pixels(Image.new("CMYK", (2, 2)))
