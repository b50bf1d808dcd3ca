"""Which formats Pillow may open: the default, a list of the user's, everything; and what a refusal says."""

import io
import pickle
import struct

import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image

import kimi_jax_prep as kjp
from kimi_jax_prep.media.options import REFUSED_FORMATS, SAFE_FORMATS, MediaOptions

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
# Formats that Pillow writes without loss, and that hold RGB.
LOSSLESS = {"BMP": {}, "DIB": {}, "PNG": {}, "PPM": {}, "QOI": {}, "TGA": {}, "TIFF": {}, "WEBP": {"lossless": True}}


def written(name: str, **options) -> bytes:
    if name == "QOI":  # Pillow 11 reads it and does not write it
        pixels = b"".join(b"\xfe" + pixel.tobytes() for pixel in PIXELS.reshape(-1, 3))
        return b"qoif" + struct.pack(">IIBB", PIXELS.shape[1], PIXELS.shape[0], 3, 0) + pixels + bytes(7) + b"\1"
    stream = io.BytesIO()
    Image.fromarray(PIXELS).save(stream, name, **options)
    return stream.getvalue()


@pytest.mark.parametrize("name", LOSSLESS)
def test_safe_formats_are_opened(name):
    want = kjp.preprocess([PIXELS]).pixel_values
    data = written(name, **LOSSLESS[name])
    assert_bit_equal(kjp.preprocess([data]).pixel_values, want, what=name)
    assert_bit_equal(kjp.preprocess([data], formats=[name.lower()]).pixel_values, want, what=f"{name} alone")


@pytest.mark.parametrize("name", ["PCX", "SGI", "DDS", "MSP", "XBM"])
def test_other_formats_are_opened_only_where_they_are_named(name):
    stream = io.BytesIO()
    Image.fromarray(PIXELS).convert("1" if name in ("MSP", "XBM") else "RGB").save(stream, name)
    data = stream.getvalue()
    with Image.open(io.BytesIO(data)) as image:
        want = kjp.preprocess([image.convert("RGB")]).pixel_values
    with pytest.raises(kjp.MediaError, match=rf"^medias\[0\]: {name} is not opened: `formats` are AVIF.*formats=None"):
        kjp.preprocess([data])
    for formats in (None, (*SAFE_FORMATS, name)):
        assert_bit_equal(kjp.preprocess([data], formats=formats).pixel_values, want, what=f"{name}, {formats}")


def test_a_narrow_list_refuses_the_rest_on_every_way_in(tmp_path):
    data, path = written("PNG"), tmp_path / "picture.png"
    path.write_bytes(data)
    for medium in (data, path, io.BytesIO(data), {"type": "image", "image": data}):
        with pytest.raises(kjp.MediaError, match="PNG is not opened: `formats` are JPEG, WEBP"):
            kjp.Preprocessor(formats=("JPEG", "WEBP"))([medium])
    batch = kjp.preprocess([data, written("JPEG")], formats=("JPEG",), on_error="skip")
    assert [failure.index for failure in batch.failures] == [0]


def test_a_refused_file_reaches_no_parser(monkeypatch):
    data = written("PCX")
    Image.init()
    _, accepts = Image.OPEN["PCX"]

    def parser(*_):
        raise AssertionError("the file was parsed")

    monkeypatch.setitem(Image.OPEN, "PCX", (parser, accepts))
    with pytest.raises(kjp.MediaError, match="PCX is not opened"):
        kjp.preprocess([data])


@pytest.mark.parametrize("formats", [SAFE_FORMATS, None, ("JPEG",)])
def test_formats_that_run_programs_are_never_opened(formats):
    data = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 30 30\n%%EndComments\nshowpage\n"
    with pytest.raises(kjp.MediaError, match="EPS is not opened: Pillow would run another program"):
        kjp.preprocess([data], formats=formats)
    for name in REFUSED_FORMATS:
        with pytest.raises(kjp.PlanError, match="never opened"):
            MediaOptions(formats=("PNG", name))


def test_a_picture_of_two_views_is_a_jpeg():
    stream = io.BytesIO()
    image = Image.fromarray(PIXELS)
    image.save(stream, "MPO", save_all=True, append_images=[image])
    with Image.open(io.BytesIO(stream.getvalue())) as opened:
        assert opened.format == "MPO"
        want = kjp.preprocess([opened]).pixel_values
    assert_bit_equal(kjp.preprocess([stream.getvalue()], formats=("JPEG",)).pixel_values, want, what="MPO")


def test_pil_images_are_the_callers_own():
    image = Image.open(io.BytesIO(written("PCX")))
    assert len(kjp.preprocess([image], formats=("PNG",))) == 1


@pytest.mark.parametrize(
    ("formats", "message"),
    [
        ("PNG", "expected names such as"),
        (3, "expected names such as"),
        ((), "at least one name"),
        ((1,), "at least one name"),
        (("JPG",), "'JPG', which Pillow does not read. Did you mean 'JPEG'"),
        (("NOTHING",), r"It reads \['AVIF'"),
    ],
)
def test_impossible_values(formats, message):
    with pytest.raises(kjp.PlanError, match=message):
        MediaOptions(formats=formats)


def test_names_are_kept_as_pillow_writes_them():
    options = MediaOptions(formats=["png", "Jpeg", "PNG"])
    assert options.formats == ("PNG", "JPEG")
    assert pickle.loads(pickle.dumps(kjp.Preprocessor(formats=["png"]))).options.formats == ("PNG",)
    assert MediaOptions().changed() == {}
