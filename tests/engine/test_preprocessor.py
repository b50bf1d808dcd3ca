"""The whole path from media to one batch: the reference's bits, in the caller's order, with nothing changed or kept."""

import copy
import dataclasses
import io
from pathlib import Path

import jax
import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image

from kimi_jax_prep import (
    KIMI_K3,
    KIMI_K25,
    ConfigError,
    MediaError,
    PlanError,
    PrepError,
    Preprocessor,
    normalize_lut,
    preprocess,
    reference,
)

CONFIGS = {
    "K2.5": dataclasses.replace(KIMI_K25, in_patch_limit=150, in_patch_limit_each_frame=60),
    "K3": dataclasses.replace(KIMI_K3, in_patch_limit=150),
}
DTYPES = ["float32", "bfloat16", "float16", "uint8"]
PATHS = ["cold", "jax", "numpy"]
every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
every_path = pytest.mark.parametrize("path", PATHS)


def noise(mode: str, width: int, height: int, *, seed: int = 0) -> Image.Image:
    channels = len(Image.new(mode, (1, 1)).getbands())
    rng = np.random.default_rng([width, height, channels, seed])
    pixels = rng.integers(0, 256, (height, width, channels), np.uint8)
    return Image.frombytes(mode, (width, height), pixels.tobytes())


def png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def mixed() -> list:
    """Twelve media with repeats: sorting or grouping by size would show."""
    shot = noise("RGB", 61, 300)
    chunk = {"type": "video_chunk", "video_chunk": [noise("RGB", 200, 90, seed=k) for k in range(3)]}
    return [
        noise("RGB", 301, 211),
        noise("RGBA", 97, 130),
        {"type": "image", "image": noise("L", 28, 28)},
        chunk,
        png(noise("LA", 210, 150)),
        noise("RGB", 1, 1),
        shot,
        noise("RGBA", 300, 40),
        noise("CMYK", 64, 64),
        shot,
        {"type": "video_chunk", "video_chunk": [png(noise("RGB", 57, 29))]},
        noise("RGB", 301, 211),
    ]


def preprocessor(path: str, config, dtype: str = "float32") -> Preprocessor:
    """ "cold" may be answered by either path; "jax" has all programs compiled."""
    prep = Preprocessor(config, dtype=dtype, backend="numpy" if path == "numpy" else "jax")
    if path == "jax":
        prep.warmup(max_patches=2000)
    return prep


@every_path
@every_config
def test_a_mixed_batch_is_the_judges(config, path):
    batch = preprocessor(path, config)(mixed())
    want = reference.preprocess(mixed(), config)
    assert_bit_equal(batch.pixel_values, want.pixel_values, what="patches")
    assert_bit_equal(batch.grid_thws, want.grid_thws, what="grids")
    assert (batch.plans, batch.num_tokens, len(batch)) == (want.plans, want.num_tokens, 12)
    assert len(batch.pixel_values) == batch.grid_thws.prod(axis=1).sum()


@every_path
@every_config
def test_a_mixed_batch_is_its_media_one_by_one(config, path):
    prep = preprocessor(path, config)
    batch, singles = prep(mixed()), [prep([medium]) for medium in mixed()]
    joined = np.concatenate([single.pixel_values for single in singles])
    assert_bit_equal(batch.pixel_values, joined, what="patches")
    assert_bit_equal(batch.grid_thws, np.concatenate([single.grid_thws for single in singles]), what="grids")
    for i, (part, single) in enumerate(zip(batch.split(), singles, strict=True)):
        assert_bit_equal(part, single.pixel_values, what=f"medias[{i}]")


@every_path
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("std", [(0.5, 0.5, 0.5), (0.26862954, 0.26130258, 0.27577711)], ids=["one table", "three"])
def test_every_dtype_is_the_table_of_the_judges_bytes(dtype, path, std):
    config = dataclasses.replace(CONFIGS["K3"], image_std=std)
    # With mean 0 and std 1 / 255, the reference's values are the bytes themselves.
    plain = dataclasses.replace(config, image_mean=(0.0, 0.0, 0.0), image_std=(1 / 255,) * 3)
    bytes_ = reference.preprocess(mixed(), plain).pixel_values
    index = np.rint(bytes_).astype(np.uint8)
    want = normalize_lut(config, dtype=dtype)[index, np.arange(3)[:, None, None]]
    assert_bit_equal(preprocessor(path, config, dtype)(mixed()).pixel_values, want, what=dtype)


def test_preprocess_is_a_preprocessor_with_the_presets_rules():
    medias = mixed()
    assert_bit_equal(
        preprocess(medias, config=KIMI_K3, dtype="uint8").pixel_values,
        Preprocessor(KIMI_K3, dtype="uint8")(medias).pixel_values,
        what="K3",
    )
    assert_bit_equal(preprocess(medias).pixel_values, preprocess(medias, config=KIMI_K25).pixel_values, what="default")


@pytest.mark.parametrize("medias", [list, tuple, iter], ids=lambda f: f.__name__)
def test_any_iterable_of_media_will_do(medias):
    got = preprocess(medias([noise("RGB", 30, 40), noise("L", 50, 20)]))
    assert got.grid_thws.tolist() == [[1, 4, 4], [1, 2, 4]]


@every_path
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_media_no_patches(dtype, path):
    prep = preprocessor(path, KIMI_K25, dtype)
    batch = prep([])
    assert_bit_equal(batch.pixel_values, np.zeros((0, 3, 14, 14), normalize_lut(KIMI_K25, dtype=dtype).dtype), what="0")
    assert_bit_equal(batch.grid_thws, np.zeros((0, 3), np.int64), what="grids")
    assert (batch.num_tokens, batch.plans, len(batch.split())) == ((), (), 0)


def broken() -> bytes:
    """A picture cut short: its header is whole."""
    data = png(noise("RGB", 64, 64))
    return data[: len(data) // 2]


BAD = {
    "none": (None, MediaError, "NoneType"),
    "empty": (b"", MediaError, "no bytes"),
    "no image": (b"a text file", MediaError, "not an image"),
    "cut short": (broken(), MediaError, "cannot decode"),
    "unknown type": ({"type": "audio", "audio": b""}, MediaError, "'audio'"),
    "no frames": ({"type": "video_chunk", "video_chunk": []}, MediaError, "at least one frame"),
    "five frames": ({"type": "video_chunk", "video_chunk": [noise("L", 9, 9)] * 5}, MediaError, "got 5"),
}


@every_path
@pytest.mark.parametrize("bad", BAD)
def test_errors_name_the_medium_and_the_next_call_works(bad, path):
    media, error, message = BAD[bad]
    prep = preprocessor(path, CONFIGS["K3"])
    good = mixed()
    for at in (0, 3, len(good)):
        with pytest.raises(error, match=rf"^medias\[{at}\]: (?s:.*){message}") as caught:
            prep([*good[:at], media, *good[at:]])
        assert isinstance(caught.value, PrepError)
        assert caught.value.__cause__ is not None
        assert len(str(caught.value)) < 400
    want = reference.preprocess(good, CONFIGS["K3"])
    assert_bit_equal(prep(good).pixel_values, want.pixel_values, what="next call")


def test_a_missing_file_stays_file_not_found(tmp_path):
    missing = tmp_path / "absent.png"
    with pytest.raises(FileNotFoundError, match=r"medias\[1\].*absent\.png") as caught:
        preprocess([noise("RGB", 9, 9), missing])
    assert caught.value.filename == str(missing)


ONE = [
    noise("RGB", 9, 9),
    b"abc",
    bytearray(b"abc"),
    "abc",
    {"type": "image"},
    None,
    3,
    Path("a.png"),
    io.BytesIO(b"a\nb"),
]
ONE += [np.zeros((9, 9, 3), np.uint8), np.zeros((9, 9), np.uint8), jax.numpy.zeros((3, 9, 9), jax.numpy.uint8)]


@pytest.mark.parametrize("medias", ONE, ids=lambda m: type(m).__name__)
@pytest.mark.usefixtures("unchecked")
def test_one_medium_is_not_a_list(medias):
    with pytest.raises(TypeError, match=rf"got one {type(medias).__name__}\. Put it in a list"):
        preprocess(medias)


def test_an_array_of_pictures_is_a_list_of_them():
    pictures = np.random.default_rng(0).integers(0, 256, (3, 20, 30, 3), np.uint8)
    got, want = preprocess(pictures), preprocess(list(pictures))
    assert_bit_equal(got.pixel_values, want.pixel_values, what="patches")
    assert len(got) == 3


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dtype": "float64"}, PlanError, "`dtype` is 'float64'"),
        ({"backend": "torch"}, PlanError, "`backend` is 'torch'; expected one of 'jax', 'numpy'"),
        ({"num_threads": 0}, PlanError, "`num_threads` is 0"),
        ({"max_cached_bytes": -1}, PlanError, "`max_cached_bytes` is -1"),
        ({"config": 7}, TypeError, r"got int"),
        ({"config": "k9"}, ConfigError, r"'k9'.*k2\.5"),
        ({"dytpe": "float32"}, TypeError, "dytpe"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_options(arguments, error, message):
    with pytest.raises(error, match=message):
        Preprocessor(**arguments)


@every_path
@every_config
def test_inputs_are_unchanged(config, path, tmp_path):
    file = tmp_path / "picture.png"
    file.write_bytes(png(noise("RGBA", 90, 80)))
    pixels = np.random.default_rng(5).integers(0, 256, (40, 50, 3), np.uint8)
    trns = noise("L", 30, 30).convert("P")
    trns.info["transparency"] = bytes(range(256))
    image, chunk = noise("RGBA", 300, 41), {"type": "video_chunk", "video_chunk": [noise("RGB", 70, 90)], "more": [1]}
    medias = [image, chunk, pixels, trns, file]

    def seen():
        images = [image, chunk["video_chunk"][0], trns]
        states = [(i.mode, i.size, i.tobytes(), copy.deepcopy(i.info)) for i in images]
        return states, sorted(chunk), chunk["more"], pixels.tobytes(), list(map(id, medias)), file.read_bytes()

    before = copy.deepcopy(seen()[:4]), seen()[4:]
    preprocessor(path, config)(medias)
    assert (seen()[:4], seen()[4:]) == before


@every_path
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_are_the_callers_own(dtype, path):
    prep = preprocessor(path, CONFIGS["K2.5"], dtype)
    first = prep(mixed())
    kept = first.pixel_values.copy()
    for array in (first.pixel_values, first.grid_thws):
        assert array.flags.writeable
        assert array.flags.c_contiguous
    first.pixel_values[...] = 1
    first.grid_thws[...] += 1
    second = prep(mixed())
    assert_bit_equal(second.pixel_values, kept, what="after the first was overwritten")
    assert (first.pixel_values == 1).all()
    assert not np.shares_memory(first.pixel_values, second.pixel_values)


def test_memory_is_not_used_again_while_a_view_lives():
    prep = preprocessor("jax", CONFIGS["K2.5"])
    row = prep(mixed()).pixel_values[7:9, 1].T[3]
    kept = row.copy()
    for _ in range(3):
        prep([Image.new("RGB", (300, 300), "white")] * 8)
    assert_bit_equal(row, kept, what="view of a result that is gone")


def test_an_input_may_change_right_after_the_call():
    pixels = np.random.default_rng(6).integers(0, 256, (56, 84, 3), np.uint8)
    want = reference.preprocess([pixels], KIMI_K25).pixel_values
    got = preprocessor("jax", KIMI_K25)([pixels]).pixel_values
    pixels[...] = 0
    assert_bit_equal(got, want, what="pixels")


def test_pictures_of_one_number_of_bytes_are_not_mistaken():
    # ai-dynamo/dynamo#8340: 30x150 served for 150x30.
    data = np.random.default_rng(7).integers(0, 256, 30 * 150 * 3, np.uint8)
    for shape in ((30, 150, 3), (150, 30, 3)):
        pixels = data.reshape(shape)
        want = reference.preprocess([pixels], CONFIGS["K2.5"])
        assert_bit_equal(preprocess([pixels], config=CONFIGS["K2.5"]).pixel_values, want.pixel_values, what=str(shape))


def test_no_file_stays_open(tmp_path):
    file = tmp_path / "picture.png"
    file.write_bytes(png(noise("RGB", 30, 30)))
    preprocess([file])
    assert str(file) not in {str(link.resolve()) for link in Path("/proc/self/fd").iterdir()}
