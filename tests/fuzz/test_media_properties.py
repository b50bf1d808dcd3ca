"""Random pictures of every mode, container and kind of metadata, in every form, against the reference.

`HYPOTHESIS_EXAMPLES=2000 python -m pytest tests/test_media_properties.py` looks longer.
"""

import base64
import dataclasses
import io
import operator
import os
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
from bits import assert_bit_equal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms, ImageOps, PngImagePlugin

import kimi_jax_prep as kjp
from kimi_jax_prep import reference

properties = settings(
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", 150)),
    deadline=None,
    derandomize="HYPOTHESIS_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
ORIENTATION = 0x0112
# Bands of 8 bits, or the dtype that makes the mode.
MODES: dict[str, Any] = {
    "1": 1,
    "L": 1,
    "LA": 2,
    "P": 1,
    "RGB": 3,
    "RGBA": 4,
    "CMYK": 4,
    "YCbCr": 3,
    "LAB": 3,
    "HSV": 3,
    "I": "<i4",
    "I;16": "<u2",
    "I;16B": ">u2",
    "F": "<f4",
}
CONTAINERS: dict[str, list[dict[str, Any]]] = {
    "PNG": [{}, {"interlace": 1}, {"bits": 4}],
    "JPEG": [{}, {"progressive": True, "subsampling": 0}],
    "WEBP": [{}, {"lossless": True, "exact": True}],
    "GIF": [{}, {"interlace": 0}],
    "TIFF": [
        {"compression": compression, "big_endian": big}
        for compression in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg")
        for big in (False, True)
    ],
    "BMP": [{}],
    "PPM": [{}],
    "TGA": [{}, {"compression": "tga_rle"}],
    "JPEG2000": [{}],
    "ICO": [{}],
    "AVIF": [{}],
}
ANIMATED = ("PNG", "WEBP", "GIF", "TIFF")


def drawn(mode: str, size: tuple[int, int], seed: int) -> Image.Image:
    """Noise in smooth steps, so that lossy formats keep some of it."""
    rng = np.random.default_rng(seed)
    width, height = size
    made = MODES[mode]
    if isinstance(made, str):
        values = rng.integers(-300, 70000, (height, width)) // rng.choice([1, 300])
        if made != "<f4":
            values = np.clip(values, 0 if "u" in made else None, 65535)
        return Image.frombytes(mode, size, values.astype(made).tobytes())
    bands = rng.integers(0, 256, (height, width, made), np.uint8) & np.uint8(rng.choice([0xFF, 0xE0, 0x80]))
    if mode == "1":
        return Image.fromarray(bands[..., 0]).convert("1")
    image = Image.frombytes(mode, size, bands.tobytes())
    if mode == "P":
        image.putpalette(rng.bytes(768))
    return image


def savable() -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """What this Pillow writes of each mode, and reads again."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {mode: [] for mode in MODES}
    for mode in MODES:
        for container, choices in CONTAINERS.items():
            for choice in choices:
                if choice.get("compression") == "jpeg" and mode not in ("L", "RGB", "CMYK", "YCbCr"):
                    continue  # writing others ends the process in Pillow 12.3, at once or later
                stream = io.BytesIO()
                try:
                    drawn(mode, (20, 20), 0).save(stream, container, **choice)
                    Image.open(stream).load()
                except (OSError, KeyError, ValueError, RuntimeError, SystemError, DeprecationWarning):
                    continue
                found[mode].append((container, choice))
    return found


SAVABLE = savable()
side = st.one_of(st.integers(1, 40), st.integers(1, 150), st.just(1))


class Picture(NamedTuple):
    """What is drawn; the picture itself is made from it in the test, as Pillow uses chance of its own for it."""

    mode: str
    size: tuple[int, int]
    seed: int
    transparency: int | bytes | None
    way: int
    """Which of the containers that take the mode, and how."""
    orientation: int | None
    profile: str | None
    dpi: bool
    gamma: int | None
    """Of a PNG, which gets text as well then."""
    more: int
    """Frames after the first one, where the container has any."""
    frame: int

    @property
    def image(self) -> Image.Image:
        """In memory."""
        image = drawn(self.mode, self.size, self.seed)
        if self.transparency is not None and self.mode in ("1", "L", "P", "RGB", "I;16"):
            image.info["transparency"] = (1, 2, 3) if self.mode == "RGB" else self.transparency
            if self.mode == "RGB" and self.transparency:
                image.info["transparency"] = image.getpixel((0, 0))
            elif self.mode != "P" and isinstance(self.transparency, bytes):
                image.info["transparency"] = self.transparency[0]
        return image

    def encoded(self) -> bytes | None:
        """In a container, if there is one that takes it."""
        if not SAVABLE[self.mode]:
            return None
        containers = sorted({container for container, _ in SAVABLE[self.mode]})
        container = containers[self.way % len(containers)]
        choices = [choice for name, choice in SAVABLE[self.mode] if name == container]
        choice = choices[self.way // len(containers) % len(choices)]
        extra = dict(choice)
        if self.orientation is not None:
            extra["exif"] = Image.Exif()
            extra["exif"][ORIENTATION] = self.orientation
        if self.profile is not None:
            extra["icc_profile"] = PROFILES[self.profile]
        if self.dpi:
            extra["dpi"] = (72, 300)
        if container == "PNG" and self.gamma is not None:
            chunks = PngImagePlugin.PngInfo()
            chunks.add_text("Comment", "a text")
            chunks.add_itxt("Title", "ein Titel", "de", "Titel")
            chunks.add(b"gAMA", self.gamma.to_bytes(4, "big"))
            extra["pnginfo"] = chunks
        if container in ANIMATED and self.more:
            others = [drawn(self.mode, self.size, self.seed + k) for k in range(1, self.more + 1)]
            extra |= {"save_all": True, "append_images": others}
        stream = io.BytesIO()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.image.save(stream, container, **extra)
            Image.open(stream).load()
        # A size or metadata that the container has no room for.
        except (OSError, ValueError, RuntimeError, SystemError, TypeError):
            return None
        return stream.getvalue()

    def open(self, data: bytes) -> Image.Image:
        """At one of its frames."""
        image = Image.open(io.BytesIO(data))
        image.seek(self.frame % getattr(image, "n_frames", 1))
        return image


PROFILES = {"sRGB": ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes(), "broken": b"no profile"}
sizes = st.one_of(st.tuples(side, side), st.tuples(st.integers(1, 900), st.just(1)), st.tuples(st.just(1), side))
pictures = st.builds(
    Picture,
    mode=st.sampled_from(list(MODES)),
    size=sizes,
    seed=st.integers(0, 1 << 20),
    transparency=st.one_of(st.none(), st.integers(0, 255), st.binary(min_size=1, max_size=256)),
    way=st.integers(0, 1000),
    orientation=st.one_of(st.none(), st.integers(0, 9)),
    profile=st.sampled_from([None, *PROFILES]),
    dpi=st.booleans(),
    gamma=st.sampled_from([None, 45455, 100000, 1]),
    more=st.integers(0, 3),
    frame=st.integers(0, 3),
)


class Rules(NamedTuple):
    """What a config is made of: in the test as well, as beartype uses chance for its checks."""

    config: kjp.MediaProcConfig
    limit: int
    one_side: int

    def __call__(self) -> kjp.MediaProcConfig:
        return dataclasses.replace(self.config, in_patch_limit=self.limit, patch_limit_on_one_side=2 * self.one_side)


rules = st.builds(
    Rules,
    st.sampled_from([kjp.KIMI_K25, kjp.KIMI_K3]),
    st.one_of(st.integers(1, 60), st.just(4096)),
    st.one_of(st.integers(1, 20), st.just(256)),
)


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    # Else NumPy would answer for most of the time. Only an exact 1795 x 1795 has more patches.
    kjp.Preprocessor(kjp.KIMI_K3).warmup(max_patches=2000)


def judged(medias: list[Any], config: kjp.MediaProcConfig) -> kjp.PatchBatch | None:
    """The reference's answer, or None where Pillow has no way to RGB."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return reference.preprocess(medias, config)
        except (ValueError, OSError):
            return None


def assert_answers(medias: list[Any], want: kjp.PatchBatch | None, config: kjp.MediaProcConfig, **options: Any) -> None:
    """Every medium of the list has the one answer that is wanted, from both backends."""
    ways = {
        "jax": lambda: kjp.preprocess(medias, config=config, **options),
        "numpy": lambda: kjp.Preprocessor(config, backend="numpy", **options)(medias),
    }
    for name, way in ways.items():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r".*are clipped to 0\.\.255")
            if want is None:
                with pytest.raises(kjp.MediaError, match=r"^medias\[0\]: "):
                    way()
                continue
            batch = way()
        assert len(batch.split()) == len(medias)
        for i, part in enumerate(batch.split()):
            assert_bit_equal(part, want.pixel_values, what=f"{name}, medias[{i}] = {type(medias[i]).__name__}")
            assert_bit_equal(batch.grid_thws[i], want.grid_thws[0], what=f"{name}, grid of medias[{i}]")


def state(image: Image.Image) -> tuple:
    """All that a caller can see of a picture. It is decoded for that."""
    pixels = image.tobytes()
    return image.mode, image.size, image.tell(), image.info, image.getpalette() if image.mode == "P" else None, pixels


@properties
@given(pictures, rules)
def test_pictures_in_memory(picture, rules):
    config = rules()
    image = picture.image
    assert_answers([image, {"type": "image", "image": image}], judged([picture.image], config), config)
    assert state(image) == state(picture.image)


@properties
@given(pictures, rules, st.integers(0, 1 << 20))
def test_encoded_pictures_in_every_form(tmp_path, picture, rules, position):
    config = rules()
    data = picture.encoded()
    if data is None:
        return
    path = tmp_path / "picture"
    path.write_bytes(data)
    mutable, url = bytearray(data), "data:image/x;base64," + base64.b64encode(data).decode()
    image, nested = Image.open(io.BytesIO(data)), {"type": "image", "image": data}
    with path.open("rb") as file:
        file.seek(position)
        medias = [data, mutable, memoryview(data), path, file, url, image, nested]
        same = list(medias)
        assert_answers(medias, judged([data], config), config)
        assert file.tell() == position
    assert len(medias) == len(same)
    assert all(map(operator.is_, medias, same))
    assert mutable == data
    assert path.read_bytes() == data
    assert nested == {"type": "image", "image": data}
    assert state(image) == state(Image.open(io.BytesIO(data)))


@properties
@given(pictures, rules)
def test_the_current_frame_counts(picture, rules):
    config = rules()
    data = picture.encoded()
    if data is None:
        return
    image = picture.open(data)
    assert_answers([image, image], judged([picture.open(data)], config), config)
    assert state(image) == state(picture.open(data))


@properties
@given(pictures, rules, st.integers(1, 8))
def test_pictures_turned_as_exif_says(picture, rules, orientation):
    picture = picture._replace(orientation=orientation)
    config = rules()
    data = picture.encoded()
    if data is None:
        return
    image = picture.open(data)
    want = judged([ImageOps.exif_transpose(picture.open(data))], config)
    assert_answers([image], want, config, exif_transpose=True)
    assert state(image) == state(picture.open(data))
    first = judged([ImageOps.exif_transpose(Image.open(io.BytesIO(data)))], config)
    assert_answers([data, bytearray(data)], first, config, exif_transpose=True)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation(orientation):
    # Chance alone can miss one: three in four pictures have no EXIF block, or a side of one pixel.
    for way in range(len(CONTAINERS)):
        data = Picture("RGB", (80, 50), 1, None, way, orientation, None, False, None, 0, 0).encoded()
        assert data is not None
        want = judged([ImageOps.exif_transpose(Image.open(io.BytesIO(data)))], kjp.KIMI_K25)
        assert_answers([data, Image.open(io.BytesIO(data))], want, kjp.KIMI_K25, exif_transpose=True)


def test_every_mode_and_container_is_among_them():
    assert all(SAVABLE[mode] for mode in MODES if mode != "HSV")
    missing = set(CONTAINERS) - {container for found in SAVABLE.values() for container, _ in found}
    assert missing <= {"AVIF", "JPEG2000"}  # a matter of how Pillow was built
