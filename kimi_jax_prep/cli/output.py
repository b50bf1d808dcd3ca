"""What commands print and write: tables, JSON, and files that are complete or absent."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]], *, left: Sequence[int] = (0,)) -> None:
    """Aligned columns. Nothing is wrapped or cut; numbers are right-aligned, columns in `left` are not.

    In a terminal the header is bold, and where a last column "file" does not fit, each name has a line of its own
    above its row. In a pipe the text is plain.
    """
    cells = [list(header), *([_text(value) for value in row] for row in rows)]
    names = [""] * len(cells)
    if header[-1] == "file" and sys.stdout.isatty():
        import shutil

        longest = sum(max(len(row[k]) for row in cells) + 2 for k in range(len(header))) - 2
        if longest > shutil.get_terminal_size().columns:
            names = ["", *(row[-1] for row in cells[1:])]
            cells, header = [row[:-1] for row in cells], header[:-1]
    widths = [max(len(row[k]) for row in cells) for k in range(len(header))]
    lines = []
    for name, row in zip(names, cells, strict=True):
        if name:
            lines.append(name)
        padded = [c.ljust(w) if k in left else c.rjust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(padded).rstrip())
    show_lines(lines[:1], "bold")
    show_lines(lines[1:])


def print_facts(facts: dict[str, Any]) -> None:
    """Names and values, one pair a line."""
    width = max(map(len, facts))
    for name, value in facts.items():
        show_lines([f"{name:<{width}}  {_text(value)}"])


def show_lines(lines: Sequence[str], style: str = "") -> None:
    """Print lines as they are, styled in a terminal."""
    if not sys.stdout.isatty():
        for line in lines:
            print(line)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in lines:
        console.print(Text(line, style=style), soft_wrap=True, no_wrap=True, crop=False, overflow="ignore")


def note(message: str) -> None:
    """A line on stderr, so that stdout stays data."""
    print(message, file=sys.stderr)


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], object]]:
    """A bar on stderr, in a terminal only; call the value with the number of finished steps."""
    if total < 2 or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda steps: bar.advance(task, steps)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` that is renamed to it at the end, or removed after an error or Ctrl-C."""
    import tempfile

    descriptor, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=path.suffix, dir=path.parent or Path())
    os.close(descriptor)
    beside = Path(name)
    try:
        yield beside
        # mkstemp's files are private; the result has the permissions of any new file.
        mask = os.umask(0)
        os.umask(mask)
        beside.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~mask)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
