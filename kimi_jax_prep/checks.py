"""Checks of arguments that several folders share; each raises the caller's own kind of error.

May import: the standard library and this package's `errors`.
"""

import difflib
import operator
from collections.abc import Iterable

from kimi_jax_prep.errors import PlanError, PrepError


def positive_int(name: str, value: object, *, error: type[PrepError] = PlanError, optional: bool = False) -> int:
    """The number as Python's int, which does not overflow as NumPy's do.

    Args:
      error: the class to raise.
      optional: whether the caller also takes None, for the message.

    Raises:
      PrepError: `value` is not a positive whole number.
    """
    if not isinstance(value, bool):
        try:
            number = operator.index(value)  # type: ignore[arg-type]  # whoever has no index raises
        except TypeError:
            number = 0
        if number > 0:
            return number
    raise error(f"`{name}` is {value!r}; expected a positive whole number{' or None' if optional else ''}.")


def one_of(
    name: str, value: object, valid: Iterable[object], *, error: type[PrepError] = PlanError, hint: str = ""
) -> None:
    """Refuse a value that is none of the valid ones.

    Args:
      hint: a further sentence of the message, with a space in front.

    Raises:
      PrepError: naming all valid values.
    """
    valid = tuple(valid)
    if not any(value is v or (isinstance(value, type(v)) and value == v) for v in valid):
        raise error(f"`{name}` is {value!r}; expected one of {', '.join(map(repr, valid))}.{hint}")


def check_keywords(given: Iterable[str], valid: Iterable[str]) -> None:
    """Refuse keywords that do nothing.

    Raises:
      TypeError: naming the valid keyword that is nearest, or all of them.
    """
    valid = tuple(valid)
    for name in given:
        if name not in valid:
            near = difflib.get_close_matches(name, valid, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(map(repr, valid))}."
            raise TypeError(f"got an unexpected keyword argument {name!r}; {hint}")
