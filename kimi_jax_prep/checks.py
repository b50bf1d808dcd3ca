"""Checks of arguments that several folders share; each raises the caller's own kind of error.

May import: the standard library and this package's `errors`.
"""

import contextlib
import difflib
import math
import operator
from collections.abc import Iterable

from kimi_jax_prep.errors import PlanError, PrepError

# Characters of a value in a message.
_MOST_SHOWN = 160


def shown(value: object) -> str:
    """The value as error messages show it: its repr, shortened, even where `repr` raises.

    Python refuses to print whole numbers of more than 4,300 digits, and objects may refuse to print themselves.
    """
    try:
        text = repr(value)
    except Exception:
        if isinstance(value, int):
            return f"a whole number of about {int(value.bit_length() * 0.30103)} digits"
        return f"an unprintable {type(value).__name__}"
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN // 2]}...{text[-20:]} ({len(text)} characters)"


def positive_int(name: str, value: object, *, error: type[PrepError] = PlanError, optional: bool = False) -> int:
    """Convert to Python's int, which does not overflow as NumPy's integers do.

    Args:
      error: the class to raise.
      optional: whether the caller also accepts None; only changes the message.

    Raises:
      PrepError: `value` is not a positive whole number.
    """
    if not isinstance(value, bool):
        try:
            number = operator.index(value)  # type: ignore[arg-type]  # raises TypeError without __index__
        except TypeError:
            number = 0
        if number > 0:
            return number
    raise error(f"`{name}` is {shown(value)}; expected a positive whole number{' or None' if optional else ''}.")


def one_of(
    name: str, value: object, valid: Iterable[object], *, error: type[PrepError] = PlanError, hint: str = ""
) -> None:
    """Raise unless the value is one of the valid ones.

    Args:
      hint: a sentence to append to the message, with a leading space.

    Raises:
      PrepError: naming all valid values.
    """
    valid = tuple(valid)
    if not any(value is v or (isinstance(value, type(v)) and value == v) for v in valid):
        raise error(f"`{name}` is {shown(value)}; expected one of {', '.join(map(repr, valid))}.{hint}")


def finite_float(name: str, value: object, *, error: type[PrepError] = PlanError, positive: bool = False) -> float:
    """Convert a number of any type (Python, NumPy, `Fraction`) to float64.

    Args:
      error: the class to raise.
      positive: also refuse 0, negative numbers, and numbers too small for float64.

    Raises:
      PrepError: `value` is not a number, not finite, or beyond float64.
    """
    number = math.nan
    if not isinstance(value, bool | str | bytes) and hasattr(value, "__float__"):
        with contextlib.suppress(TypeError, ValueError, OverflowError):  # arrays; numbers beyond float64
            number = float(value)  # type: ignore[arg-type]  # has __float__
    if not math.isfinite(number) or (positive and number <= 0):
        raise error(f"`{name}` is {shown(value)}; expected a finite number{' above 0' if positive else ''}.")
    return number


def byte(name: str, value: object, *, error: type[PrepError] = PlanError) -> int:
    """Convert to Python's int.

    Raises:
      PrepError: `value` is not a whole number from 0 to 255.
    """
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        with contextlib.suppress(TypeError):  # arrays
            number = operator.index(value)  # type: ignore[arg-type]  # has __index__
            if 0 <= number <= 255:
                return number
    raise error(f"`{name}` is {shown(value)}; expected a byte, 0 to 255.")


def boolean(name: str, value: object, *, error: type[PrepError] = PlanError) -> bool:
    """Return `value`.

    Raises:
      PrepError: `value` is not True or False.
    """
    if not isinstance(value, bool):
        raise error(f"`{name}` is {shown(value)}; expected True or False.")
    return value


def check_keywords(given: Iterable[str], valid: Iterable[str]) -> None:
    """Raise on unknown keywords, so that a misspelled option is never ignored.

    Raises:
      TypeError: naming the closest valid keyword, or all of them.
    """
    valid = tuple(valid)
    for name in given:
        if name not in valid:
            near = difflib.get_close_matches(name, valid, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(map(repr, valid))}."
            raise TypeError(f"got an unexpected keyword argument {name!r}; {hint}")
