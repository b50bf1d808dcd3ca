"""A short run of tests/fuzz, and that its checks can fail."""

import importlib
import io
import subprocess
import sys
from pathlib import Path

import pytest

import kimi_jax_prep as kjp

FOLDER = Path(__file__).parent


@pytest.fixture
def fuzz(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("run"), importlib.import_module("child"), importlib.import_module("cases")


def run(*args: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(FOLDER / "run.py"), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_three_hundred_broken_pictures():
    done = run("--count", "300", "--every", "5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n0 violations" in done.stdout
    assert "result\n" in done.stdout
    assert "MediaError from OSError\n" in done.stdout


def test_one_case_again(fuzz):
    _, _, cases = fuzz
    done = run("--only", "12345")
    assert done.returncode == 0, done.stdout + done.stderr
    this = cases.case(0, 12345)
    assert done.stdout.startswith(this.story)
    file = Path(done.stdout.split(" bytes in ")[1].splitlines()[0])
    assert file.read_bytes() == this.data
    file.unlink()


def test_cases_differ_by_seed_and_number(fuzz):
    _, _, cases = fuzz
    assert cases.case(1, 7) == cases.case(1, 7)
    assert len({cases.case(seed, number).data for seed in range(3) for number in range(10)}) == 30
    assert {cases.case(0, n).form for n in range(16)} == set(cases.FORMS)


def test_what_the_child_finds(fuzz):
    _, child, cases = fuzz
    files = [cases.case(0, n) for n in range(200) if cases.case(0, n).form == "file" and not cases.case(0, n).options]
    arrays = [cases.case(0, n) for n in range(200) if cases.case(0, n).form == "bytearray"]

    def raises(medias, **options):
        raise KeyError(len(medias), options)

    def reads(medias, **_):
        medias[0].seek(0, io.SEEK_END)
        medias[0].write(b"more")
        raise kjp.MediaError("broken")

    def writes(medias, **_):
        medias[0][:1] = b"??"
        raise kjp.MediaError("broken")

    assert child.run(files[0], raises)["wrong"][0].startswith("KeyError instead of a PrepError")
    assert child.run(files[0], reads)["wrong"] == ["the caller's objects changed"]
    assert child.run(arrays[0], writes)["wrong"] == ["the caller's objects changed"]


def test_what_the_summary_finds(fuzz):
    runner, child, cases = fuzz
    good = next(
        this
        for this in (cases.case(0, n) for n in range(2000))
        if this.is_plain and this.form == "bytes" and runner._by_reference(this)
    )
    memory = {"resident": 0, "peak": 0, "cached": 0}
    fine = {"done": good.number, "outcome": "result", "seconds": 0.1, "wrong": [], **memory}
    digest = child.digest_of(kjp.preprocess([good.data], config=child.RULES[good.rules]))
    found = {}
    for name, changes in {
        "nothing": {},
        "slow": {"seconds": 2.5},
        "other bits": {"digest": digest[:-1] + "?"},
        "refused": {"digest": None},
        "leak": {},
    }.items():
        summary = runner.Summary(0, every=1)
        summary.note({"warm": True, **memory})
        for _ in range(3):
            summary.note({"digest": digest, **fine, **changes})
        summary.note({"end": True, **memory, "resident": (101 << 20) * (name == "leak")})
        summary.close()
        found[name] = [violation.split(": ")[-1].split("\n")[0] for violation in summary.violations]
    assert found == {
        "nothing": [],
        "slow": ["took 2.5 s"] * 3,
        "other bits": ["differs from the reference:"] * 3,
        "refused": ["is refused, but the reference takes it"] * 3,
        "leak": ["memory in use grew by 101 MB"],
    }


def test_a_crash_is_told(fuzz):
    runner, _, _ = fuzz
    code = "import os; print('{\"start\": 3}', flush=True); os.abort()"
    start, end = runner.lines_of([sys.executable, "-c", code])
    assert start == {"start": 3}
    assert end.startswith("the process ended with -6")
