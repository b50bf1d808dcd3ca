"""`visualize`, `show` and the reprs show what is in a batch."""

import dataclasses
import io

import numpy as np
import pytest
from PIL import Image

import kimi_jax_prep as kjp
from kimi_jax_prep.engine.preprocessor import Preprocessor
from kimi_jax_prep.view.picture import _HATCH, contact_sheet, frame_bytes


def noise(width: int, height: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


@pytest.fixture(scope="module")
def prep():
    return Preprocessor("k2.5", backend="numpy")


@pytest.mark.parametrize("dtype", ["float32", "uint8", "bfloat16", "float16"])
def test_the_bytes_come_back_from_the_patches(dtype):
    pixels = noise(50, 40)
    batch = Preprocessor("k2.5", dtype=dtype, backend="numpy")([pixels])
    frame = frame_bytes(batch.pixel_values, batch.plans[0], kjp.KIMI_K25)[0]
    assert frame.shape == (56, 56, 3)
    off = np.abs(frame[:40, :50].astype(int) - pixels).max()
    assert off <= (1 if dtype == "bfloat16" else 0)  # bfloat16 keeps 8 of a byte's bits, less its rounding
    assert not frame[40:].any()
    assert not frame[:, 50:].any()


def test_without_grid_the_picture_is_the_padded_frame(prep):
    pixels = noise(700, 650)
    picture = np.asarray(kjp.visualize(prep([pixels]), 0, grid=False))
    assert (picture[12 : 12 + 650, 12 : 12 + 700] == pixels).all()
    assert not picture[12 + 650 : 12 + 672, 12 : 12 + 700].any()


def test_padding_is_hatched_and_tokens_have_lines(prep):
    picture = np.asarray(kjp.visualize(prep([np.zeros((650, 700, 3), np.uint8)]), 0))
    padding = picture[12 + 650 : 12 + 671, 12 : 12 + 700].reshape(-1, 3)
    assert {tuple(c) for c in _HATCH} <= {tuple(int(v) for v in c) for c in np.unique(padding, axis=0)}
    at_line, beside = picture[12 + 5, 12 + 28], picture[12 + 5, 12 + 5]
    assert tuple(at_line) != tuple(beside) == (0, 0, 0)


@pytest.mark.parametrize("row", [2, -3, 99])
def test_a_row_that_is_not_there_is_an_index_error(prep, row):
    with pytest.raises(IndexError, match=f"the batch has 2 rows; there is no row {row}"):
        prep([noise(20, 20), noise(30, 20)]).show(row)


def test_negative_rows_count_from_the_end(prep):
    batch = prep([noise(20, 20), noise(80, 20)])
    assert batch.show(-1).tobytes() == batch.show(1).tobytes() != batch.show(0).tobytes()


def test_a_large_picture_is_reduced(prep):
    assert max(kjp.visualize(prep([noise(2000, 300)]), 0, max_side=500).size) <= 500 + 24


def test_frames_of_a_chunk_and_chunks_of_a_video_are_all_there(prep):
    frames = [np.full((60, 60, 3), 40 * k, np.uint8) for k in range(6)]
    batch = prep([{"type": "video", "video": frames, "fps": 2.0}])
    assert [p.grid_thw[0] for p in batch.plans] == [4, 2]
    sheet = np.asarray(contact_sheet(batch, range(2), title="clip"))
    colors = {tuple(int(v) for v in c) for c in np.unique(sheet.reshape(-1, 3), axis=0)}
    assert {(40 * k,) * 3 for k in range(6)} <= colors


def test_the_alternative_text_and_the_pictures_are_in_the_html(prep):
    batch = prep([noise(20, 20)] * 6)
    html = batch._repr_html_()
    assert html.count("<img alt=") == 4
    assert "1 x 2 x 2 patches" in html
    assert "and 2 more rows" in html


def test_an_empty_batch_has_a_repr(prep):
    assert "rows=0" in repr(prep([]))
    assert "rows=0" in prep([])._repr_html_()


def test_reprs_are_one_readable_line(prep):
    batch = prep([noise(20, 20)])
    assert repr(batch) == "PatchBatch(pixel_values=float32 (4, 3, 14, 14), grid_thws=[1x2x2], rows=1, tokens=1)"
    assert repr(kjp.KIMI_K25) == (
        "MediaProcConfig(in_patch_limit=16384, patch_limit_on_one_side=512, in_patch_limit_each_frame=4096)"
    )
    assert repr(prep).startswith("Preprocessor(MediaProcConfig(in_patch_limit=16384,")
    assert "backend='numpy'" in repr(prep)


@pytest.mark.parametrize("config", [kjp.KIMI_K25, kjp.KIMI_K3, dataclasses.replace(kjp.KIMI_K3, sample_fps=1.5)])
def test_the_repr_of_a_config_makes_it_again(config):
    assert eval(repr(config), vars(kjp)) == config


def test_a_transparent_picture_shows_the_board_of_k3():
    buffer = io.BytesIO()
    Image.new("RGBA", (280, 280)).save(buffer, "PNG")
    batch = Preprocessor("k3", backend="numpy")([buffer.getvalue()])
    picture = np.asarray(kjp.visualize(batch, 0, config="k3", grid=False))
    assert {180, 255} <= set(np.unique(picture[12:200, 12:200]).tolist())
