"""`python -m benchmarks [--only WORD]`: tables, results.json, docs/benchmarks.md with two charts."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.cases import CASES, OURS
from benchmarks.measure import machine
from benchmarks.page import page


def main(
    only: Annotated[str, typer.Option(help="Run cases whose name contains this, keep the others' results.")] = "",
    out: Annotated[Path, typer.Option(help="Where results.json goes.")] = Path("benchmarks/results"),
    docs: Annotated[Path, typer.Option(help="Where the page and the charts go.")] = Path("docs"),
) -> None:
    """Measure, print, write."""
    console = Console(width=120)
    file = out / "results.json"
    results: dict[str, Any] = {"machine": machine(), "cases": {}}
    if only and file.exists():
        results["cases"] = json.loads(file.read_text())["cases"]  # what is not measured now stays
    for name, case in CASES.items():
        if only in name:
            results["cases"][name] = case()
            console.print(_table(name, results["cases"][name]))
    out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(results, indent=2) + "\n")
    if results["cases"].keys() == CASES.keys():
        draw(results, docs / "assets")
        (docs / "benchmarks.md").write_text(page(results))


def _table(name: str, row: dict[str, float]) -> Table:
    table = Table("", "ms", "times ours", title=name, title_justify="left")
    ours = row.get(OURS)
    for label, value in row.items():
        table.add_row(label, f"{value:.2f}", f"{value / ours:.1f}" if ours else "")
    return table


def draw(results: dict[str, Any], out: Path) -> None:
    """Bars of every peer against ours, and the time per megapixel as batches grow."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cases = {n: r for n, r in results["cases"].items() if OURS in r and "checkpoint's arithmetic" in r}
    peers = ["checkpoint's arithmetic", "numba", "numba + OpenCV", "transformers"]
    fig, ax = plt.subplots(figsize=(9, 0.62 * len(cases) + 1.4))
    height = 0.2
    for k, peer in enumerate(peers):
        y = [i + (k - 1.5) * height for i, r in enumerate(cases.values()) if peer in r]
        x = [r[peer] / r[OURS] for r in cases.values() if peer in r]
        bars = ax.barh(y, x, height, label=peer)
        ax.bar_label(bars, fmt="%.1f", padding=2, fontsize=7)
    ax.axvline(1, color="black", linewidth=1)
    ax.set_yticks(range(len(cases)), list(cases))
    ax.invert_yaxis()
    ax.set_xlabel("time, as a multiple of kimi_jax_prep's")
    ax.legend(fontsize=8, loc="lower right")
    fig.tight_layout()
    fig.savefig(out / "speed.png", dpi=130)

    per_megapixel = results["cases"]["milliseconds per megapixel by batch"]
    fig, ax = plt.subplots(figsize=(6, 3.4))
    ax.plot([int(n) for n in per_megapixel], list(per_megapixel.values()), marker="o")
    ax.set_xscale("log", base=2)
    ax.set_ylim(0, max(per_megapixel.values()) * 1.15)
    ax.set_xticks([int(n) for n in per_megapixel], list(per_megapixel))
    ax.set_xlabel("2048x2048 pictures in one call")
    ax.set_ylabel("milliseconds per megapixel")
    fig.tight_layout()
    fig.savefig(out / "scaling.png", dpi=130)


if __name__ == "__main__":
    typer.run(main)
