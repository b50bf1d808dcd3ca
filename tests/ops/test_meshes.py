"""The pure functions on meshes with explicit, auto and manual axes: equal bits, kept shardings, one compile a shape."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "on_eight_devices.py"


@pytest.fixture(scope="module")
def found():
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_bits_are_those_of_one_device(found):
    assert len(found) > 45
    assert [way for way, result in found.items() if not result["equal"]] == []


def test_the_batch_axis_stays_sharded(found):
    ways = {way: r for way, r in found.items() if "jit(vmap" in way or "shard_map" in way}
    assert len(ways) > 30
    assert [way for way, result in ways.items() if result["spec"] != "x"] == []


def test_each_shape_compiles_once(found):
    ways = {way: r for way, r in found.items() if "compiles" in r}
    assert [(way, r["compiles"]) for way, r in ways.items() if r["compiles"] != [1, 0]] == []
