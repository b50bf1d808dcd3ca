"""What commands share: options, configs, and files as media."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from kimi_jax_prep.config import PRESETS, MediaProcConfig
from kimi_jax_prep.errors import PrepError

ConfigOption = Annotated[
    str,
    typer.Option("--config", "-c", help=f"{', '.join(PRESETS)}, or a checkpoint's folder or config file."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Show the traceback of an error.")]
VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi", ".mpg", ".mpeg", ".ts", ".ogv", ".flv", ".wmv")
_SIZE = re.compile(r"([0-9]+)[xX×]([0-9]+)")


def read_config(name: str) -> MediaProcConfig:
    """The config of a preset's name, a folder or a file."""
    if name.lower() in PRESETS:
        return PRESETS[name.lower()]
    if not Path(name).exists():
        raise PrepError(f"config {name!r} is neither one of {', '.join(PRESETS)} nor a folder or file that exists.")
    return MediaProcConfig.from_json_file(name)


def size_of(text: str) -> tuple[int, int] | None:
    """(width, height) of an argument like 1920x1080, unless a file has that name."""
    match = _SIZE.fullmatch(text)
    return (int(match[1]), int(match[2])) if match and not Path(text).exists() else None


def is_video(name: str) -> bool:
    """Whether the suffix is that of a video. GIF and WebP count as images, as in the checkpoint."""
    return Path(name).suffix.lower() in VIDEO_SUFFIXES


def medium(name: str) -> Any:
    """A file as the library takes it."""
    path = Path(name)
    return {"type": "video", "video": path} if is_video(name) else path


def image_size(name: str) -> tuple[int, int]:
    """(width, height) from the header. Takes Pillow's answer directly: loading NumPy would take longer than 100 files.

    Raises:
      MediaError, OSError: as `open_image`.
    """
    from kimi_jax_prep.media.options import SAFE_FORMATS, MediaOptions, identified

    try:
        with open(name, "rb") as file:
            return identified(file, SAFE_FORMATS).size
    except OSError as err:
        if err.errno is not None:
            raise
    except Exception:
        pass
    from kimi_jax_prep.media.image import open_image

    return open_image(Path(name), MediaOptions()).size


@contextmanager
def naming(files: list[str]) -> Iterator[None]:
    """Errors that name a place in the list of media name the file instead."""
    try:
        yield
    except PrepError as err:
        raise type(err)(with_name(str(err), files)) from err
    except OSError as err:
        if err.errno is None:
            raise
        # With a file name of its own the error needs no other.
        message = err.strerror or str(err)
        message = re.sub(r"^medias\[\d+\]: ", "", message) if err.filename else with_name(message, files)
        raise type(err)(err.errno, message, err.filename) from err


def with_name(message: str, files: list[str]) -> str:
    """The message with the file's name in place of `medias[3]`."""
    return re.sub(r"^medias\[(\d+)\]", lambda m: files[int(m[1])], message)


def failure_text(failure: Any, files: list[str]) -> str:
    """What is wrong with a skipped file, with its name."""
    error, name = failure.error, files[failure.index]
    message = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return f"{name}: " + re.sub(r"^medias\[\d+\]: ", "", message)
