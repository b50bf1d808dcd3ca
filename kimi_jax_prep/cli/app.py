"""The application: its commands, and how errors become one line and an exit status."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from kimi_jax_prep.cli import bench, check, config, inspect, plan, run
from kimi_jax_prep.cli.inputs import VerboseOption
from kimi_jax_prep.errors import PrepError

USAGE, FAULT, INTERRUPTED = 2, 1, 130

app = typer.Typer(
    name="kimi-jax-prep",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="Turn images and video into the inputs of the Kimi K2.5, K2.6, K2.7 and K3 vision tower.",
)


def _version(value: bool) -> bool:
    if value:
        from kimi_jax_prep import __version__

        typer.echo(f"kimi-jax-prep {__version__}")
        raise typer.Exit
    return value


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: VerboseOption = False,
) -> None:
    """Options before the command."""


for command in (plan.plan, run.run, inspect.inspect, check.check, bench.bench, bench.warmup, config.config):
    app.command()(command)


def run_command(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status: 0, 1 for a fault, 2 for wrong usage or input, 130 for Ctrl-C."""
    verbose = any(a in ("-v", "--verbose") for a in arguments)
    try:
        status = app(args=list(arguments), prog_name="kimi-jax-prep", standalone_mode=False)
        sys.stdout.flush()
        if status == INTERRUPTED:  # some versions of typer return it instead of raising
            print("error: interrupted", file=sys.stderr)
        return status if isinstance(status, int) else 0
    except BrokenPipeError:
        # The reader has left (`| head`). Python must not report the same again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAULT
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as err:
        return _report(err, verbose)


def _report(err: Exception, verbose: bool) -> int:
    if type(err).__name__ == "Abort":  # the parser's own Ctrl-C
        print("error: interrupted", file=sys.stderr)
        return INTERRUPTED
    if type(err).__name__ == "NoArgsIsHelpError":
        message = err.format_message()  # type: ignore[attr-defined]  # the help, unless it was printed
        if message.strip():
            print(message, file=sys.stderr)
        return USAGE
    if verbose:
        import traceback

        traceback.print_exception(err, file=sys.stderr)
    # The parser's errors are of click or of typer's own copy of it, depending on typer's version.
    if hasattr(err, "format_message"):
        message, status = err.format_message(), USAGE  # type: ignore[attr-defined]  # hasattr does not narrow
    elif isinstance(err, PrepError):
        message, status = str(err), USAGE
    elif isinstance(err, OSError):
        name = f": {err.filename}" if err.filename is not None else ""
        message, status = f"{err.strerror or err}{name}", USAGE
    else:
        hint = "" if verbose else " (-v shows the traceback)"
        message, status = f"{type(err).__name__}: {err}{hint}", FAULT
    print("error:", " ".join(message.split()), file=sys.stderr)
    return status
