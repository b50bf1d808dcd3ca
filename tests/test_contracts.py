"""The import contracts of pyproject.toml hold, and each of them can fail."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
# A line for one file that breaks the contract of this name.
VIOLATIONS = {
    "Layers: a module imports only from below": ("tables/taps.py", "from kimi_jax_prep.engine import buffers"),
    "The reference shares sizes, config and errors with what it judges, and nothing else": (
        "reference.py",
        "from kimi_jax_prep.tables import taps",
    ),
    "Nothing in the package is computed by the reference": ("host/patches.py", "from kimi_jax_prep import reference"),
    "No JAX outside ops, engine, processor and integrations": ("media/image.py", "import jax"),
    "Pure functions stay pure: no PIL, no engine, no threads in ops": ("ops/resize.py", "from PIL import Image"),
    "Text is text: the standard library, errors and checks": ("text/rows.py", "import numpy"),
    "Threads, locks and weak references in engine and streams only": ("text/messages.py", "import threading"),
}


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(ROOT / "kimi_jax_prep", tmp_path / "kimi_jax_prep")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_contracts_hold():
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout


def test_every_contract_has_a_violation():
    assert {contract["name"] for contract in CONTRACTS} == set(VIOLATIONS)


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_contract_can_fail(name, copy):
    file, line = VIOLATIONS[name]
    path = copy / "kimi_jax_prep" / file
    path.write_text(f"{path.read_text()}\n{line}\n")
    done = lint(copy)
    assert done.returncode != 0
    assert f"{name} BROKEN" in " ".join(done.stdout.split())
