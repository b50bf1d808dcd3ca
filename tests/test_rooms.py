"""Data flows down the list of rooms: an import may only point up it."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "kimi_jax_prep"
# From the top down, as design.md has it; rooms that were split are listed where the old one stood.
ROOMS = [
    "_fork",
    "_errors",
    "_config",
    "_geometry",
    "_options",
    "_batch",
    "_tables",
    "_words",
    "_resize",
    "_patchify",
    "_composite",
    "reference",
    "_encoded",
    "_arrays",
    "_picture",
    "_video_file",
    "_colour",
    "media",
    "video",
    "_memory",
    "_programs",
    "_pixels",
    "_cut",
    "_tiles",
    "_frames",
    "_threads",
    "_items",
    "_engine",
    "_tensors",
    "_pretrained",
    "_keywords",
    "_image_processor",
    "_placeholders",
    "_token_rows",
    "_messages",
    "_kimi_processor",
    "processor",
    "integrations",
    "cli",
]
# Narrower than the list: who may be asked by the judge, and who must not need what.
ONLY = {
    "reference": {"_batch", "_config", "_geometry", "_errors"},
    "_fork": set(),
    "_errors": set(),
    "_config": {"_errors"},
    "_geometry": {"_config", "_errors"},
    "_options": {"_errors"},
    "_tables": {"_config", "_geometry", "_errors"},
    "_words": {"_tables"},
    "_resize": {"_words", "_tables", "_geometry", "_errors"},
    "_composite": {"_config", "_errors"},
    "_placeholders": {"_errors"},
    "_token_rows": {"_geometry", "_errors"},
    "_messages": {"_errors"},
}


def imported_rooms(source: str) -> set[str]:
    """Rooms of this package that a file imports, wherever in it, and however it says so."""
    rooms = set()
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = f"kimi_jax_prep.{node.module or ''}".rstrip(".") if node.level else node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("kimi_jax_prep.")}
    return rooms


def violations(room: str, source: str) -> list[str]:
    above = set(ROOMS[: ROOMS.index(room)])
    allowed = (ONLY[room] & above) if room in ONLY else above
    # A folder's files may import one another; names such as `kimi_jax_prep.KIMI_K3` belong to no room.
    return sorted((imported_rooms(source) & set(ROOMS)) - allowed - ({room} if room == "integrations" else set()))


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = [f for f in sorted(PACKAGE.rglob("*.py")) if f != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.relative_to(PACKAGE).as_posix())
def test_imports_point_up(file):
    assert room_of(file) in ROOMS, "a new room: put it in the list, below all that it imports"
    assert violations(room_of(file), file.read_text()) == []


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.relative_to(PACKAGE).as_posix())
def test_nobody_imports_names_from_the_front_door(file):
    # `from kimi_jax_prep import KIMI_K3` inside the package would hide which room it asks.
    names = imported_rooms(file.read_text())
    assert names <= set(ROOMS) | {"__version__"}


@pytest.mark.parametrize(
    ("room", "source", "found"),
    [
        ("_tables", "import kimi_jax_prep._engine", ["_engine"]),
        ("_tables", "from kimi_jax_prep._engine import preprocess", ["_engine"]),
        ("_tables", "from kimi_jax_prep import _engine, _config", ["_engine"]),
        ("_tables", "from . import _engine", ["_engine"]),
        ("_tables", "from ._resize import resize_bicubic", ["_resize"]),
        ("_tables", "def f():\n    from kimi_jax_prep import reference", ["reference"]),
        ("_tables", "if TYPE_CHECKING:\n    from kimi_jax_prep.media import Medium", ["media"]),
        ("_tables", "import kimi_jax_prep._tables", ["_tables"]),
        ("reference", "from kimi_jax_prep._tables import normalize_lut", ["_tables"]),
        ("reference", "from kimi_jax_prep._patchify import patchify", ["_patchify"]),
        ("media", "from kimi_jax_prep import _errors, reference\nimport jax, numpy as np", []),
        ("_errors", "import os.path\nfrom collections import abc", []),
    ],
)
def test_the_checker_can_fail(room, source, found):
    assert violations(room, source) == found
