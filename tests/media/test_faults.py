"""Whose fault an error is, and files that several pictures share."""

import errno
import io
import os
import signal
import struct
import tarfile
import urllib.error
import zipfile
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image, ImageFile, ImageOps

import kimi_jax_prep as kjp
from kimi_jax_prep import fork, reference
from kimi_jax_prep.media import faults, locks

K25 = kjp.KIMI_K25


def noise(seed: int, width: int = 120, height: int = 90) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def png(image: Image.Image, **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG", **options)
    return stream.getvalue()


GOOD = noise(0, 40, 30)


# Files that pictures share


def members(tmp_path: Path, pictures: list[Image.Image]) -> list[Image.Image]:
    path = tmp_path / "all.tar"
    with tarfile.open(path, "w") as archive:
        for i, picture in enumerate(pictures):
            data = png(picture)
            info = tarfile.TarInfo(f"{i}.png")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    archive = tarfile.open(path)  # noqa: SIM115  # read lazily, by the pictures
    return [Image.open(archive.extractfile(name)) for name in archive.getnames()]


def zipped(tmp_path: Path, pictures: list[Image.Image]) -> list[Image.Image]:
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for i, picture in enumerate(pictures):
            archive.writestr(f"{i}.png", png(picture))
    archive = zipfile.ZipFile(path)
    return [Image.open(archive.open(name)) for name in archive.namelist()]


def twice(tmp_path: Path, pictures: list[Image.Image]) -> list[Image.Image]:
    path = tmp_path / "one.png"
    path.write_bytes(png(pictures[0]))
    file = path.open("rb")
    return [Image.open(file) for _ in pictures]


@pytest.mark.parametrize("share", [members, zipped, twice])
@pytest.mark.filterwarnings("ignore:unclosed file")
def test_pictures_that_share_a_file_are_read_in_turn(share, tmp_path):
    pictures = [noise(seed, 300, 300) for seed in range(8)]
    if share is twice:
        pictures = [pictures[0]] * 8
    want = reference.preprocess(pictures, K25).pixel_values
    prep = kjp.Preprocessor(num_threads=4)
    prep.warmup(max_patches=8 * 22 * 22)
    for turn in range(8):
        lazy = share(tmp_path, pictures)
        assert_bit_equal(prep(lazy).pixel_values, want, what=f"{share.__name__}, turn {turn}")


def test_the_callers_position_in_a_shared_file_stays():
    stream = io.BytesIO(png(GOOD))
    picture = Image.open(stream)
    stream.seek(17)
    kjp.preprocess([picture])
    assert stream.tell() == 17


def test_pictures_of_files_of_their_own_do_not_wait_for_each_other(tmp_path):
    paths = []
    for i in range(2):
        paths.append(tmp_path / f"{i}.png")
        paths[-1].write_bytes(png(GOOD))
    first, second = (Image.open(path) for path in paths)
    with locks.reading(first):
        assert locks._key(first, first.fp) != locks._key(second, second.fp)
    assert locks._held == {}
    for picture in (first, second):
        picture.close()


# What is about a medium, and what is not


class Raising:
    """A file whose reading fails."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def read(self, *_):
        raise self.error

    def tell(self):
        return 0

    def seek(self, *_):
        return 0


class NoPath:
    def __fspath__(self):
        raise KeyError("no such entry")


def frames_that_fail():
    yield GOOD
    raise EOFError("the stream ended")


class Computed(Mapping):
    """A mapping whose values cannot be had."""

    def __getitem__(self, key):
        raise ConnectionError("the row is gone")

    def __iter__(self):
        return iter(("type", "image"))

    def __len__(self):
        return 2


class Metadata:
    @property
    def fps(self):
        raise LookupError("no such stream")


OF_THE_MEDIUM = {
    "null byte of a video": lambda: {"type": "video", "video": Path("a\0b")},
    "surrogate of a video": lambda: {"type": "video", "video": Path("\udcff\ud800")},
    "mapping": Computed,
    "metadata": lambda: {"type": "video", "video": [GOOD], "video_metadata": Metadata()},
    "closed": lambda: Raising(ValueError("I/O operation on closed file")),
    "zip": lambda: Raising(zipfile.BadZipFile("bad magic number")),
    "end": lambda: Raising(EOFError()),
    "url": lambda: Raising(urllib.error.URLError("no host given")),
    "os": lambda: Raising(OSError("gone")),
    "library": lambda: Raising(type("ReadTimeout", (Exception,), {})("late")),
    "null byte": lambda: Path("a\0b"),
    "surrogate": lambda: Path("\udcff\ud800"),
    "path-like": NoPath,
    "frames": lambda: {"type": "video_chunk", "video_chunk": frames_that_fail()},
    "closed picture": lambda: closed_picture(),
}


def closed_picture() -> Image.Image:
    with Image.open(io.BytesIO(png(GOOD))) as picture:
        return picture


@pytest.mark.parametrize("name", OF_THE_MEDIUM)
@pytest.mark.usefixtures("unchecked")
def test_what_a_mediums_own_code_raises_is_about_that_medium(name):
    with pytest.raises((kjp.MediaError, FileNotFoundError), match=r"medias\[1\]: .+") as caught:
        kjp.preprocess([GOOD, OF_THE_MEDIUM[name]()])
    assert caught.value.__cause__ is not None
    batch = kjp.preprocess([GOOD, OF_THE_MEDIUM[name](), GOOD], on_error="skip")
    assert [failure.index for failure in batch.failures] == [1]
    assert batch.sources == (0, 2)


def test_a_closed_picture_says_what_helps():
    with pytest.raises(
        kjp.MediaError, match=r"medias\[0\]: .*closed before its pixels were read; call `image.load\(\)`"
    ):
        kjp.preprocess([closed_picture()])


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC])
def test_the_machines_errors_are_raised_not_skipped(number, monkeypatch, tmp_path):
    path = tmp_path / "good.png"
    path.write_bytes(png(GOOD))

    def no_more(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "open", no_more)
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        kjp.preprocess([GOOD, path], on_error="skip")
    assert caught.value.errno == number
    assert caught.value.__notes__ == ["while reading medias[1]"]


class TimeLimit(Exception):
    """Of a task queue."""


@pytest.mark.parametrize("error", [TimeLimit, TimeoutError, ValueError, OSError])
@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: partial(f), lambda f: type("H", (), {"__call__": f})()])
def test_a_signal_handlers_exception_is_the_callers(error, wrap):
    def react(*_):
        raise error("time is up")

    class Slow(io.BytesIO):
        """A file during whose reading the time is up."""

        def read(self, *args):
            os.kill(os.getpid(), signal.SIGUSR1)
            return super().read(*args)

    before = signal.signal(signal.SIGUSR1, wrap(react))
    try:
        for media in (Slow(png(GOOD)), lambda: None):
            lazy = media
            if not isinstance(media, Slow):
                lazy = Image.open(io.BytesIO(png(GOOD)))
                lazy.fp.close()
                lazy.fp = Slow(png(GOOD))
            with pytest.raises(error, match=r"^time is up$"):
                kjp.preprocess([lazy], on_error="skip")
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_errors_of_others_are_not_taken_for_a_handlers():
    assert faults.is_about_a_medium(ValueError("broken"))
    assert not faults.is_about_a_medium(MemoryError())
    assert not faults.is_about_a_medium(KeyboardInterrupt())


def test_an_iterator_of_media_that_raises_says_where():
    def medias():
        yield GOOD
        raise RuntimeError("the queue is gone")

    with pytest.raises(RuntimeError, match="the queue is gone") as caught:
        kjp.preprocess(medias(), on_error="skip")
    assert caught.value.__notes__ == ["raised by the iterator of media, in place of medias[1]"]


# Limits come before any decoding


def rotated(number: int, *, where: str) -> bytes:
    """A PNG of 56 x 28 with an orientation in front of its pixels, behind them, or in text behind them."""
    exif = Image.Exif()
    exif[0x0112] = number
    data = png(noise(5, 56, 28), exif=exif) if where == "front" else png(noise(5, 56, 28))
    if where == "front":
        return data
    body = exif.tobytes().removeprefix(b"Exif\0\0")
    kind = b"eXIf"
    if where == "text":
        kind, body = (
            b"tEXt",
            b"Raw profile type exif\0\nexif\n%8d\n" % (len(body) + 6) + (b"Exif\0\0" + body).hex().encode(),
        )
    chunk = struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    end = data.rindex(b"IEND") - 4
    return data[:end] + chunk + data[end:]


@pytest.mark.parametrize("where", ["front", "behind", "text"])
@pytest.mark.parametrize("number", [1, 3, 6])
def test_the_orientation_of_a_png_wherever_it_stands(where, number, tmp_path):
    data = rotated(number, where=where)
    path = tmp_path / "turned.png"
    path.write_bytes(data)
    want = reference.preprocess([ImageOps.exif_transpose(Image.open(io.BytesIO(data)))], K25).pixel_values
    for media in (data, path, io.BytesIO(data), Image.open(io.BytesIO(data))):
        got = kjp.preprocess([media], exif_transpose=True).pixel_values
        assert_bit_equal(got, want, what=f"{type(media).__name__}, {where}, {number}")


@pytest.mark.parametrize("kind", ["bytes", "path", "picture"])
def test_exif_transpose_opens_a_png_without_reading_its_pixels(kind, monkeypatch, tmp_path):
    data = png(noise(6, 300, 300))
    path = tmp_path / "plain.png"
    path.write_bytes(data)
    media = {"bytes": data, "path": path, "picture": Image.open(io.BytesIO(data))}[kind]
    loads = []
    load = ImageFile.ImageFile.load
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: (loads.append(bool(self.tile)), load(self))[1])
    with pytest.raises(kjp.MediaError, match="`max_pixels` = 100"):
        kjp.preprocess([media], exif_transpose=True, max_pixels=100)
    assert loads == []
    kjp.preprocess([media], exif_transpose=True)
    assert loads.count(True) == 1  # others find the pixels read


def test_a_bound_on_all_pixels_of_a_call():
    medias = [noise(seed, 100, 100) for seed in range(3)]
    kjp.preprocess(medias, max_total_pixels=30_000)
    with pytest.raises(
        kjp.MediaError, match=r"medias\[2\]: .*10000 pixels after 20000.*`max_total_pixels` allows 29999"
    ):
        kjp.preprocess(medias, max_total_pixels=29_999)
    batch = kjp.preprocess(medias, max_total_pixels=20_000, on_error="skip")
    assert batch.sources == (0, 1)


# Frames of the caller's own arrays


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_split_frames_are_rgb_and_the_callers_array_may_change(channels):
    array = np.random.default_rng(7).integers(0, 256, (5, 30, 40, channels), np.uint8)
    chunks = kjp.split_video_chunks(array)
    frames = [frame for chunk in chunks for frame in chunk["video_chunk"]]
    before = [np.asarray(frame).copy() for frame in frames]
    array[:] = 0
    assert {frame.mode for frame in frames} == {"RGB"}
    for frame, want in zip(frames, before, strict=True):
        assert_bit_equal(np.asarray(frame), want, what="a frame after its array changed")


def test_a_pending_jax_array_in_a_forked_child_is_an_error_not_a_hang(monkeypatch):

    array = jax.numpy.zeros((28, 28, 3), "uint8").block_until_ready()
    monkeypatch.setattr(fork, "_dead", True)
    monkeypatch.setattr(fork, "_warned", True)
    assert kjp.preprocess([array]).grid_thws.tolist() == [[1, 2, 2]]
    monkeypatch.setattr(type(array), "is_ready", lambda _self: False)
    with pytest.raises(kjp.MediaTypeError, match=r"medias\[0\]: .*still being computed .*'spawn' or 'forkserver'"):
        kjp.preprocess([array])
