"""The NumPy renderer against einops and the reference; Pillow's memory where rows are padded."""

import os
import subprocess
import sys

import einops
import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image

import kimi_jax_prep as kjp
from kimi_jax_prep import reference
from kimi_jax_prep.host.patches import frame_patches
from kimi_jax_prep.tables.lut import normalize_lut


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "uint8"])
@pytest.mark.parametrize("size", [(1, 1), (29, 28), (300, 200), (2100, 2300)])
def test_one_frame(size, dtype):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8))
    plan = kjp.plan_image(width=size[0], height=size[1], config=kjp.KIMI_K25)
    lut = normalize_lut(kjp.KIMI_K25, dtype=dtype)
    resized = np.asarray(image.resize((plan.width, plan.height), Image.Resampling.BICUBIC))
    padded = np.pad(resized, ((0, plan.pad_bottom), (0, plan.pad_right), (0, 0)))
    want = lut[einops.rearrange(padded, "(r p) (k q) c -> (r k) c p q", p=14, q=14), np.arange(3)[:, None, None]]
    for table in (lut, lut[:, 0]):
        out = np.empty((plan.num_patches, 3, 14, 14), lut.dtype)
        frame_patches(image, plan, kjp.KIMI_K25, table, out)
        assert_bit_equal(out, want, what=f"{size} {dtype}")


def test_a_wrong_reference_does_not_agree(monkeypatch):
    """The NumPy path is not computed by what judges it."""
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (60, 90, 3), np.uint8))
    want = reference.preprocess([image], kjp.KIMI_K25).pixel_values
    patchify = reference.patchify
    monkeypatch.setattr(reference, "patchify", lambda *args: patchify(*args)[::-1])
    got = kjp.Preprocessor(backend="numpy")([image]).pixel_values
    assert_bit_equal(got, want, what="NumPy")
    assert got.tobytes() != reference.preprocess([image], kjp.KIMI_K25).pixel_values.tobytes()


def test_where_pillow_pads_its_rows():
    code = """
        import numpy as np
        from PIL import Image
        import kimi_jax_prep as kjp
        from kimi_jax_prep import reference
        assert Image.core.get_alignment() == 64
        rng = np.random.default_rng(0)
        sizes = ((61, 40), (64, 40), (999, 500))
        pictures = [Image.fromarray(rng.integers(0, 256, (h, w, 3), np.uint8)) for w, h in sizes]
        prep = kjp.Preprocessor()
        prep.warmup(max_patches=4000)
        want = reference.preprocess(pictures, kjp.KIMI_K25).pixel_values
        assert prep(pictures).pixel_values.tobytes() == want.tobytes()
    """
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(line[8:] for line in code.splitlines())],
        env={**os.environ, "PILLOW_ALIGNMENT": "64"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
