"""docs/benchmarks.md, written from results.json so that no number in it is typed by hand."""

from typing import Any

HEAD = """# Benchmarks

`pip install -e ".[bench]"` and `python -m benchmarks` measure everything on this page on your machine, write it anew
and draw both charts. transformers' processor takes part where torchvision is installed.

Ours and every peer run in one process on the same pictures of noise, PIL images in, NumPy arrays out; medians of
milliseconds. Results are compared with the reference, bit by bit, before a time counts (not those of transformers and
of the OpenCV variant, whose pixels are others). Times on shared machines vary from one minute to the next; ratios
within a row vary less.

- **checkpoint's arithmetic**: `kimi_jax_prep.reference`, NumPy and Pillow.
- **numba**: a serial Pillow resize, then one parallel loop over every element of the padded frames.
- **numba + OpenCV**: the same with OpenCV's bicubic, which is not Pillow's.
- **transformers**: its `Kimi_K25ImageProcessor`, torchvision's resize.

![Speed](assets/speed.png)

![Time per megapixel](assets/scaling.png)
"""

TAIL = """
## What limits it

- **Pictures that are resized**: most of the time is the two resize passes, bound by integer multiplications on all
  cores; the last launch runs at nearly the speed of a copy of its output.
- **Pictures that are not resized**: the copy onto the canvas, patch by patch, and the last launch. The copy is the same
  for all dtypes, so 2-byte and 1-byte results save less time than memory.
- **Very small pictures**: most of the time is handing one launch to XLA and waiting for it.
- **Capacities** are a quarter apart, so the last launch works on an eighth more patches than needed, on average.
"""

UNITS = {"memory": "MB", "peak memory": "MB", "milliseconds per megapixel by batch": "ms per megapixel"}


def page(results: dict[str, Any]) -> str:
    """The page for these results."""
    machine = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    parts = [
        HEAD,
        f"\nMeasured on {machine['cpus']} cores of {machine['cpu']}; Python {machine['python']}, {versions}.\n",
    ]
    for name, row in results["cases"].items():
        ours = row.get("kimi_jax_prep")
        unit = UNITS.get(name, "ms")
        parts.append(f"\n## {name[0].upper()}{name[1:]}\n\n")
        parts.append(f"| | {unit} |" + (" times ours |\n|---|---|---|\n" if ours else "\n|---|---|\n"))
        for label, value in row.items():
            parts.append(f"| {label} | {value:.2f} |" + (f" {value / ours:.1f} |\n" if ours else "\n"))
    return "".join(parts) + TAIL
