"""Times, bits and the machine."""

import os
import platform
import resource
import statistics
import subprocess
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np


def median_ms(run: Callable[[], Any], *, turns: int = 9, warm: int = 2) -> float:
    """Median of wall time in milliseconds; the result of each turn is dropped before the next."""
    for _ in range(warm):
        run()
    times = []
    for _ in range(turns):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
        del result
    return statistics.median(times) * 1e3


def check_equal(got: np.ndarray, want: np.ndarray, what: str) -> None:
    """Stop if one bit differs: the time of a wrong result means nothing.

    Raises:
      AssertionError: dtype, shape or bits differ.
    """
    if got.dtype != want.dtype or got.shape != want.shape or got.tobytes() != want.tobytes():
        raise AssertionError(f"{what}: {got.dtype}{got.shape} differs from the reference's {want.dtype}{want.shape}")


def rss_mb() -> float:
    """Memory that this process holds now, in MB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    packages = ("jax", "numpy", "pillow", "transformers", "torch", "torchvision", "numba", "opencv-python-headless")
    versions = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "cpu": model,
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": versions,
        "commit": commit.stdout.strip() or None,
    }
