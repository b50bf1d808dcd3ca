"""How media are opened: limits for untrusted input, formats that Pillow may open, choices where the field offers some.

PIL is imported where it is used: without it, `plan` of sizes starts sooner.
"""

import dataclasses
import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_jax_prep.checks import check_keywords, one_of, positive_int, shown
from kimi_jax_prep.errors import PlanError

if TYPE_CHECKING:
    from PIL import Image

INPUT_DATA_FORMATS = ("channels_first", "channels_last")
SIXTEEN_BIT = ("clip", "scale")
SAFE_FORMATS = (
    "AVIF",
    "BMP",
    "DIB",
    "GIF",
    "HEIF",
    "ICO",
    "JPEG",
    "JPEG2000",
    "JXL",
    "PNG",
    "PPM",
    "QOI",
    "TGA",
    "TIFF",
    "WEBP",
)
"""Raster formats by Pillow's names: what cameras, browsers and editors write. HEIF and JXL need a plugin of Pillow."""
REFUSED_FORMATS = ("EPS",)
"""Pillow runs another program on them. They are never opened."""


@dataclass(frozen=True, slots=True)
class MediaOptions:
    """How media are opened. The same choice holds for sizes and pixels, on every path.

    Raises:
      PlanError: a value that is not among the valid ones.
    """

    allow_paths: bool = False
    """Whether a plain string may be the name of a file. `pathlib.Path` always may."""
    max_pixels: int | None = 178_956_970
    """Maximum pixels of one image or video frame, checked before decoding; None for no limit of ours. Pillow's own
    (`PIL.Image.MAX_IMAGE_PIXELS`, twice which is our default) holds for encoded images all the same."""
    max_frames: int | None = 4096
    """Maximum frames taken from one video, checked before decoding; None for no limit."""
    max_total_pixels: int | None = 1 << 33
    """Maximum pixels of one call, all frames of all media together, checked before decoding; None for no limit. The
    default is 4,096 video frames of 1920x1080."""
    exif_transpose: bool = False
    """Whether images are turned as their EXIF orientation says, and video frames as their rotation flag says. The
    checkpoint does neither."""
    sixteen_bit: str = "clip"
    """"clip" follows the checkpoint: values above 255 become 255, with one warning a call. "scale" takes the upper 8
    of 16 bits."""
    input_data_format: str | None = None
    """Layout of arrays, "channels_first" or "channels_last"; None looks at the shape."""
    formats: Any = SAFE_FORMATS
    """Formats of encoded images that are opened: Pillow's names, in any case; bytes of others reach no decoder. None
    opens all that the installed Pillow and its plugins read, but for EPS. "JPEG" includes MPO, of phones and cameras.
    PIL images are the caller's own, whatever their format."""
    progress: bool = False
    """Whether tqdm shows how far the decoding of a video file is."""

    def __post_init__(self) -> None:
        for name in ("allow_paths", "exif_transpose", "progress"):
            if not isinstance(getattr(self, name), bool):
                raise PlanError(f"`{name}` is {getattr(self, name)!r}; expected True or False.")
        for name in ("max_pixels", "max_frames", "max_total_pixels"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, positive_int(name, value, optional=True))
        if self.formats is not None and self.formats is not SAFE_FORMATS:
            object.__setattr__(self, "formats", _checked(self.formats))
        one_of("sixteen_bit", self.sixteen_bit, SIXTEEN_BIT)
        one_of("input_data_format", self.input_data_format, (*INPUT_DATA_FORMATS, None))

    def replace(self, **changes: Any) -> "MediaOptions":
        """These options with some changed.

        Raises:
          PlanError: a value that is not among the valid ones.
          TypeError: an unknown name.
        """
        check_keywords(changes, OPTIONS)
        return dataclasses.replace(self, **changes) if changes else self

    def changed(self) -> dict[str, Any]:
        """Those that differ from the defaults."""
        defaults = dataclasses.asdict(MediaOptions())
        return {name: value for name, value in dataclasses.asdict(self).items() if value != defaults[name]}


def _checked(formats: Any) -> tuple[str, ...]:
    """Format names in capitals, without repeats.

    Raises:
      PlanError: not an iterable of names, none at all, an unknown name, or one of a format that is never opened.
    """
    if isinstance(formats, str | bytes) or not isinstance(formats, Iterable):
        raise PlanError(f"`formats` is {shown(formats)}; expected names such as ('PNG', 'JPEG', 'WEBP'), or None.")
    names = list(formats)
    if not names or not all(isinstance(name, str) for name in names):
        raise PlanError(f"`formats` is {shown(formats)}; expected at least one name such as 'PNG', or None.")
    from PIL import Image

    Image.init()
    known = {*SAFE_FORMATS, *Image.ID} - {*REFUSED_FORMATS}
    upper = tuple(dict.fromkeys(name.upper() for name in names))
    for name in upper:
        if name in REFUSED_FORMATS:
            raise PlanError(f"`formats` has {name!r}, which is never opened: Pillow would run another program on it.")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise PlanError(f"`formats` has {name!r}, which Pillow does not read.{hint} It reads {sorted(known)}.")
    return upper


def identified(file: Any, formats: tuple[str, ...] | None) -> "Image.Image":
    """The image with its header read, as `Image.open` does it, if it is of one of the formats.

    Plugins of rare formats are loaded only for files that need them. Does not need NumPy.

    Args:
      file: open in binary mode, at its start.
      formats: as in `MediaOptions`.

    Raises:
      UnidentifiedImageError: the file is of none of the formats.
    """
    from PIL import Image

    Image.preinit()
    common = _registered(formats)
    try:
        return Image.open(file, formats=common)
    except Image.UnidentifiedImageError:
        Image.init()
        rare = [name for name in _registered(formats) if name not in common]
        if not rare:
            raise
    file.seek(0)
    return Image.open(file, formats=rare)


def _registered(formats: tuple[str, ...] | None) -> list[str]:
    """Those that Pillow has loaded, in its order: where two accept a file, the first one counts."""
    from PIL import Image

    return [name for name in Image.ID if name not in REFUSED_FORMATS and (formats is None or name in formats)]


OPTIONS = tuple(field.name for field in dataclasses.fields(MediaOptions))
