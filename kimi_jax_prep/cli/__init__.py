"""The command `kimi-jax-prep`.

May import: typer, rich and all of this package. Needs the extra `cli`.
"""

from kimi_jax_prep.cli.app import app, main

__all__ = ["app", "main"]
