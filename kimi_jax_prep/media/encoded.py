"""Encoded images and videos as they arrive: bytes, open files, `data:` URLs, paths. Nothing is fetched or decoded."""

import base64
import binascii
import io
import os
import re
import string
import urllib.parse
from pathlib import Path
from typing import Any

from kimi_jax_prep.errors import MediaError
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
    return None


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
        "a plain string is not opened; pass a file as `pathlib.Path(...)`, or set `allow_paths=True` if no stranger "
        "chooses the string."
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
