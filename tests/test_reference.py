"""The reference itself, against numbers measured in the field, worked out by hand, or made with Pillow alone."""

import io
import math

import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image

from kimi_jax_prep import KIMI_K3, KIMI_K25, MediaError, reference

RED, BLUE = (255, 0, 0), (0, 0, 255)


def solid(mode: str, colour) -> Image.Image:
    return Image.new(mode, (28, 28), colour)


def pixels(image: Image.Image, config) -> np.ndarray:
    """Float pixels (h, w, 3) of one small image, padding included."""
    batch = reference.preprocess([image], config)
    _, rows, columns = batch.grid_thws[0].tolist()
    x = batch.pixel_values.reshape(rows, columns, 3, 14, 14).transpose(0, 3, 1, 4, 2)
    return x.reshape(rows * 14, columns * 14, 3)


def value(byte: int) -> np.float32:
    """With mean and std of one half."""
    return np.float32(np.float32(byte / 255.0) - 0.5) * np.float32(2)


def test_clear_pixels_on_each_background():
    # smg-project/smg#1984
    clear = solid("RGBA", (0, 0, 0, 0))
    k3 = pixels(clear, KIMI_K3)
    assert [k3[y, x, 0] for y, x in [(0, 0), (0, 8), (8, 0), (8, 8)]] == [1.0, value(180), value(180), 1.0]
    assert value(180) == np.float32(0.4117647409439087)
    assert (k3 > -1).all()
    assert (pixels(clear, KIMI_K25) == -1).all()


@pytest.mark.parametrize(
    ("colour", "white_cell", "gray_cell"), [((0, 0, 0, 128), 126, 89), ((255, 255, 255, 65), 254, None)]
)
def test_blends_are_truncated(colour, white_cell, gray_cell):
    got = pixels(solid("RGBA", colour), KIMI_K3)
    assert got[0, 0, 0] == value(white_cell)
    if gray_cell is not None:
        assert got[0, 8, 0] == value(gray_cell)


def test_hidden_colour_bleeds_in_k25_and_not_in_k3():
    image = Image.new("RGBA", (56, 8), (*RED, 0))
    image.paste((*BLUE, 255), (28, 0, 56, 8))
    config = {"in_patch_limit": 1, "patch_limit_on_one_side": 2, "patch_size": 14}
    rgb = image.convert("RGB").resize((28, 4), Image.Resampling.BICUBIC)
    assert [rgb.getpixel((x, 0)) for x in range(12, 16)] == [RED, (238, 0, 17), (17, 0, 238), BLUE]
    k25 = pixels(image, type(KIMI_K25)(**config))
    assert [k25[0, x].tolist() for x in range(12, 16)] == [
        [value(v) for v in rgb.getpixel((x, 0))] for x in range(12, 16)
    ]
    k3 = pixels(
        image,
        type(KIMI_K25)(
            **config,
            transparent_bg_config=KIMI_K3.transparent_bg_config,
            transparent_bg_fill_stage="after_resize",
        ),
    )
    # Alpha 0, 17, 238, 255 of pure blue: red only from the board (180 in columns 8 to 15).
    for x, alpha in zip(range(12, 16), (0, 17, 238, 255), strict=True):
        a = np.float32(alpha) / np.float32(255)
        board = (np.float32(1) - a) * np.float32(180)
        want = [int(board), int(board), int(a * np.float32(255) + board)]
        assert k3[0, x].tolist() == [value(v) for v in want]


@pytest.mark.parametrize(
    ("make", "rgb"),
    [
        (lambda: solid("RGB", (1, 2, 3)), (1, 2, 3)),
        (lambda: solid("L", 200), (200, 200, 200)),
        (lambda: solid("LA", (200, 0)), (200, 200, 200)),
        (lambda: solid("CMYK", (0, 255, 255, 0)), RED),
        (lambda: solid("1", 1), (255, 255, 255)),
        (lambda: solid("I;16", 1000), (255, 255, 255)),
        (lambda: palette(0), (10, 20, 30)),
        (lambda: palette(bytes([0, 128])), (10, 20, 30)),
    ],
    ids=["RGB", "L", "LA", "CMYK", "1", "I;16", "P+tRNS", "P+tRNS table"],
)
def test_every_mode_becomes_rgb(make, rgb):
    want = np.broadcast_to([value(v) for v in rgb], (28, 28, 3))
    assert_bit_equal(pixels(make(), KIMI_K25), want, what="colour")


def palette(transparency) -> Image.Image:
    image = solid("P", 0)
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.info["transparency"] = transparency
    return image


def test_a_transparent_colour_of_an_rgb_image_is_ignored():
    image = solid("RGB", RED)
    image.info["transparency"] = RED
    assert_bit_equal(pixels(image, KIMI_K3), pixels(solid("RGB", RED), KIMI_K3), what="tRNS of RGB")


def test_padding_is_byte_0_on_the_right_and_below():
    got = pixels(Image.new("RGB", (29, 28), "white"), KIMI_K25)
    assert got.shape == (28, 56, 3)
    assert ((got[:, :29] == 1).all(), (got[:, 29:] == -1).all()) == (True, True)
    assert ((got == 1).sum(), (got == -1).sum()) == (2436, 2268)


def test_a_chessboard_does_not_reach_into_the_padding():
    got = pixels(Image.new("RGBA", (20, 20)), KIMI_K3)
    assert (got[20:] == -1).all()
    assert (got[:, 20:] == -1).all()
    assert (got[:20, :20] > 0).all()


def test_exif_orientation_is_ignored():
    image = Image.new("RGB", (56, 28))
    image.paste(RED, (0, 0, 28, 28))
    exif = Image.Exif()
    exif[274] = 6
    stream = io.BytesIO()
    image.save(stream, "PNG", exif=exif)
    batch = reference.preprocess([stream.getvalue(), image], KIMI_K25)
    assert batch.grid_thws.tolist() == [[1, 2, 4], [1, 2, 4]]
    assert_bit_equal(batch.split()[0], batch.split()[1], what="EXIF")


def test_of_an_animation_the_current_frame_counts():
    stream = io.BytesIO()
    solid("RGB", RED).save(stream, "GIF", save_all=True, append_images=[solid("RGB", (0, 255, 0))])
    animation = Image.open(stream)
    assert pixels(animation, KIMI_K25)[0, 0].tolist() == [1, -1, -1]
    animation.seek(1)
    assert pixels(animation, KIMI_K25)[0, 0].tolist() == [-1, 1, -1]


def test_one_chunk_is_one_row_of_grids():
    frames = [solid("RGB", (k, k, k)) for k in (0, 255, 51)]
    batch = reference.preprocess([{"type": "video_chunk", "video_chunk": frames}], KIMI_K25)
    assert batch.grid_thws.tolist() == [[3, 2, 2]]
    assert batch.num_tokens == (1,)
    assert [set(np.unique(x).tolist()) for x in np.split(batch.pixel_values, 3)] == [{-1.0}, {1.0}, {value(51)}]


def test_no_media_no_patches():
    batch = reference.preprocess([], KIMI_K25)
    assert_bit_equal(batch.pixel_values, np.zeros((0, 3, 14, 14), np.float32), what="patches")
    assert_bit_equal(batch.grid_thws, np.zeros((0, 3), np.int64), what="grids")
    assert (len(batch), batch.num_tokens) == (0, ())


def test_the_batch_can_be_split_without_a_copy():
    sizes = [(28, 28), (56, 84), (28, 56)]
    batch = reference.preprocess([Image.new("RGB", size) for size in sizes], KIMI_K25)
    parts = batch.split()
    assert [len(part) for part in parts] == [math.prod(grid) for grid in batch.grid_thws.tolist()] == [4, 24, 8]
    assert all(np.shares_memory(part, batch.pixel_values) for part in parts)


@pytest.mark.parametrize(
    ("media", "error", "message"),
    [
        (None, MediaError, r"medias\[1\]: a NoneType is not an image"),
        (b"no image", MediaError, r"medias\[1\]: cannot decode"),
        ({"type": "video_chunk", "video_chunk": []}, MediaError, r"medias\[1\]: .*at least one frame"),
        ({"type": "video_chunk", "video_chunk": [solid("L", 0)] * 5}, MediaError, r"medias\[1\]: .*at most 4 frames"),
        (
            {"type": "video_chunk", "video_chunk": [solid("L", 0), Image.new("L", (28, 56))]},
            MediaError,
            r"medias\[1\]: .*all of one size.*\(28, 28\), \(28, 56\)",
        ),
    ],
)
def test_errors_name_the_medium(media, error, message):
    with pytest.raises(error, match=message) as caught:
        reference.preprocess([solid("RGB", 0), media], KIMI_K25)
    assert caught.value.__cause__ is not None
