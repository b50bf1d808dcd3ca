"""Faults that people met in this job elsewhere, each as a test named after it. `way` is every way to preprocess."""

import base64
import io
import json
import os
import pickle
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image, ImageFile, ImageOps
from transformers.utils import TensorType

import kimi_jax_prep as kjp
from kimi_jax_prep import reference
from kimi_jax_prep.engine.preprocessor import Preprocessor
from kimi_jax_prep.processor import KimiImageProcessor

K25, K3 = kjp.KIMI_K25, kjp.KIMI_K3
LUT = kjp.normalize_lut(K25, dtype="float32")[:, 0]
EVERY_WAY = {
    "reference": lambda config, medias: reference.preprocess(medias, config),
    "preprocess": lambda config, medias, **options: kjp.preprocess(medias, config=config, **options),
    "numpy": lambda config, medias, **options: Preprocessor(config, backend="numpy")(medias, **options),
    "compiled": lambda config, medias, **options: compiled(config)(medias, **options),
}
OUR_WAYS = {name: way for name, way in EVERY_WAY.items() if name != "reference"}
every_way = pytest.mark.parametrize("way", EVERY_WAY.values(), ids=EVERY_WAY)
our_ways = pytest.mark.parametrize("way", OUR_WAYS.values(), ids=OUR_WAYS)


def compiled(config) -> Preprocessor:
    """All programs are there, so that neither Pillow nor NumPy answers in their place."""
    prep = Preprocessor(config)
    prep.warmup(max_patches=5_000, resize=True)
    return prep


def encode(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def data_url(data: bytes, *, parameters: str = "", marker: str = "base64") -> str:
    return f"data:image/png{parameters};{marker},{base64.b64encode(data).decode()}"


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def image_of(batch, width: int, height: int) -> np.ndarray:
    """The normalized first picture (height, width, 3) of a batch, without padding."""
    _, rows, columns = batch.grid_thws.tolist()[0]
    patches = np.asarray(batch.split()[0]).reshape(rows, columns, 3, 14, 14)
    return patches.transpose(0, 3, 1, 4, 2).reshape(rows * 14, columns * 14, 3)[:height, :width]


@every_way
def test_01_transparency_is_composited_not_dropped(way):
    clear = Image.new("RGBA", (28, 28), (0, 0, 0, 0))
    light = way(K3, [clear])
    assert light.grid_thws.tolist() == [[1, 2, 2]]
    picture = image_of(light, 28, 28)
    assert picture[0, 0, 0] == picture[8, 8, 0] == 1.0
    assert picture[0, 8, 0] == picture[8, 0, 0] == LUT[180]
    assert f"{LUT[180]:.7f}" == "0.4117647"
    assert not (light.pixel_values == -1.0).any()
    for config in (K25, kjp.MediaProcConfig.from_dict({"media_proc_cfg": k3_without_background()})):
        assert (way(config, [clear]).pixel_values == -1.0).all()


def k3_without_background() -> dict:
    return K3.to_dict()["media_proc_cfg"] | {"transparent_bg_config": None}


@every_way
def test_02_half_transparent_pixels_are_truncated_not_rounded(way):
    picture = image_of(way(K3, [Image.new("RGBA", (28, 28), (0, 0, 0, 128))]), 28, 28)
    assert (picture[0, 0] == LUT[126]).all()
    assert (picture[0, 8] == LUT[89]).all()
    picture = image_of(way(K3, [Image.new("RGBA", (28, 28), (255, 255, 255, 65))]), 28, 28)
    assert (picture[0, 0] == LUT[254]).all()


@every_way
def test_03_hidden_colour_bleeds_only_where_the_checkpoint_lets_it(way):
    pixels = np.zeros((8, 56, 4), np.uint8)
    pixels[:, :28] = (255, 0, 0, 0)
    pixels[:, 28:] = (0, 0, 255, 255)
    image = Image.fromarray(pixels)
    limit = {"in_patch_limit": 1, "patch_limit_on_one_side": 2}  # 28 pixels at most: 28x4
    for config, want in (
        (K25, [(255, 0, 0), (238, 0, 17), (17, 0, 238), (0, 0, 255)]),
        # The background at columns 12 to 15 of the first rows: square 1, gray.
        (K3, [(180, 180, 180), (168, 168, 185), (12, 12, 249), (0, 0, 255)]),
    ):
        smaller = kjp.MediaProcConfig.from_dict({"media_proc_cfg": config.to_dict()["media_proc_cfg"] | limit})
        plan = kjp.plan_image(width=56, height=8, config=smaller)
        assert (plan.width, plan.height) == (28, 4)
        row = image_of(way(smaller, [image]), 28, 4)[0, 12:16]
        if config is K3:
            resized = np.asarray(image.resize((28, 4), Image.Resampling.BICUBIC))[0, 12:16]
            assert resized.tolist() == [[0, 0, 0, 0], [0, 0, 255, 17], [0, 0, 255, 238], [0, 0, 255, 255]]
            alpha = resized[:, 3:].astype(np.float32) / np.float32(255)
            want = (alpha * resized[:, :3] + (1 - alpha) * np.float32(180)).astype(np.uint8)
        assert_bit_equal(row, LUT[np.asarray(want)], what="the edge")


@every_way
def test_04_gray_palette_cmyk_and_bilevel_pictures(way):
    palette = Image.new("P", (28, 28), 0)
    palette.putpalette([10, 20, 30] + [0] * 765)
    medias = [
        Image.new("L", (28, 28), 200),
        Image.new("LA", (28, 28), (200, 0)),
        Image.open(io.BytesIO(encode(palette, transparency=b"\0" + b"\xff" * 255))),
        Image.new("CMYK", (28, 28), (0, 255, 255, 0)),
        Image.new("1", (28, 28), 1),
        Image.new("RGB", (28, 28), (1, 2, 3)),
    ]
    colours = [(200, 200, 200), (200, 200, 200), (10, 20, 30), (255, 0, 0), (255, 255, 255), (1, 2, 3)]
    batch = way(K25, medias)  # a warning would be an error here
    for part, colour in zip(batch.split(), colours, strict=True):
        assert part.shape == (4, 3, 14, 14)
        assert all((part[:, c] == LUT[colour[c]]).all() for c in range(3)), colour


SIDEWAYS = Image.new("RGB", (56, 28), (0, 0, 0))
SIDEWAYS.paste((255, 0, 0), (0, 0, 28, 28))


def with_orientation(image: Image.Image, orientation: int, kind: str = "PNG", **options) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(image, kind, exif=exif, **options)


@our_ways
def test_06_exif_is_one_switch_on_every_path(way, tmp_path):
    data = with_orientation(SIDEWAYS, 6)
    path = tmp_path / "phone.png"
    path.write_bytes(data)
    for media in (path, data, data_url(data), Image.open(io.BytesIO(data)), {"type": "image", "image": data}):
        off = way(K25, [media])
        assert off.grid_thws.tolist() == [[1, 2, 4]]
        on = way(K25, [media], exif_transpose=True)
        assert on.grid_thws.tolist() == [[1, 4, 2]]
        picture = image_of(on, 28, 56)
        assert (picture[:28, :, 0] == 1.0).all()  # red above
        assert (picture[28:] == -1.0).all()
        for switch, want in ((False, [2, 4]), (True, [4, 2])):
            processor = KimiImageProcessor(exif_transpose=switch)
            plan = processor.get_resize_config(media)
            assert [plan["new_height"] // 14, plan["new_width"] // 14] == want
            assert processor(media)["grid_thws"].tolist() == [[1, *want]]
            assert processor.media_tokens_calculator(media) == 2


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_06_every_orientation_in_every_container(orientation, kind):
    data = with_orientation(Image.fromarray(noise(17, 40, 3)), orientation, kind)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    want = reference.preprocess([upright], K25)
    for media in (data, Image.open(io.BytesIO(data))):
        got = kjp.preprocess([media], exif_transpose=True)
        assert_bit_equal(got.pixel_values, want.pixel_values, what=f"{kind} {orientation}")
        assert_bit_equal(got.grid_thws, want.grid_thws, what=f"{kind} {orientation}")


def test_07_sizes_pad_up_and_the_budget_comes_before_padding():
    for (width, height), tokens in {
        (224, 224): 64,
        (448, 449): 272,
        (29, 28): 2,
        (1024, 768): 1036,
        (4000, 3000): 4200,
        (2048, 2048): 4225,
    }.items():
        plan = kjp.plan_image(width=width, height=height, config=K25)
        assert (
            plan.num_tokens == tokens == KimiImageProcessor().media_tokens_calculator(Image.new("1", (width, height)))
        )
    assert kjp.plan_image(width=4000, height=3000, config=K3).num_tokens == 15444
    batch = kjp.preprocess([Image.new("RGB", (29, 28), "white"), Image.new("RGB", (448, 449))])
    assert batch.grid_thws.tolist() == [[1, 2, 4], [1, 34, 32]]
    white = batch.split()[0]
    assert ((white == 1.0).sum(), (white == -1.0).sum()) == (2436, 2268)


def test_09_the_resize_is_pillows():
    pixels = noise(512, 512, 3)
    small = np.asarray(kjp.resize_bicubic(pixels, height=252, width=252))
    assert small.sum(dtype=np.int64) == 24_267_574
    assert (small[0, 0].tolist(), small[-1, -1].tolist()) == ([167, 149, 178], [136, 84, 130])
    board = (np.indices((60, 80)).sum(0) % 2 * 255).astype(np.uint8)[..., None].repeat(3, 2)
    for image, size in (
        (noise(1, 90, 3), (40, 1)),
        (noise(90, 1, 3), (1, 41)),
        (noise(20, 30, 3), (77, 55)),
        (board, (33, 27)),
        (noise(700, 1000, 3), (333, 233)),
    ):
        want = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC))
        assert_bit_equal(kjp.resize_bicubic(image, height=size[1], width=size[0]), want, what=f"{image.shape} {size}")


@our_ways
def test_11_thin_pictures_are_never_read_sideways(way):
    grids = {
        (1, 1): [1, 2, 2],
        (499, 1): [1, 2, 36],
        (1, 499): [1, 36, 2],
        (8000, 1): [1, 2, 512],
        (30000, 10): [1, 2, 512],
    }
    for size, grid in grids.items():
        for media in (Image.new("RGB", size), np.zeros((size[1], size[0], 3), np.uint8)):
            assert way(K25, [media]).grid_thws.tolist() == [grid]
    dot = way(K25, [Image.new("RGB", (1, 1), "white")]).pixel_values
    assert ((dot == 1.0).sum(), (dot == -1.0).sum()) == (3, dot.size - 3)
    for shape, size in {
        (1, 499, 3): (499, 1),
        (3, 50, 3): (50, 3),
        (3, 3, 3): (3, 3),
        (40, 60, 1): (60, 40),
        (3, 40, 60): (60, 40),
        (4, 40, 60): (60, 40),
        (1, 40, 60): (60, 40),
        (40, 60): (60, 40),
    }.items():
        plan = way(K25, [noise(*shape)]).plans[0]
        assert (plan.width, plan.height) == size, shape
    first = way(K25, [noise(3, 50, 3)], input_data_format="channels_first")
    assert_bit_equal(first.pixel_values, way(K25, [noise(3, 50, 3).transpose(1, 2, 0)]).pixel_values, what="layout")
    with pytest.raises(kjp.MediaError, match="input_data_format"):
        way(K25, [noise(40, 60, 3)], input_data_format="channels_first")
    with pytest.raises(kjp.MediaError, match="input_data_format"):
        way(K25, [noise(40, 60, 2)])


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((8, 8, 3), np.float32),
        np.full((8, 8, 3), 255.0, np.float32),
        np.full((8, 8, 3), np.nan),
        np.full((8, 8, 3), -0.2, np.float16),
        np.zeros((8, 8, 3), np.uint16),
        np.zeros((8, 8, 3), np.int64),
        np.zeros((8, 8, 3), bool),
        np.zeros((8, 8, 3), jax.numpy.bfloat16),
    ],
    ids=lambda a: str(a.dtype),
)
@our_ways
def test_12_arrays_of_other_dtypes_are_refused_with_the_remedy(way, array):
    for error in (kjp.MediaError, TypeError, ValueError):
        with pytest.raises(error, match=rf"^medias\[0\]: .*uint8.*{array.dtype}.*cast"):
            way(K25, [array])


def sixteen_bit(kind: str) -> bytes:
    ramp = (np.arange(256, dtype=np.uint16) * 257).reshape(16, 16)
    if kind == "I;16B":
        return encode(Image.frombytes("I;16B", (16, 16), ramp.astype(">u2").tobytes()), "TIFF")
    return encode(Image.fromarray(ramp if kind == "I;16" else ramp.astype(np.int32)), "TIFF")


@our_ways
@pytest.mark.parametrize("kind", ["I;16", "I;16B", "I"])
@pytest.mark.parametrize("config", [K25, K3], ids=["k25", "k3"])
def test_13_sixteen_bits_clip_with_one_warning_or_are_scaled(way, config, kind):
    data = sixteen_bit(kind)
    assert Image.open(io.BytesIO(data)).mode == kind
    with pytest.warns(UserWarning, match=rf"mode {kind}: .*clipped.*sixteen_bit") as caught:
        clipped = way(config, [data, data])
    assert len(caught) == 1
    levels = image_of(clipped, 16, 16)
    assert len(np.unique(levels)) == 2
    assert (levels[..., 0] == 1.0).sum() == 255
    scaled = image_of(way(config, [data], sixteen_bit="scale"), 16, 16)  # without a warning
    assert_bit_equal(scaled[..., 0].ravel(), LUT, what="256 levels")


def test_13_the_warning_points_at_the_caller():
    code = (
        "import sys, kimi_jax_prep as kjp\nfor _ in range(2):\n    kjp.preprocess([sys.stdin.buffer.read()])\n    break"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=sixteen_bit("I;16"), capture_output=True, check=True, timeout=120
    )
    assert done.stderr.decode().startswith("<string>:3: UserWarning: mode I;16: ")


def test_13_a_transparent_gray_value_is_compared_before_it_is_scaled():
    ramp = np.array([[0x1200, 0x1234, 0x1235, 0xFFFF]], np.uint16)
    data = encode(Image.fromarray(ramp), transparency=0x1234)
    assert Image.open(io.BytesIO(data)).info["transparency"] == 0x1234
    picture = image_of(kjp.preprocess([data], config=K3, sixteen_bit="scale"), 4, 1)
    assert_bit_equal(picture[0, :, 0], LUT[[0x12, 255, 0x12, 0xFF]], what="only the second shows the background")


@our_ways
def test_14_broken_bytes_are_value_errors_with_the_index_and_without_the_data(way, tmp_path):
    png = encode(Image.fromarray(noise(30, 40, 3)))
    want = way(K25, [png]).pixel_values
    legal = [
        data_url(png),
        data_url(png, parameters=";charset=utf-8"),
        data_url(png, marker="BASE64"),
        data_url(png).replace("data:image/png", "DATA:IMAGE/PNG"),
        data_url(png, parameters=';name="a;b%2Cc";charset=utf-8'),
        "data:;base64," + base64.b64encode(png).decode(),
        "data:image/png," + "".join(f"%{byte:02X}" for byte in png),
        "data:image/png;base64," + base64.encodebytes(png).decode(),
        "data:image/png;base64," + base64.b64encode(png).decode().replace("+", "%2B").replace("/", "%2F"),
    ]
    for url in legal:
        assert_bit_equal(way(K25, [url]).pixel_values, want, what=url[:40])
    secret = base64.b64encode(png).decode()
    for broken in (
        "data:image/png;base64" + secret,
        "data:image/png;base64," + secret[:-3],
        "data:image/png;base64," + secret[:40] + "!" + secret[40:],
        "data:image/png,xyz",
        "data:,",
        b"",
        b"a text file, longer than a header would be",
        png[: len(png) // 2],
        "https://example.com/picture.png",
        "file:///picture.png",
        str(tmp_path / "picture.png"),
    ):
        with pytest.raises(kjp.MediaError) as caught:
            way(K25, [png, broken])
        error = pickle.loads(pickle.dumps(caught.value))
        assert type(error) is type(caught.value)
        assert str(error).startswith("medias[1]: ")
        assert secret[:20] not in str(error)
        assert len(str(error)) < 400
    with pytest.raises(FileNotFoundError, match=r"medias\[1\]") as missing:
        way(K25, [png, tmp_path / "absent.png"])
    assert str(pickle.loads(pickle.dumps(missing.value))) == str(missing.value)
    assert_bit_equal(way(K25, [png]).pixel_values, want, what="the next call")


@our_ways
def test_14_what_can_be_done_is_done_when_asked(way, tmp_path):
    good = [encode(Image.fromarray(noise(30, 40 + 30 * k, 3, seed=k))) for k in range(3)]
    cut = good[0][: len(good[0]) // 2]
    chunk = {"type": "video_chunk", "video_chunk": [good[0], cut]}
    medias = [cut, good[0], None, chunk, good[1], tmp_path / "absent.png", good[2], b""]
    batch = way(K25, medias, on_error="skip")
    want = way(K25, good)
    assert_bit_equal(batch.pixel_values, want.pixel_values, what="patches")
    assert_bit_equal(batch.grid_thws, want.grid_thws, what="grids")
    assert batch.pixel_values.flags.writeable
    assert batch.sources == (1, 4, 6)
    assert [failure.index for failure in batch.failures] == [0, 2, 3, 5, 7]
    for failure in batch.failures:
        assert f"medias[{failure.index}]" in str(failure.error)
        assert failure.error.__cause__ is not None
        assert str(pickle.loads(pickle.dumps(failure)).error) == str(failure.error)
    nothing = way(K25, [None, b""], on_error="skip")
    assert (nothing.pixel_values.shape, nothing.grid_thws.shape, len(nothing.failures)) == ((0, 3, 14, 14), (0, 3), 2)


def test_15_a_bomb_is_refused_from_its_header():
    bomb = encode(Image.new("1", (20000, 10000)))
    assert len(bomb) < 30_000
    code = """
import sys, time
import kimi_jax_prep as kjp
from PIL import Image, ImageFile
before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
prep = kjp.Preprocessor(kjp.KIMI_K25)
prep([Image.new("RGB", (30, 30))])
def rss():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024
bomb, start, memory = sys.stdin.buffer.read(), time.perf_counter(), rss()
try:
    prep([bomb])
except kjp.MediaError as err:
    after = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    print(time.perf_counter() - start, rss() - memory, before == after)
"""
    done = subprocess.run([sys.executable, "-c", code], input=bomb, capture_output=True, check=True, timeout=120)
    seconds, megabytes, untouched = done.stdout.decode().split()
    assert float(seconds) < 0.2
    assert float(megabytes) < 50
    assert untouched == "True"


@our_ways
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_15_our_own_limit_holds_before_decoding_and_for_arrays_too(way, monkeypatch):
    large = encode(Image.new("1", (12000, 12000)))
    before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    with monkeypatch.context() as patch:
        patch.setattr(ImageFile.ImageFile, "load", None)
        with pytest.raises(kjp.MediaError, match=r"^medias\[0\]: 12000x12000 .*`max_pixels` = 100000000"):
            way(K25, [large], max_pixels=100_000_000)
    one_byte = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (14000, 14000, 3), (0, 0, 0))
    for media in (one_byte, {"type": "video_chunk", "video_chunk": one_byte[None]}):
        with pytest.raises(kjp.MediaError, match="14000x14000 is more than `max_pixels` = 178956970"):
            way(K25, [media])
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)


def test_18_three_hundred_sizes_compile_no_more_than_the_budget():
    rng = np.random.default_rng(5)
    sizes = [(int(w), int(h)) for w, h in rng.integers(30, 400, (300, 2))]
    pictures = [noise(h, w, 3, seed=i) for i, (w, h) in enumerate(sizes)]
    prep = Preprocessor(K25)
    for picture in pictures:
        prep([picture])
    prep.wait_until_compiled()
    compiled_once = prep.compiled_programs
    assert len(compiled_once) <= 63
    for picture in pictures[::10]:
        want = reference.preprocess([picture], K25)
        assert_bit_equal(prep([picture]).pixel_values, want.pixel_values, what=str(picture.shape))
    assert prep.compiled_programs == compiled_once


def test_19_our_threads_are_bounded_and_bits_do_not_depend_on_them():
    medias = [noise(500, 700, 3, seed=k) for k in range(6)]
    want = reference.preprocess(medias, K25).pixel_values
    for num_threads in (1, 2, 5):
        prep = Preprocessor(K25, num_threads=num_threads)
        assert_bit_equal(prep(medias).pixel_values, want, what=f"{num_threads} threads")
        ours = [t for t in threading.enumerate() if t.name.startswith("kimi_jax_prep")]
        assert len(ours) <= 1 + 2 + 5 + 64  # pools of all numbers asked for in this process, and the compiler's


@pytest.mark.parametrize("x64", ["0", "1"])
def test_21_grids_are_int64_or_jaxs_own_without_a_warning(x64):
    code = """
import warnings
warnings.simplefilter("error")
import jax
from PIL import Image
from kimi_jax_prep.processor import KimiImageProcessor
before = jax.config.jax_enable_x64
for kind in ("np", "pt", "jax"):
    if kind == "pt":
        try:
            import torch
        except ImportError:
            print("int64 float32")
            continue
    got = KimiImageProcessor()(Image.new("RGB", (30, 30)), return_tensors=kind)
    print(*(str(got[key].dtype).removeprefix("torch.") for key in ("grid_thws", "pixel_values")))
assert before == jax.config.jax_enable_x64
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"JAX_ENABLE_X64": x64},
    )
    assert done.returncode == 0, done.stderr
    wide = "int64 float32"
    assert done.stdout.splitlines() == [wide, wide, wide if x64 == "1" else "int32 float32"]


@our_ways
def test_22_results_are_writable_and_strided_inputs_are_read_right(way):
    array = noise(30, 40, 3)
    one_row = noise(1, 10, 3)
    kinds = [
        array,
        array[:, ::-1],
        array[::-1],
        array[:, :, ::-1],
        array[::2, ::3],
        one_row[::-1],
        np.asfortranarray(array),
        array.transpose(1, 0, 2),
        jax.numpy.asarray(array),
        np.broadcast_to(array[:1], array.shape),
    ]
    read_only = array.copy()
    read_only.flags.writeable = False
    kinds.append(read_only)
    for kind in kinds:
        copied = np.array(kind, order="C", copy=True)
        got = way(K25, [kind]).pixel_values
        want = reference.preprocess([copied], K25).pixel_values
        assert_bit_equal(got, want, what=f"{kind.shape} {getattr(kind, 'strides', '')}")
        got += 1
        got += 1
        assert_bit_equal(way(K25, [kind]).pixel_values, want, what="again")
        assert_bit_equal(np.asarray(kind), copied, what="the input")


@our_ways
def test_22_torch_tensors(way):
    torch = pytest.importorskip("torch", reason="torch is an extra")
    planes = torch.from_numpy(noise(3, 30, 40))
    want = reference.preprocess([planes.permute(1, 2, 0).contiguous().numpy()], K25).pixel_values
    for tensor in (planes, planes.permute(1, 2, 0), planes.permute(1, 2, 0).contiguous(), planes.flip(2).flip(2)):
        assert_bit_equal(way(K25, [tensor]).pixel_values, want, what=str(tensor.stride()))
    for bad, message in (
        (planes.to(torch.bfloat16), "bfloat16"),
        (planes.float(), "float32"),
        (planes.to("meta"), "on the CPU; got one on meta"),
    ):
        with pytest.raises(TypeError, match=message):
            way(K25, [bad])


def test_24_config_quirks(tmp_path):
    flat = K25.to_dict()["media_proc_cfg"]
    want = KimiImageProcessor(K25)(noise(30, 40, 3))["pixel_values"]
    for i, values in enumerate(
        [{"media_proc_cfg": flat}, flat, *({"media_proc_cfg": flat | {"merge_kernel_size": m}} for m in (2, [2, 2]))]
    ):
        folder = tmp_path / str(i)
        folder.mkdir()
        (folder / "preprocessor_config.json").write_text(json.dumps(values | {"unknown": {"kept": [1]}}))
        processor = KimiImageProcessor.from_pretrained(folder)
        processor.save_pretrained(folder / "a")
        KimiImageProcessor.from_pretrained(folder / "a").save_pretrained(folder / "b")
        first, second = ((folder / x / "preprocessor_config.json").read_bytes() for x in "ab")
        assert first == second
        assert json.loads(first)["unknown"] == {"kept": [1]}
        assert_bit_equal(
            KimiImageProcessor.from_pretrained(folder / "b")(noise(30, 40, 3))["pixel_values"], want, what="b"
        )
    with pytest.raises(ValueError, match=r"merge_kernel_size.*\[2, 3\]"):
        KimiImageProcessor({**flat, "merge_kernel_size": [2, 3]})
    with pytest.raises(ValueError, match="in_patch_limit"):
        KimiImageProcessor({"patch_size": 14})
    assert KimiImageProcessor({**flat, "merge_kernel_size": (2, 2)}).config == K25


def test_25_return_tensors():
    processor = KimiImageProcessor()
    for kind in (None, "np", "jax", TensorType.NUMPY):
        assert list(processor(noise(30, 40, 3), return_tensors=kind)) == ["pixel_values", "grid_thws"]
    for kind in ("tf", "xyz"):
        with pytest.raises(ValueError, match="'np', 'pt', 'jax', None"):
            processor(noise(30, 40, 3), return_tensors=kind)


@our_ways
def test_26_nothing_none_and_text_only(way):
    empty = way(K25, [])
    assert (empty.pixel_values.shape, empty.pixel_values.dtype) == ((0, 3, 14, 14), np.float32)
    assert (empty.grid_thws.shape, empty.grid_thws.dtype) == ((0, 3), np.int64)
    image = Image.new("RGB", (30, 30))
    for medias in ((image,), iter([image]), (x for x in [image])):
        assert len(way(K25, medias)) == 1
    with pytest.raises(kjp.MediaError, match=r"^medias\[1\]: got NoneType"):
        way(K25, [image, None])
    with pytest.raises(kjp.MediaError, match="at least one pixel"):
        way(K25, [Image.new("RGB", (0, 5))])
    assert dict(KimiImageProcessor()([])) == {}


def test_28_nothing_is_shared_between_shapes_settings_and_threads():
    data = noise(30 * 150 * 3)
    wide, tall = data.reshape(30, 150, 3), data.reshape(150, 30, 3)
    rgba = Image.fromarray(noise(28, 28, 4))
    dark = kjp.MediaProcConfig.from_dict(
        {"media_proc_cfg": K3.to_dict()["media_proc_cfg"] | {"transparent_bg_config": {"pattern": "black"}}}
    )
    jobs = [(K25, wide), (K25, tall), (K3, rgba), (dark, rgba), (K25, noise(700, 900, 3))]
    want = [reference.preprocess([media], config).pixel_values for config, media in jobs]
    assert len({w.tobytes() for w in want}) == len(jobs)
    preps = {config: Preprocessor(config) for config, _ in jobs}
    wrong = []

    def work(seed: int) -> None:
        order = np.random.default_rng(seed).integers(0, len(jobs), 40)
        for k in order:
            config, media = jobs[k]
            if not np.array_equal(preps[config]([media]).pixel_values, want[k]):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@every_way
def test_29_patches_are_in_plain_row_major_order(way):
    pixels = np.arange(0, 80, 10, np.uint8).reshape(2, 4).repeat(14, 0).repeat(14, 1)[..., None].repeat(3, 2)
    values = way(K25, [pixels]).pixel_values
    for k in range(8):
        assert (values[k] == LUT[10 * k]).all()
    sizes = [
        (56, 28),
        (30, 30),
        (300, 20),
        (56, 28),
        (28, 56),
        (30, 30),
        (99, 98),
        (1, 1),
        (56, 28),
        (20, 300),
        (5, 6),
        (99, 98),
    ]
    medias = [noise(h, w, 3, seed=k) for k, (w, h) in enumerate(sizes)]
    batch = way(K25, medias)
    singles = [way(K25, [media]) for media in medias]
    assert_bit_equal(batch.pixel_values, np.concatenate([s.pixel_values for s in singles]), what="patches")
    assert_bit_equal(batch.grid_thws, np.concatenate([s.grid_thws for s in singles]), what="grids")
    assert batch.grid_thws.prod(1).sum() == len(batch.pixel_values)


@our_ways
def test_31_videos_are_sampled_and_cut_into_chunks(way):
    def run(frames, **keys):
        return way(K25, [{"type": "video", "video": frames, **keys}])

    nine = run([Image.new("L", (448, 448), k) for k in range(9)])
    assert nine.grid_thws.tolist() == [[4, 32, 32], [4, 32, 32], [1, 32, 32]]
    assert (len(nine.pixel_values), nine.num_tokens, nine.sources) == (9216, (256,) * 3, (0, 0, 0))
    assert [p.split("<")[0] for p in nine.prompts] == ["00:00:00.000", "00:00:02.000", "00:00:04.000"]
    sampled = run([Image.new("L", (28, 28), k) for k in range(60)], fps=30.0)
    assert len(sampled.pixel_values) == 4 * 4
    assert [part[0, 0, 0, 0] for part in np.split(sampled.pixel_values, 4)] == [LUT[k] for k in (0, 20, 39, 59)]

    chunk = {"type": "video_chunk", "video_chunk": [Image.new("L", (1920, 1080))] * 4}
    batch = way(K25, [chunk])
    assert (batch.plans[0].width, batch.plans[0].height, batch.num_tokens) == (1196, 672, (1032,))
    assert batch.grid_thws.tolist() == [[4, 48, 86]]
    small = way(
        K25, [{"type": "video_chunk", "video_chunk": [Image.new("L", (1280, 720))] * 4}, Image.new("L", (1280, 720))]
    )
    assert small.num_tokens == (1075, 1196)
    assert small.grid_thws.tolist()[0] == [4, 50, 86]

    frames = noise(4, 28, 56, 3)
    as_list = way(K25, [{"type": "video_chunk", "video_chunk": [Image.fromarray(f) for f in frames]}])
    for array in (frames, frames.transpose(0, 3, 1, 2), jax.numpy.asarray(frames)):
        got = way(K25, [{"type": "video_chunk", "video_chunk": array}])
        assert_bit_equal(got.pixel_values, as_list.pixel_values, what="array of frames")
    first = way(
        K25, [{"type": "video_chunk", "video_chunk": frames.transpose(0, 3, 1, 2)}], input_data_format="channels_first"
    )
    assert_bit_equal(first.pixel_values, as_list.pixel_values, what="channels first")

    one = way(K25, [{"type": "video_chunk", "video_chunk": frames[:1]}])
    assert one.grid_thws.tolist() == [[1, 2, 4]]
    for bad, message in (
        ([], "at least one frame"),
        ([Image.new("L", (56, 28)), Image.new("L", (28, 56))], "frame 1 is 28x56 but frame 0 is 56x28"),
        ([Image.new("L", (56, 28))] * 5, "at most 4 frames"),
    ):
        with pytest.raises(kjp.MediaError, match=message):
            way(K25, [{"type": "video_chunk", "video_chunk": bad}])
    with pytest.raises(kjp.MediaError, match="`max_frames` = 8"):
        way(K25, [{"type": "video", "video": [Image.new("L", (28, 28))] * 9}], max_frames=8)

    stream = io.BytesIO()
    colours = [Image.new("RGB", (28, 28), c) for c in ((255, 0, 0), (0, 255, 0))]
    colours[0].save(stream, "GIF", save_all=True, append_images=colours[1:])
    animated = Image.open(stream)
    for seek, channel in ((0, 0), (1, 1)):
        animated.seek(seek)
        gif = way(K25, [animated])
        assert gif.grid_thws.tolist() == [[1, 2, 2]]
        assert (gif.pixel_values[:, channel] == 1.0).all()
        assert animated.tell() == seek


@pytest.mark.parametrize("batch_size", [1, 3, 4])
def test_32_ragged_rows_can_be_told_apart_whatever_the_batch_size(batch_size):
    medias = [noise(side, side, 3, seed=side) for side in (28, 56, 84, 448, 28, 28, 84)]
    prep = Preprocessor(K25)
    want = [prep([media]).pixel_values for media in medias]
    got = []
    for i in range(0, len(medias), batch_size):
        got += prep(medias[i : i + batch_size]).split()
    assert all(isinstance(part, np.ndarray) for part in got)
    for part, whole in zip(got, want, strict=True):
        assert_bit_equal(part, whole, what="a row")


def test_thousands_of_paths_with_few_open_files(tmp_path):
    data = encode(Image.fromarray(noise(20, 30, 3)), "JPEG")
    paths = []
    for k in range(5_000):
        paths.append(tmp_path / f"{k}.jpg")
        paths[-1].write_bytes(data)
    code = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import kimi_jax_prep as kjp
paths = sorted(Path(sys.argv[1]).iterdir())
batch = kjp.preprocess(paths)
print(len(batch), batch.pixel_values.shape)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert (done.stdout.strip(), done.stderr) == ("5000 (40000, 3, 14, 14)", "")


def test_a_path_may_be_a_plain_string_when_asked(tmp_path):
    path = tmp_path / "picture.png"
    path.write_bytes(encode(Image.fromarray(noise(30, 40, 3))))
    want = kjp.preprocess([path]).pixel_values
    assert_bit_equal(kjp.preprocess([str(path)], allow_paths=True).pixel_values, want, what="a plain string")
    with pytest.raises(kjp.MediaError, match=r"pathlib\.Path.*allow_paths=True"):
        kjp.preprocess([str(path)])
    with pytest.raises(kjp.MediaError, match="not fetched"):
        kjp.preprocess(["https://example.com/a.png"], allow_paths=True)
    with pytest.raises(FileNotFoundError):
        kjp.preprocess([str(path) + "x"], allow_paths=True)


def test_a_format_that_runs_programs_is_refused():
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 30 30\n%%EndComments\nshowpage\n"
    assert Image.open(io.BytesIO(postscript)).format == "EPS"
    with pytest.raises(kjp.MediaError, match="EPS is not opened"):
        kjp.preprocess([postscript])


def test_no_warning_without_a_reason():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kjp.preprocess([Path(__file__).parent / "golden" / "images" / "palette_trns.png", Image.new("LAB", (30, 30))])
    assert caught == []
