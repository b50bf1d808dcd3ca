"""The command `kimi-jax-prep`, also `python -m kimi_jax_prep`. Running it needs the extra `cli`.

May import: typer, rich and all of this package. Importing it needs no extra and loads neither.
"""

import sys
from typing import Any

__all__ = ["app", "main"]  # pyright: ignore[reportUnsupportedDunderAll]  # __getattr__ has it

_EXTRA = "error: the command needs the extra `cli`; install it with `pip install 'kimi-jax-prep[cli]'`"


def main() -> None:
    """Run the command on `sys.argv` and exit."""
    try:
        import typer as typer
    except ImportError as err:
        print(f"{_EXTRA} ({err})", file=sys.stderr)
        raise SystemExit(1) from None
    from kimi_jax_prep.cli.app import run_command

    raise SystemExit(run_command(sys.argv[1:]))


def __getattr__(name: str) -> Any:
    if name == "app":
        from kimi_jax_prep.cli.app import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
