"""How errors show values that cannot be printed, or are long."""

import dataclasses

import pytest

from kimi_jax_prep import KIMI_K25, ConfigError
from kimi_jax_prep.checks import shown


# Python prints no whole number of more than 4,300 digits, and an object's `__repr__` may raise.
class Unprintable:
    def __repr__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize("value", [-(10**5000), "x" * 5000, Unprintable(), [10**5000]], ids=lambda v: type(v).__name__)
@pytest.mark.parametrize(
    "key", ["in_patch_limit", "sample_fps", "image_mean", "timestamp_mode", "transparent_bg_config"]
)
@pytest.mark.usefixtures("unchecked")
def test_values_that_cannot_be_printed_are_config_errors(key, value):
    with pytest.raises(ConfigError, match=rf"`{key}` is ") as caught:
        dataclasses.replace(KIMI_K25, **{key: value})
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        ("a", "'a'"),
        (Unprintable(), "an unprintable Unprintable"),
        (10**5000, "a whole number of about 5000 digits"),
        ("x" * 998, "'" + "x" * 79 + "..." + "x" * 19 + "' (1000 characters)"),
    ],
    ids=["int", "str", "object", "huge", "long"],
)
def test_how_values_are_shown(value, text):
    assert shown(value) == text
