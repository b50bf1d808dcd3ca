"""Whatever the docs say is run or checked: code blocks, public names, version, links, the file list."""

import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

import kimi_jax_prep

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
page = pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)


@page
def test_python_blocks_run(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    scope: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M):
        exec(compile(block, str(page), "exec"), scope)


@page
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [t for t in targets if not (page.parent / t).exists()] == []


def test_the_benchmark_page_says_what_was_measured():
    results = json.loads((ROOT / "benchmarks" / "results" / "results.json").read_text())
    spec = importlib.util.spec_from_file_location("page", ROOT / "benchmarks" / "page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "benchmarks.md").read_text() == module.page(results)


def test_the_figures_of_jax_pipelines_are_those_measured():
    sys.path.insert(0, str(ROOT))
    try:
        pipelines = importlib.import_module("benchmarks.pipelines")
    finally:
        sys.path.remove(str(ROOT))
    results = json.loads(pipelines.RESULTS.read_text())
    assert (ROOT / "docs" / "jax.md").read_text().endswith(pipelines.table(results))


def test_every_public_name_is_documented():
    text = (ROOT / "docs" / "api.md").read_text()
    assert [n for n in kimi_jax_prep.__all__ if f"`{n}`" not in text and f"`{n}(" not in text] == []


def test_changelog_starts_with_this_version():
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest
    assert newest[1] == kimi_jax_prep.__version__


def test_every_folder_is_in_the_readme_table():
    text = (ROOT / "README.md").read_text()
    package = ROOT / "kimi_jax_prep"
    folders = [f"`{p.name}/`" for p in package.iterdir() if (p / "__init__.py").exists()]
    assert folders
    assert [f for f in [*folders, "`reference.py`"] if f not in text] == []
