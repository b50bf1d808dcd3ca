"""The full comparison of both resizes with Pillow: `python tests/sweep_resize.py [pairs]` (2,000 take half an hour).

Log-uniform sizes, 1 to 6000 in and 1 to 3000 out, and every size of golden/geometry.json; noise, checkerboards and flat
pictures. The suite runs small samples of the same.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "engine")]
from bits import assert_bit_equal
from PIL import Image
from test_tiles import plan_resize, resized
from tqdm import tqdm

import kimi_jax_prep as kjp


def sizes(pairs: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """(width, height) in and out."""
    rng = np.random.default_rng(2000)
    out = []
    for _ in range(pairs):
        inner = np.exp(rng.uniform(0, np.log(6000), 2)).astype(int).tolist()
        outer = np.exp(rng.uniform(0, np.log(3000), 2)).astype(int).tolist()
        out.append((tuple(inner), tuple(outer)))
    rows = json.loads((Path(__file__).parents[1] / "golden" / "geometry.json").read_text())["rows"]
    # Pictures of more than 40 megapixels would take most of the time and show nothing new.
    out += [((w, h), tuple(plan[:2])) for w, h, *plans in rows for plan in plans if w * h < 40_000_000]
    return [(a, b) for a, b in out if a != b]


def main(pairs: int) -> None:
    """Stop at the first byte that differs."""
    left_to_pillow = 0
    for i, (size_in, size_out) in enumerate(tqdm(sizes(pairs))):
        rng = np.random.default_rng(i)
        shape = (size_in[1], size_in[0], 3)
        if i % 4 < 2:
            array = rng.integers(0, 256, shape, np.uint8)
        elif i % 4 == 2:
            array = np.broadcast_to((np.indices(shape[:2]).sum(0) % 2 * 255).astype(np.uint8)[..., None], shape).copy()
        else:
            array = np.full(shape, rng.integers(0, 256), np.uint8)
        image = Image.fromarray(array)
        want = np.asarray(image.resize(size_out, Image.Resampling.BICUBIC))
        pure = kjp.resize_bicubic(array, height=size_out[1], width=size_out[0])
        assert_bit_equal(pure, want, what=f"resize_bicubic, {size_in} to {size_out}")
        if plan_resize(size_in, size_out, channels=3) is None:
            left_to_pillow += 1
        else:
            tiles = resized(image, size_out, channels=3)[..., :3]
            assert_bit_equal(tiles, want, what=f"the engine's tiles, {size_in} to {size_out}")
        if i % 100 == 99:
            jax.clear_caches()  # every size is a program of its own
    print(f"all equal; {left_to_pillow} need more taps than the engine's programs have, which leaves them to Pillow")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
