"""What is a medium, and what is refused: kind by kind."""

import io
import os

import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image, ImageFile

from kimi_jax_prep import KIMI_K3, KIMI_K25, MediaError, PlanError, Preprocessor, reference
from kimi_jax_prep.host.render import render
from kimi_jax_prep.media import open_media
from kimi_jax_prep.media.options import MediaOptions

PICTURE = Image.effect_mandelbrot((37, 21), (-3, -2.5, 2, 2.5), 30).convert("RGB")
PIXELS = np.asarray(PICTURE)


def encoded(image: Image.Image = PICTURE, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def open_medium(media, **options):
    (medium,) = open_media(media, KIMI_K25, MediaOptions(**options))
    return medium


def pixels_of(media, k: int = 0, **options) -> np.ndarray:
    medium = open_medium(media, **options)
    return np.asarray(render(medium.frames[k].load(), medium.plan(KIMI_K25), KIMI_K25))


IMAGES = {
    "PIL": lambda _: PICTURE,
    "bytes": lambda _: encoded(),
    "bytearray": lambda _: bytearray(encoded()),
    "memoryview": lambda _: memoryview(encoded()),
    "BMP": lambda _: encoded(kind="BMP"),
    "WebP": lambda _: webp(),
    "TIFF": lambda _: encoded(kind="TIFF"),
    "array": lambda _: PIXELS,
    "read-only array": lambda _: frozen(PIXELS),
    "Fortran order": lambda _: np.asfortranarray(PIXELS),
    "turned twice": lambda _: np.ascontiguousarray(PIXELS[::-1, ::-1])[::-1, ::-1],
    "BGR turned": lambda _: np.ascontiguousarray(PIXELS[:, :, ::-1])[:, :, ::-1],
    "path": lambda folder: folder / "picture.png",
}
CHUNKS = {
    "list": lambda frame: [frame, frame],
    "tuple": lambda frame: (frame, frame),
    "generator": lambda frame: (frame for _ in range(2)),
    "mixed": lambda frame: [frame, encoded()],
}


def frozen(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def webp() -> bytes:
    stream = io.BytesIO()
    PICTURE.save(stream, "WEBP", lossless=True)
    return stream.getvalue()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "picture.png").write_bytes(encoded())
    return tmp_path


@pytest.mark.parametrize("kind", IMAGES)
@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: {"type": "image", "image": m}], ids=["bare", "dict"])
def test_every_kind_of_image_is_the_same_picture(kind, wrap, folder):
    media = wrap(IMAGES[kind](folder))
    assert open_medium(media).size == (37, 21)
    assert pixels_of(media).tobytes() == PIXELS.tobytes()


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("kind", IMAGES)
def test_every_kind_of_image_is_a_frame(kind, chunk, folder):
    frames = CHUNKS[chunk](IMAGES[kind](folder))
    medium = open_medium({"type": "video_chunk", "video_chunk": frames})
    assert medium.plan(KIMI_K25).grid_thw == (2, 2, 4)
    for frame in medium.frames:
        assert np.asarray(render(frame.load(), medium.plan(KIMI_K25), KIMI_K25)).tobytes() == PIXELS.tobytes()


def test_a_chunk_of_one_frame_has_the_budget_of_a_frame():
    image = Image.new("L", (1280, 720))
    chunk = open_medium({"type": "video_chunk", "video_chunk": [image]})
    assert chunk.plan(KIMI_K25).num_tokens == 1075
    assert open_medium(image).plan(KIMI_K25).num_tokens == 1196


def cut_short(kind: str) -> bytes:
    data = encoded(Image.effect_noise((64, 64), 50).convert("RGB"), kind)
    return data[: len(data) * 2 // 3]


NOT_IMAGES = {
    "None": (None, "got NoneType"),
    "number": (3, "got int"),
    "object": (object(), "got object"),
    "plain string": ("picture.png", "string"),
    "empty bytes": (b"", "no bytes"),
    "text": (b"a text file", "not an image"),
    "half a surrogate pair": ("data:image/png;base64,iVBO\ud800Rw0=", "no character at all"),
    "zero-sized image": (Image.new("RGB", (0, 5)), "0x5"),
    "zero-sized array": (np.zeros((0, 5, 3), np.uint8), r"\(0, 5, 3\)"),
    "float array": (np.zeros((5, 5, 3), np.float32), "float32.*cast"),
    "bool array": (np.zeros((5, 5, 3), bool), "bool"),
    "uint16 array": (np.zeros((5, 5, 3), np.uint16), "uint16"),
    "flat array": (np.zeros(5, np.uint8), r"is not an image that the installed Pillow reads"),
    "object array": (np.array([None]), "object"),
}


@pytest.mark.parametrize("kind", NOT_IMAGES)
def test_what_is_no_image_is_refused(kind):
    media, message = NOT_IMAGES[kind]
    with pytest.raises(MediaError, match=message):
        open_medium(media)
    with pytest.raises(MediaError, match=message):
        open_medium({"type": "image", "image": media})
    with pytest.raises(MediaError, match=rf"^frame 1: .*{message}"):
        open_medium({"type": "video_chunk", "video_chunk": [PICTURE, media]})


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "TIFF", "GIF"])
def test_what_is_cut_short_is_refused(kind):
    with pytest.raises(MediaError, match=r"cannot (decode|open)") as caught:
        pixels_of(cut_short(kind))
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("media", "message"),
    [
        ({}, "unknown medium type None"),
        ({"type": "audio"}, "unknown medium type 'audio'.*'image'.*'video_chunk'"),
        ({"type": ["image"], "image": PICTURE}, "unknown medium type"),
        ({"type": "image"}, "needs the key 'image'; it has .*'type'"),
        ({"type": "video_chunk", "image": PICTURE}, "needs the key 'video_chunk'"),
        ({"type": "video_chunk", "video_chunk": []}, "at least one frame"),
        ({"type": "video_chunk", "video_chunk": None}, "a list of frames; got NoneType"),
        ({"type": "video_chunk", "video_chunk": b"abc"}, "a list of frames; got bytes"),
        ({"type": "video_chunk", "video_chunk": PICTURE}, "a list of frames; got Image"),
        (
            {"type": "video_chunk", "video_chunk": [Image.new("L", (56, 28)), Image.new("L", (28, 56))]},
            "frame 1 is 28x56 but frame 0 is 56x28",
        ),
    ],
)
def test_bad_dicts(media, message):
    with pytest.raises(MediaError, match=message):
        open_medium(media)


def test_files_that_cannot_be_read_keep_their_errors(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_medium(tmp_path / "absent.png")
    with pytest.raises(IsADirectoryError):
        open_medium(tmp_path)


def test_a_picture_with_too_many_pixels_is_refused_from_its_header():
    before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    with pytest.raises(MediaError, match="cannot open"):
        open_medium(encoded(Image.new("1", (20000, 10000))))
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)


def test_a_picture_too_long_for_pillow_to_resize_is_refused():
    with pytest.raises(MediaError, match="memory that resizing 80000000x1 takes"):
        pixels_of(Image.new("L", (80_000_000, 1)))


@pytest.mark.parametrize("backend", ["jax", "numpy"])
def test_a_palette_picture_without_its_palette_is_refused(backend):
    # Pillow shows its indices as gray, but not with K2.5's rules where one of them is transparent: it asserts there.
    palette = Image.new("P", (37, 21))
    palette.putpalette(range(12))
    palette.info["transparency"] = 1
    data = encoded(palette)
    begin = data.index(b"PLTE") - 4
    broken = data[:begin] + data[begin + 12 + 12 :]
    prep = Preprocessor(KIMI_K25, backend=backend)
    prep.warmup(max_patches=32, resize=False)
    for medias in [[broken], [PICTURE, broken]]:
        with pytest.raises(MediaError, match=r"^medias\[.\]: cannot turn mode 'P' into RGB: it has no palette"):
            prep(medias)
    assert_bit_equal(
        Preprocessor(KIMI_K3, backend=backend)([broken]).pixel_values,
        reference.preprocess([broken], KIMI_K3).pixel_values,
        what="K3",
    )


def test_files_are_read_from_their_start_and_left_where_they_were(tmp_path):
    data = encoded()
    for position in (0, 5, len(data)):
        stream = io.BytesIO(data)
        stream.seek(position)
        assert pixels_of(stream).tobytes() == PIXELS.tobytes()
        assert stream.tell() == position
    path = tmp_path / "picture.png"
    path.write_bytes(data)
    with path.open("rb") as file:
        assert pixels_of(file).tobytes() == PIXELS.tobytes()
        assert not file.closed
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pixels_of(pipe).tobytes() == PIXELS.tobytes()
    with path.open(encoding="latin-1") as text, pytest.raises(MediaError, match="open as text"):
        open_medium(text)
    with path.open(encoding="utf-8") as text, pytest.raises(MediaError, match="open as text"):
        open_medium({"type": "image", "image": text})


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["max_pixels", "max_frames"])
def test_limits_are_whole_numbers_of_any_kind(name):
    assert getattr(MediaOptions(**{name: np.int64(7)}), name) == 7
    assert getattr(MediaOptions(**{name: None}), name) is None
    for bad in (0, -1, True, 1.5, "7"):
        with pytest.raises(PlanError, match=f"`{name}` is"):
            MediaOptions(**{name: bad})
