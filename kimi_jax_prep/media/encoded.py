"""Encoded images and videos as they arrive: bytes, open files, `data:` URLs, paths. Nothing is fetched or decoded."""

import base64
import binascii
import io
import os
import re
import string
import urllib.parse
from pathlib import Path
from typing import Any, BinaryIO

from kimi_jax_prep.errors import MediaError
from kimi_jax_prep.media.arrays import is_encoded_array
from kimi_jax_prep.media.faults import Reading, is_about_a_medium

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://|file:", re.IGNORECASE)


def encoded(source: Any, *, allow_paths: bool) -> bytes | Path | None:
    """The bytes, or the path of a file that holds them, or None for something of another kind.

    A file object is read from its start, as Pillow does, and left at the position it had.

    Raises:
      MediaError: an empty input, a `data:` URL that is not one, a string that is no `data:` URL.
    """
    if isinstance(source, str):
        return _from_string(source, allow_paths=allow_paths)
    if isinstance(source, os.PathLike):
        with Reading(f"a {type(source).__name__} gives no path"):
            return Path(source)
    if isinstance(source, bytes | bytearray | memoryview):
        return _not_empty(bytes(source))
    if callable(getattr(source, "read", None)):
        return _not_empty(_read(source))
    if callable(getattr(source, "to_pybytes", None)) or is_encoded_array(source):  # Arrow's buffers; columns of bytes
        with Reading(f"a {type(source).__name__} gives no bytes"):
            return _not_empty(bytes(memoryview(source if not hasattr(source, "numpy") else source.numpy())))
    return None


def open_binary(path: Path) -> BinaryIO:
    """Open a path for reading.

    Raises:
      MediaError: a name with a null byte or half a surrogate pair.
      OSError: as `open`.
    """
    with Reading(f"cannot open {str(path)!r}", keep=(OSError,)):
        return path.open("rb")


def _not_empty(data: bytes) -> bytes:
    if not data:
        raise MediaError("there are no bytes.")
    return data


def _read(file: Any) -> bytes:
    if isinstance(file, io.TextIOBase):
        raise MediaError("a file object is open in binary mode ('rb'); this one is open as text.")
    with Reading("cannot read the file"):
        try:
            position = file.tell()
            file.seek(0)
        except (AttributeError, OSError, ValueError) as err:  # a pipe or a socket: what is left is all there is
            if not is_about_a_medium(err):
                raise
            data = file.read()
        else:
            data = file.read()
            file.seek(position)
    if not isinstance(data, bytes | bytearray | memoryview):
        raise MediaError(f"a file object reads bytes; this one reads {type(data).__name__}.")
    return bytes(data)


def _from_string(text: str, *, allow_paths: bool) -> bytes | Path:
    if text[:5].lower() == "data:":
        return _not_empty(decode_data_url(text))
    if _SCHEME.match(text):
        raise MediaError("URLs are not fetched, save `data:` URLs; download it and pass the bytes.")
    if allow_paths:
        return Path(text)
    raise MediaError(
        "a plain string is not opened; pass a file as `pathlib.Path(...)`, or set `allow_paths=True` for trusted input."
    )


def decode_data_url(url: str) -> bytes:
    """The bytes of a `data:` URL (RFC 2397): any media type and parameters, base64 or percent-encoded.

    Raises:
      MediaError: there is no comma, or the base64 is broken. The data itself is not in the message.
    """
    header, comma, data = url[5:].partition(",")
    if not comma:
        raise MediaError("a `data:` URL has a comma before its data; this one has none.")
    try:
        raw = urllib.parse.unquote_to_bytes(data)
    except UnicodeEncodeError as err:  # half a surrogate pair, which JSON can bring in
        raise MediaError(f"a `data:` URL of {len(url)} characters holds one that is no character at all.") from err
    if header.rpartition(";")[2].strip().lower() != "base64":
        return raw
    # Long ones arrive wrapped into lines.
    raw = raw.translate(None, string.whitespace.encode())
    try:
        return base64.b64decode(raw, validate=True)
    except (binascii.Error, ValueError) as err:
        raise MediaError(f"the base64 of a `data:` URL of {len(url)} characters is broken: {err}") from err


# What the first bytes of files say that are taken for images, and what helps.
_FORMATS: tuple[tuple[re.Pattern[bytes], str], ...] = tuple(
    (re.compile(pattern, re.DOTALL | re.IGNORECASE), text)
    for pattern, text in (
        (rb".{4}ftyp(heic|heix|heif|hevc|hevx|mif1|msf1)", "HEIC: install pillow-heif and call register_heif_opener()"),
        (rb".{4}ftypavi[fs]", "AVIF: a Pillow with AVIF support reads it (11.3 or later, or pillow-avif-plugin)"),
        (rb"\xff\x0a|\0\0\0\x0cJXL ", "JPEG XL: install pillow-jxl-plugin and import pillow_jxl"),
        (rb".{4}ftyp|\x1a\x45\xdf\xa3|RIFF.{4}AVI ", "a video: pass {'type': 'video', 'video': ...}"),
        (rb"%PDF", "PDF: render its pages to images first"),
        (rb"\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)?(<!doctype svg[^>]*>\s*)?<svg", "SVG: render it to PNG first"),
        (rb"\s*(<!doctype html|<html|<head|<body)", "HTML: the page of a download that failed?"),
        (rb"\s*[{\[]", "JSON: the answer of a server in place of the image?"),
        (rb"version https://git-lfs", "a Git LFS pointer: fetch the file with `git lfs pull`"),
        (rb"\x1f\x8b|PK\x03\x04|\x28\xb5\x2f\xfd|7z\xbc\xaf", "compressed: unpack it first"),
    )
)


def looks_like(head: bytes) -> str:
    """The end of a message about bytes that are no image: what they look like, and what helps."""
    for pattern, text in _FORMATS:
        if pattern.match(head):
            return f"; it looks like {text}{'' if text.endswith('?') else '.'}"
    return "."
