"""`python -m benchmarks.pipelines`: packs, vmap, export and the example tower; writes results/pipelines.json.

docs/jax.md quotes these figures, and a test compares the two.
"""

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import kimi_jax_prep as kjp
from benchmarks.measure import check_equal, machine, median_ms
from benchmarks.pictures import noise

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "pipelines.json"
# (width, height) and share of requests: phone photos, screenshots, chat images, thumbnails.
MIX = [((4032, 3024), 0.15), ((1920, 1080), 0.25), ((1280, 720), 0.2), ((800, 600), 0.2), ((320, 240), 0.2)]


def packing() -> dict[str, Any]:
    """Milliseconds of a plain batch, of a pack of the same media, and of the copy that `PatchBatch.pack` makes."""
    return {
        "eight 1024x768": _pack([noise(1024, 768, seed=k) for k in range(8)]),
        "64 of 224x224": _pack([noise(224, 224, seed=k) for k in range(64)]),
    }


def _pack(medias: list[Any]) -> dict[str, float]:
    prep = kjp.Preprocessor("k2.5")
    batch = prep(medias)
    capacity = len(batch.pixel_values)
    prep.warmup(max_patches=2 * capacity)
    check_equal(prep.pack(medias, capacity=capacity).pixel_values, batch.pixel_values, "pack")
    plain, packed = [], []
    for _ in range(5):  # in turn, so that both see the same machine
        plain.append(median_ms(lambda: prep(medias)))
        packed.append(median_ms(lambda: prep.pack(medias, capacity=capacity)))
    return {
        "plain batch": round(statistics.median(plain), 2),
        "Preprocessor.pack": round(statistics.median(packed), 2),
        "PatchBatch.pack, after the batch": round(median_ms(lambda: batch.pack(capacity=capacity)), 2),
    }


def fill() -> dict[str, float]:
    """Share of rows in use of packs of 32,768 patches over 200 media of the mix."""
    rng = np.random.default_rng(0)
    sizes = [size for size, _ in MIX]
    chosen = rng.choice(len(MIX), 200, p=[share for _, share in MIX])
    pictures = [np.zeros((sizes[i][1], sizes[i][0], 3), np.uint8) for i in chosen]
    found = {}
    for lookahead in (0, 8, 32):
        packs = kjp.pack_stream(pictures, capacity=32768, dtype="uint8", lookahead=lookahead)
        for _ in packs:
            pass
        found[f"lookahead {lookahead}"] = round(packs.fill, 3)
    return found


def vmapped() -> dict[str, float]:
    """Eight equal pictures under `vmap`, against eight calls of the same jitted function."""
    frames = np.stack([np.asarray(noise(1024, 768, seed=k)) for k in range(8)])
    one = jax.jit(lambda frame: kjp.preprocess_frames(frame, config="k2.5"))
    eight = jax.jit(jax.vmap(lambda frame: kjp.preprocess_frames(frame, config="k2.5")))
    on_device = jax.device_put(frames)
    check_equal(np.asarray(eight(on_device)[3]), np.asarray(one(on_device[3])), "vmap")

    def calls() -> None:
        for frame in on_device:
            one(frame).block_until_ready()

    return {
        "vmap": round(median_ms(lambda: eight(on_device).block_until_ready()), 2),
        "eight calls": round(median_ms(calls), 2),
    }


def export() -> dict[str, float]:
    """Seconds to lower `preprocess_frames` for three platforms, and the bytes of the artifact."""
    start = time.perf_counter()
    blob = kjp.export_preprocess(height=2048, width=2048, config="k2.5", platforms=("cpu", "cuda", "tpu"))
    return {"seconds": round(time.perf_counter() - start, 2), "kilobytes": round(len(blob) / 1e3, 1)}


def tower(count: int = 300) -> dict[str, float]:
    """Milliseconds a medium of the example tower: over packs with and without prefetch, and grid by grid."""
    sys.path.insert(0, str(ROOT / "examples"))
    import moonvit
    import packed_tower

    weights = jax.tree.map(jax.numpy.asarray, moonvit.init(jax.random.key(0), packed_tower.SIZES))
    media = list(packed_tower.random_media(count))

    def run(form: Any) -> float:
        start = time.perf_counter()
        form()
        return round((time.perf_counter() - start) / count * 1e3, 2)

    packed_tower.packed_tokens(weights, media[:50], capacity=1024)  # compiles the one program
    return {
        "packs, prefetch": run(lambda: packed_tower.packed_tokens(weights, media, capacity=1024)),
        "packs": run(lambda: packed_tower.packed_tokens(weights, media, capacity=1024, ahead=0)),
        "grid by grid, compiling": run(lambda: packed_tower.usual_tokens(weights, media)),
        "grid by grid, compiled before": run(lambda: packed_tower.usual_tokens(weights, media)),
    }


MARK = "<!-- written by benchmarks/pipelines.py -->\n"


def table(results: dict[str, Any]) -> str:
    """The figures as the section of docs/jax.md."""
    here = results["machine"]
    rows = [f"| {name}: {what} | {value} |" for name, row in results["packing"].items() for what, value in row.items()]
    rows += [f"| share of rows in use, 200 media of mixed sizes, {k} | {v} |" for k, v in results["fill"].items()]
    rows += [f"| eight 1024x768, `preprocess_frames`, {k} | {v} |" for k, v in results["vmapped"].items()]
    rows += [f"| `export_preprocess` for three platforms, {k} | {v} |" for k, v in results["export"].items()]
    rows += [f"| example tower, a medium, {k} | {v} |" for k, v in results["tower"].items()]
    float32 = kjp.plan_image(width=1920, height=1080, config="k2.5").num_patches * 588 * 4
    rows.append(f"| bytes of one 1920x1080 to the device, float32 / uint8 | {float32:,} / {float32 // 4:,} |")
    head = (
        f"Milliseconds unless a row says otherwise; {here['cpu']}, {here['cpus']} CPUs, JAX {here['versions']['jax']}"
    )
    return f"{MARK}{head}:\n\n| | |\n|---|---|\n" + "\n".join(rows) + "\n"


def main() -> None:
    """Measure, print, write."""
    results: dict[str, Any] = {"machine": machine()}
    for measure in (packing, fill, vmapped, export, tower):
        results[measure.__name__] = measure()
        print(measure.__name__, json.dumps(results[measure.__name__], indent=1), flush=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    page = ROOT / "docs" / "jax.md"
    page.write_text(page.read_text().partition(MARK)[0] + table(results))


if __name__ == "__main__":
    main()
