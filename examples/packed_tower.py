"""Feeds the tower of `moonvit.py` with packs of random images and videos, and compares it with the usual form.

    python examples/packed_tower.py --pictures 1000

Prints the number of compiled programs, the time per picture of both forms and the largest difference of their tokens.
"""

import argparse
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import moonvit

import kimi_jax_prep as kjp

CONFIG = kjp.KIMI_K25
LUT = kjp.normalize_lut(CONFIG)
SIZES = moonvit.Sizes()


def random_media(count: int, seed: int = 0):
    """Images of random sizes; every fifth medium is a video chunk of 1 to 4 frames."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        height, width = rng.integers(20, 250, 2)
        if i % 5 == 4:
            frames = rng.integers(0, 256, (rng.integers(1, 5), height // 2 + 1, width // 2 + 1, 3), np.uint8)
            yield {"type": "video_chunk", "video_chunk": list(frames)}
        else:
            yield rng.integers(0, 256, (height, width, 3), np.uint8)


def packed_tokens(weights, media, *, capacity: int, ahead: int = 2):
    """The tokens of each medium, by packs: {index: (tokens, 4 * width)}. `ahead` is the size of the prefetch, or 0."""
    found = {}
    packs = kjp.pack_stream(media, config=CONFIG, capacity=capacity, max_media=64, dtype="uint8", lookahead=8)
    for packed in kjp.prefetch(packs, size=ahead) if ahead else packs:
        tokens = np.asarray(moonvit.packed_tower(weights, packed, LUT, sizes=SIZES))
        for i in range(int(packed.num_media)):
            found[int(packed.sources[i])] = tokens[packed.token_segment_ids == i + 1]
    return found


def usual_tokens(weights, media):
    """The same, medium by medium."""
    found = {}
    for i, medium in enumerate(media):
        batch = kjp.preprocess([medium], config=CONFIG)
        grid = tuple(batch.grid_thws[0].tolist())
        found[i] = np.asarray(moonvit.tower_of_one(weights, batch.pixel_values, grid_thw=grid, sizes=SIZES))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--capacity", type=int, default=1024)
    arguments = parser.parse_args()
    weights = jax.tree.map(jnp.asarray, moonvit.init(jax.random.key(0), SIZES))
    capacity = arguments.capacity
    packed_tokens(weights, random_media(8, seed=1), capacity=capacity)  # compiles
    results = []
    for name, run, program in (
        ("packed, prefetched", lambda media: packed_tokens(weights, media, capacity=capacity), moonvit.packed_tower),
        ("packed", lambda media: packed_tokens(weights, media, capacity=capacity, ahead=0), moonvit.packed_tower),
        ("usual", lambda media: usual_tokens(weights, media), moonvit.tower_of_one),
    ):
        start = time.perf_counter()
        results.append(run(random_media(arguments.pictures)))
        seconds = time.perf_counter() - start
        each = 1000 * seconds / arguments.pictures
        print(f"{name}: {program._cache_size()} compiled programs, {each:.1f} ms per picture", flush=True)
    worst = max(np.abs(results[0][i] - results[-1][i]).max() for i in range(arguments.pictures))
    print(f"largest difference of a token's value: {worst:.2g}")


if __name__ == "__main__":
    main()
