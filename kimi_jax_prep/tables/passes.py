"""The order of Pillow's two resize passes, which affects the result. Since Pillow 13 it depends on the sizes."""

import functools
import importlib.metadata

PASS_ORDERS = ("horizontal-first", "pillow-13")


@functools.cache
def installed_pass_order() -> str:
    """Return the order in which the installed Pillow runs its two passes. It changed with Pillow 13."""
    return "pillow-13" if int(importlib.metadata.version("pillow").split(".")[0]) >= 13 else "horizontal-first"


def vertical_first(*, size_in: tuple[int, int], size_out: tuple[int, int], pass_order: str) -> bool:
    """Return whether the vertical pass comes first. Sizes are (height, width) in pixels."""
    shrink_y, shrink_x = size_in[0] - size_out[0], size_in[1] - size_out[1]
    return pass_order == "pillow-13" and shrink_y > 0 and shrink_y > 2 * shrink_x
