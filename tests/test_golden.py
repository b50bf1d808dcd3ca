"""Every recorded image and video chunk of the checkpoint, by hash, from the reference and from the engine."""

import dataclasses
import hashlib
import itertools
import json
from pathlib import Path

import numpy as np
import PIL
import pytest
from PIL import Image

import kimi_jax_prep as kjp
from kimi_jax_prep import reference
from kimi_jax_prep.engine.backends import NumpyBackend

GOLDEN = Path(__file__).parent / "golden"
CASES = json.loads((GOLDEN / "cases.json").read_text())
GENERATION = "pillow>=13" if int(PIL.__version__.split(".")[0]) >= 13 else "pillow<13"
MODELS = {"k25": kjp.KIMI_K25, "k3": kjp.KIMI_K3}


def grouped(cases, *keys):
    """One batch for each config: the hash is each medium's own all the same."""

    def key(case):
        return tuple(case.get(k, "chunks") for k in keys)

    return {"-".join(k): list(group) for k, group in itertools.groupby(sorted(cases, key=key), key=key)}


GROUPS = grouped(CASES["images"], "model", "limits") | grouped(CASES["chunks"], "model", "limits")


def medium(case):
    path = GOLDEN / "images" / case["file"]
    if "frames" not in case:
        return path
    pixels = np.asarray(Image.open(path))
    frames = [Image.fromarray(np.roll(pixels, case["roll"] * k, axis=1)) for k in range(case["frames"])]
    return {"type": "video_chunk", "video_chunk": frames}


def with_jax(medias, config):
    prep = kjp.Preprocessor(config)
    # Until a program is compiled NumPy answers.
    prep.warmup(max_patches=sum(plan.num_patches for plan in reference.preprocess(medias, config).plans))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NumpyBackend, "patches", None)  # and may not here
        return prep(medias)


WAYS = {
    "reference": reference.preprocess,
    "preprocess": lambda medias, config: kjp.preprocess(medias, config=config),
    "jax": with_jax,
    "numpy": lambda medias, config: kjp.Preprocessor(config, backend="numpy")(medias),
}


def test_nothing_is_left_out():
    assert (len(CASES["images"]), len(CASES["chunks"])) == (184, 36)
    assert sum(map(len, GROUPS.values())) == 220
    assert len(GROUPS) == 11


@pytest.mark.filterwarnings("ignore:mode I;16. values are clipped")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("group", GROUPS)
def test_recorded_hashes(group, way):
    cases = GROUPS[group]
    config = dataclasses.replace(MODELS[cases[0].get("model", "k25")], **cases[0]["overrides"])
    assert {json.dumps(case["overrides"]) for case in cases} == {json.dumps(cases[0]["overrides"])}
    batch = WAYS[way]([medium(case) for case in cases], config)
    assert batch.pixel_values.dtype == np.float32
    wrong = []
    for case, part, grid, plan in zip(cases, batch.split(), batch.grid_thws.tolist(), batch.plans, strict=True):
        sizes = (grid, plan.num_tokens, [plan.width, plan.height], [plan.pad_right, plan.pad_bottom])
        recorded = (
            case["grid_thw"],
            case["num_tokens"],
            case.get("resized", sizes[2]),
            case.get("pad", sizes[3]),
        )
        digest = hashlib.sha256(np.ascontiguousarray(part, "<f4").tobytes()).hexdigest()
        if (digest, sizes) != (case["sha256"][GENERATION], recorded):
            wrong.append((case["file"], case.get("frames"), sizes, recorded))
    assert wrong == []


def test_one_changed_byte_changes_the_hash():
    case = next(c for c in CASES["images"] if c["file"] == "rgb_27x29.png" and c["limits"] == "shipped")
    pixels = np.array(Image.open(GOLDEN / "images" / case["file"]))
    pixels[3, 4, 1] ^= 1
    values = reference.preprocess([Image.fromarray(pixels)], MODELS[case["model"]]).pixel_values
    assert hashlib.sha256(values.tobytes()).hexdigest() != case["sha256"][GENERATION]
