"""The errors of this library.

PrepError (a ValueError)
   ├─ ConfigError    the media_proc_cfg is incomplete, contradictory or holds an impossible value
   ├─ MediaError     a medium cannot be decoded, or its kind, mode or frame count is not supported
   │    └─ MediaTypeError    also a TypeError: an array's dtype or device
   ├─ PlanError      sizes or options do not fit the patch grid or a limit
   └─ TextError      a text's placeholders do not fit its media

A file that is not there stays a `FileNotFoundError`. Every function that takes a list of media names the
one at fault (`medias[3]: ...`) and chains the cause.
"""


class PrepError(ValueError):
    """Base of everything this library raises about its input."""


class ConfigError(PrepError):
    """A preprocessing config is incomplete, contradictory or holds an impossible value."""


class MediaError(PrepError):
    """A medium cannot be decoded, or its kind, mode or frame count is not supported."""


class PlanError(PrepError):
    """Sizes or options do not fit the patch grid or a limit."""


class MediaTypeError(MediaError, TypeError):
    """An array of a dtype, or on a device, that is not accepted; what to do is in the message."""


class TextError(PrepError):
    """A text, or a list of messages, does not fit the media that come with it."""
