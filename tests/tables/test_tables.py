"""The byte table and the resize taps, against recorded values and against routes that share no code with them."""

import json
import struct
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image
from plain import dense_taps

from kimi_jax_prep import KIMI_K25, MediaProcConfig, PlanError, normalize_lut
from kimi_jax_prep.tables.lut import DTYPES, dtype_name, output_dtype
from kimi_jax_prep.tables.taps import PRECISION_BITS, bicubic_taps, num_taps

LUTS = json.loads((Path(__file__).parents[1] / "golden" / "lut.json").read_text())["luts"]
BLUNT = [("bfloat16", "clip"), ("bfloat16", "imagenet")]
every_table = pytest.mark.parametrize("name", LUTS)
AXES = [
    (1, 1),
    (1, 9),
    (2, 1),
    (5, 4),
    (7, 23),
    (12, 5),
    (28, 27),
    (61, 60),
    (97, 13),
    (100, 300),
    (307, 211),
    (512, 252),
]
every_axis = pytest.mark.parametrize(("n_in", "n_out"), AXES)


def config_of(name: str) -> MediaProcConfig:
    mean, std = tuple(LUTS[name]["image_mean"]), tuple(LUTS[name]["image_std"])
    return MediaProcConfig(in_patch_limit=16384, patch_limit_on_one_side=512, image_mean=mean, image_std=std)


def recorded(name: str) -> np.ndarray:
    return np.array([[float.fromhex(v) for v in row] for row in LUTS[name]["table_hex"]]).astype(np.float32)


@every_table
def test_float32_is_the_recorded_table(name):
    assert_bit_equal(normalize_lut(config_of(name)), recorded(name), what=name)


@every_table
def test_bfloat16_is_float32_rounded_to_nearest_even(name):
    bits = recorded(name).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    got = normalize_lut(config_of(name), dtype="bfloat16")
    assert got.dtype == output_dtype("bfloat16")
    assert_bit_equal(got.view(np.uint16), rounded.astype(np.uint16), what=name)


@every_table
def test_float16_is_float32_rounded_to_nearest_even(name):
    # struct's "e" rounds by code of its own, in CPython.
    packed = b"".join(struct.pack("<e", v) for v in recorded(name).ravel().tolist())
    want = np.frombuffer(packed, "<u2").reshape(256, 3)
    got = normalize_lut(config_of(name), dtype="float16")
    assert got.dtype == np.float16
    assert_bit_equal(got.view(np.uint16), want, what=name)


def test_uint8_is_the_byte_itself():
    want = np.array([[v, v, v] for v in range(256)], np.uint8)
    assert_bit_equal(normalize_lut(KIMI_K25, dtype="uint8"), want, what="bytes")


@every_table
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "uint8"])
def test_tables_are_shared_read_only_and_rise(name, dtype):
    lut = normalize_lut(config_of(name), dtype=dtype)
    assert lut is normalize_lut(config_of(name), dtype=dtype)
    steps = np.diff(lut.astype(np.float64), axis=0)
    # Where a table reaches 2, bfloat16 has fewer values than there are bytes; with one half it tells all apart.
    assert (steps >= 0).all() if (dtype, name) in BLUNT else (steps > 0).all()
    with pytest.raises(ValueError, match="read-only"):
        lut[0, 0] = 1


@pytest.mark.parametrize(
    "dtype", ["float64", "int8", "", None, np.float64, np.dtype(">f4"), float, "FLOAT32", [1]], ids=repr
)
@pytest.mark.usefixtures("unchecked")
def test_a_bad_dtype_is_shown_with_the_valid_ones(dtype):
    with pytest.raises(PlanError, match=r"`dtype` is .*'float32', 'bfloat16', 'float16', 'uint8'") as caught:
        normalize_lut(KIMI_K25, dtype=dtype)
    assert repr(dtype) in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        *((name, name) for name in DTYPES),
        *((dtype, name) for name, dtype in DTYPES.items()),
        *((dtype.type, name) for name, dtype in DTYPES.items()),
        *((getattr(jnp, name), name) for name in DTYPES),
    ],
    ids=repr,
)
def test_dtypes_are_taken_as_numpy_and_jax_write_them(dtype, name):
    assert dtype_name(dtype) == name
    assert output_dtype(dtype) == DTYPES[name]
    assert normalize_lut(KIMI_K25, dtype=dtype).dtype == DTYPES[name]


def test_dtypes_are_taken_as_torch_writes_them():
    torch = pytest.importorskip("torch", reason="torch is an extra")
    assert [dtype_name(getattr(torch, name)) for name in DTYPES] == list(DTYPES)
    with pytest.raises(PlanError, match=r"`dtype` is torch\.float64"):
        dtype_name(torch.float64)


def spread(n_in: int, n_out: int) -> np.ndarray:
    """Our taps as an int64 (n_out, n_in) matrix."""
    start, weights = bicubic_taps(n_in, n_out)
    dense = np.zeros((n_out, n_in), np.int64)
    for i in range(n_out):
        dense[i, start[i] : start[i] + weights.shape[1]] = weights[i]
    return dense


@every_axis
def test_taps_are_pillows_arithmetic(n_in, n_out):
    assert_bit_equal(spread(n_in, n_out), dense_taps(n_in, n_out), what=f"{n_in} to {n_out}")


@every_axis
def test_taps_are_pillows_answer_to_single_bright_pixels(n_in, n_out):
    # Row j has one bright pixel, at j; rows do not change height, so only the horizontal pass runs.
    bright = Image.fromarray(np.eye(n_in, dtype=np.uint8) * 255)
    answer = np.asarray(bright.resize((n_out, n_in), Image.Resampling.BICUBIC))
    mine = np.clip((2**21 + 255 * spread(n_in, n_out)) >> 22, 0, 255).astype(np.uint8)
    assert_bit_equal(mine.T, answer if n_in != n_out else np.asarray(bright), what=f"{n_in} to {n_out}")


@every_axis
def test_taps_sum_to_one_but_for_half_a_unit_each(n_in, n_out):
    # Every weight is rounded by at most half a unit of 2^-22, so a flat image stays flat.
    _, weights = bicubic_taps(n_in, n_out)
    assert PRECISION_BITS == 22
    off = np.abs(weights.astype(np.int64).sum(axis=1) - 2**22)
    assert (2 * off <= (weights != 0).sum(axis=1)).all()
    assert (np.abs(weights.astype(np.int64)).sum(axis=1) * 255 + 2**21 < 2**31).all()


@every_axis
def test_windows_lie_inside_the_axis(n_in, n_out):
    start, weights = bicubic_taps(n_in, n_out)
    assert (start.dtype, weights.dtype) == (np.int32, np.int32)
    assert start.shape == (n_out,)
    assert weights.shape == (n_out, num_taps(n_in, n_out))
    assert (start >= 0).all()
    assert (start + weights.shape[1] <= n_in).all()
    assert (np.diff(start) >= 0).all()
    with pytest.raises(ValueError, match="read-only"):
        weights[0, 0] = 1
