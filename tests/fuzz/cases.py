"""Broken pictures by number: a case is a function of (seed, number) and of the files it starts from, of nothing else.

It starts from a picture of golden/images, as it is or written again in another format that the installed Pillow
writes, and damages it one to four times.
"""

import base64
import functools
import io
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

FOLDER = Path(__file__).parent.parent / "golden" / "images"
# Formats that golden/images lacks, and the mode to be written.
FORMATS = {
    "AVIF": "RGBA",
    "BMP": "P",
    "DDS": "RGBA",
    "DIB": "RGB",
    "EPS": "RGB",
    "ICO": "RGBA",
    "JPEG": "CMYK",
    "JPEG2000": "RGB",
    "MPO": "RGB",
    "MSP": "1",
    "PCX": "P",
    "PPM": "RGB",
    "QOI": "RGBA",
    "SGI": "RGB",
    "SPIDER": "F",
    "TGA": "RGBA",
    "TIFF": "LAB",
    "WEBP": "RGBA",
    "XBM": "1",
}
FORMS = ("bytes", "bytearray", "memoryview", "file", "data URL", "image dict", "chunk dict", "video dict")
OPTIONS: dict[str, Any] = {"exif_transpose": True, "sixteen_bit": "scale", "on_error": "skip"}
# Numbers at which a header's arithmetic breaks, or sizes that are large and still allowed.
_NUMBERS = (0, 1, 2, 3, 4, 7, 8, 9, 16, 127, 128, 255, 256, 8192, 13000, 20000, 32767, 32768, 65535)
_LARGE_NUMBERS = (65536, 178_000_000, 2**30, 2**31 - 1, 2**31, 2**32 - 1)
_HEADER = 128


class Case(NamedTuple):
    """One broken picture, and how it is handed over."""

    number: int
    data: bytes
    story: str
    """What was done to which file."""
    rules: str
    """"K2.5" or "K3"."""
    form: str
    """One of FORMS."""
    text: str
    """The data URL; broken itself now and then."""
    options: dict[str, Any]
    """Keywords of the call."""
    position: int
    """Where the file object stands."""

    @property
    def is_plain(self) -> bool:
        """Whether the reference takes it as well: no options, no data URL that is broken itself, no video."""
        return not self.options and self.form != "video dict" and self.text == _data_url(self.data)


def case(seed: int, number: int) -> Case:
    """The case of that number. Rules and forms take turns."""
    rng = random.Random(f"{seed}/{number}")
    name = rng.choice(sorted(sources()))
    data, done = sources()[name], []
    for _ in range(rng.choice((1, 1, 2, 3, 4))):
        damage = rng.choice(DAMAGES)
        data = damage(rng, data)
        done.append(damage.__name__.strip("_"))
    if data[:4] == b"\x89PNG" and rng.random() < 0.7:
        data = with_checksums(data)
        done.append("with checksums")
    text = _data_url(data)
    if rng.random() < 0.1:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(("", ",", "=", "%", "\n", "é", "\0", "\ud800")) + text[at + 1 :]
    options = {key: value for key, value in OPTIONS.items() if rng.random() < 0.1}
    rules, form = ("K2.5", "K3")[number % 2], FORMS[number // 2 % len(FORMS)]
    return Case(number, data, f"{name}: {', '.join(done)}", rules, form, text, options, rng.randrange(len(data) + 1))


@functools.cache
def sources() -> dict[str, bytes]:
    """What is damaged, by name."""
    found = {path.name: path.read_bytes() for path in FOLDER.iterdir()}
    picture = Image.open(FOLDER / "rgba.png")
    picture.thumbnail((96, 96))
    for kind, mode in FORMATS.items():
        stream = io.BytesIO()
        try:
            _in_mode(picture, mode).save(stream, kind)
        except (KeyError, OSError):  # this Pillow is without it
            continue
        found[f"{kind} {mode}"] = stream.getvalue()
    stream = io.BytesIO()
    frames = [picture.rotate(90 * k) for k in range(3)]
    for kind in ("PNG", "WEBP", "GIF"):
        frames[0].save(stream, kind, save_all=True, append_images=frames[1:], duration=50)
        found[f"{kind} animation"] = stream.getvalue()
        stream = io.BytesIO()
    return found


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    if mode == "LAB":
        return Image.merge("LAB", image.convert("RGB").split())
    return image if mode == image.mode else image.convert("RGB").convert(mode)


def _data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def _flip_bits(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        if out:
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _flip_bits_of_header(rng: random.Random, data: bytes) -> bytes:
    return _flip_bits(rng, data[:_HEADER]) + data[_HEADER:]


def _cut_end(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randint(1, len(data))] if data else data


def _remove_block(rng: random.Random, data: bytes) -> bytes:
    begin, end = _block(rng, data)
    return data[:begin] + data[end:] or b"\0"


def _duplicate_block(rng: random.Random, data: bytes) -> bytes:
    begin, end = _block(rng, data)
    return data[:end] + data[begin:end] * rng.choice((1, 1, 2, 20)) + data[end:]


def _zero_block(rng: random.Random, data: bytes) -> bytes:
    begin, end = _block(rng, data)
    return data[:begin] + bytes(end - begin) + data[end:]


def _random_block(rng: random.Random, data: bytes) -> bytes:
    begin, end = _block(rng, data)
    return data[:begin] + rng.randbytes(end - begin) + data[end:]


def _splice_with_another(rng: random.Random, data: bytes) -> bytes:
    """The head of one file and the tail of another, most often where the first one stopped."""
    other = sources()[rng.choice(sorted(sources()))]
    at = rng.randint(1, len(data))
    return data[:at] + other[at if rng.random() < 0.7 else rng.randrange(len(other)) :]


def _insert_of_another(rng: random.Random, data: bytes) -> bytes:
    other = sources()[rng.choice(sorted(sources()))]
    begin, end = _block(rng, other)
    at = rng.randint(0, len(data))
    return data[:at] + other[begin:end] + data[at:]


def _set_integer(rng: random.Random, data: bytes) -> bytes:
    """A 2- or 4-byte field, two out of three times within the header."""
    size = rng.choice((2, 4))
    if len(data) < size:
        return data
    at = rng.randint(0, min(len(data), _HEADER if rng.random() < 0.67 else len(data)) - size)
    order = rng.choice(("big", "little"))
    old = int.from_bytes(data[at : at + size], order)
    numbers = (*_NUMBERS, old - 1, old + 1, old * 2, rng.getrandbits(8 * size))
    new = rng.choice(numbers + _LARGE_NUMBERS if size == 4 else numbers) % (1 << 8 * size)
    return data[:at] + new.to_bytes(size, order) + data[at + size :]


def _block(rng: random.Random, data: bytes) -> tuple[int, int]:
    size = min(len(data), rng.choice((1, 2, 4, 16, 100, 1000, 10000)))
    begin = rng.randint(0, len(data) - size)
    return begin, begin + size


DAMAGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _flip_bits,
    _flip_bits_of_header,
    _cut_end,
    _remove_block,
    _duplicate_block,
    _zero_block,
    _random_block,
    _splice_with_another,
    _insert_of_another,
    _set_integer,
    _set_integer,
    _set_integer,
)


def with_checksums(png: bytes) -> bytes:
    """The chunks of a PNG with right checksums: else the reader stops at the first one, and what is behind it is
    never tried."""
    out, at = bytearray(png), 8
    while at + 12 <= len(out):
        end = at + 8 + int.from_bytes(out[at : at + 4], "big")
        if end + 4 > len(out):
            break
        out[end : end + 4] = zlib.crc32(out[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(out)
