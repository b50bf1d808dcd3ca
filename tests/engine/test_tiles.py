"""The engine's resize: tiles of fixed shape against Pillow's `Image.resize`."""

import itertools
import tracemalloc

import jax
import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image
from plain import resize as plain_resize

import kimi_jax_prep as kjp
from kimi_jax_prep.engine import frames
from kimi_jax_prep.engine.buffers import Pool
from kimi_jax_prep.engine.runtime import runtime
from kimi_jax_prep.engine.tiles import (
    COLUMNS,
    MOST_TAPS,
    ROWS,
    STRIP_COLUMNS,
    TAPS,
    CompositeTile,
    all_passes,
    cut_axis,
    taps_class,
)
from kimi_jax_prep.host.pixels import Pixels
from kimi_jax_prep.tables.background import straight_table

POOL = Pool(1 << 28)
# (width, height) in and out: unit and thin sides, one axis unchanged, up and mixed, tall ones that Pillow 13 takes
# vertically first, one that spans several strips and tiles, one wider than a strip, and shrinkings that need the loop.
SIZES = [
    ((1, 1), (3, 2)),
    ((1, 997), (1, 300)),
    ((997, 1), (300, 1)),
    ((50, 60), (50, 30)),
    ((50, 60), (25, 60)),
    ((37, 53), (90, 20)),
    ((90, 620), (80, 200)),
    ((64, 900), (40, 390)),
    ((700, 1300), (613, 1139)),
    ((5000, 40), (3100, 25)),
    ((9000, 3), (600, 1)),
    ((1200, 900), (30, 20)),
]


def renderer() -> frames.FrameRenderer:
    here = runtime()
    assert here is not None
    return frames.FrameRenderer(kjp.KIMI_K25, here, POOL)


def plan_resize(size_in: tuple[int, int], size_out: tuple[int, int], *, channels: int) -> frames.Resize | None:
    return renderer().plan_resize(size_in, size_out, channels=channels)


def resized(image: Image.Image, size: tuple[int, int], *, channels: int) -> np.ndarray:
    resize = plan_resize(image.size, size, channels=channels)
    assert resize is not None
    here = runtime()
    assert here is not None
    programs = {s: here.programs.wait(s) for s in (resize.across, resize.down) if s is not None}
    out = np.zeros((size[1], size[0]), np.uint32)

    def write(top: int, left: int, pixels: np.ndarray) -> None:
        out[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels

    for task in renderer().tasks(Pixels(image), resize, programs, None, write):
        task()
    return out.view(np.uint8).reshape(*out.shape, 4)


def noise(size: tuple[int, int], mode: str, *, seed: int) -> Image.Image:
    rng = np.random.default_rng(seed)
    channels = len(Image.new(mode, (1, 1)).getbands())
    array = rng.integers(0, 256, (size[1], size[0], channels), np.uint8)
    return Image.frombytes(mode, size, array.tobytes())


@pytest.mark.parametrize(("size_in", "size_out"), SIZES, ids=str)
def test_equal_to_pillow(size_in, size_out):
    image = noise(size_in, "RGB", seed=1)
    want = np.asarray(image.resize(size_out, Image.Resampling.BICUBIC))
    assert_bit_equal(resized(image, size_out, channels=3)[..., :3], want, what=f"{size_in} to {size_out}")


@pytest.mark.parametrize(("size_in", "size_out"), SIZES[3:9] + SIZES[11:], ids=str)
def test_premultiplied_equal_to_pillow(size_in, size_out):
    image = noise(size_in, "RGBA", seed=2).convert("RGBa")
    want = np.frombuffer(image.resize(size_out, Image.Resampling.BICUBIC).tobytes(), np.uint8)
    assert_bit_equal(resized(image, size_out, channels=4).reshape(-1), want, what=f"{size_in} to {size_out}")


@pytest.mark.parametrize("order", ["horizontal-first", "pillow-13"])
def test_both_orders_of_the_passes(order, monkeypatch):
    monkeypatch.setattr(frames, "installed_pass_order", lambda: order)
    image = noise((90, 620), "RGB", seed=3)
    want = plain_resize(np.asarray(image), height=200, width=80, pass_order=order)
    assert_bit_equal(resized(image, (80, 200), channels=3)[..., :3], want, what=order)


@pytest.mark.parametrize("seed", range(20))
def test_sweep(seed):
    rng = np.random.default_rng(seed)
    size_in = tuple(int(np.exp(rng.uniform(0, np.log(900)))) for _ in range(2))
    size_out = tuple(int(np.exp(rng.uniform(0, np.log(600)))) for _ in range(2))
    checkers = np.indices((size_in[1], size_in[0])).sum(0) % 2 * np.uint8(255)
    for image in (
        noise(size_in, "RGB", seed=seed),
        Image.fromarray(np.repeat(checkers.astype(np.uint8)[..., None], 3, axis=2)),
        Image.new("RGB", size_in, (0, 137, 255)),
    ):
        if plan_resize(size_in, size_out, channels=3) is not None:
            want = np.asarray(image.resize(size_out, Image.Resampling.BICUBIC))
            assert_bit_equal(resized(image, size_out, channels=3)[..., :3], want, what=f"{size_in} to {size_out}")


def test_at_most_24_resize_programs():
    assert len({*all_passes(3), *all_passes(4), CompositeTile()}) == 23


@pytest.mark.parametrize(
    ("n_in", "n_out"), [(1, 7), (300, 299), (2048, 1795), (16384, 7168), (16384, 250), (40000, 800)]
)
@pytest.mark.parametrize("horizontal", [True, False])
def test_tiles_cover_an_axis_once_and_stay_inside(n_in, n_out, horizontal):
    axis = cut_axis(n_in, n_out, horizontal=horizontal, channels=3, device=jax.local_devices(backend="cpu")[0])
    assert axis is not None
    assert [i for t in axis.tiles for i in range(t.first, t.first + t.size)] == list(range(n_out))
    for tile in axis.tiles:
        assert 0 <= tile.origin <= tile.low < tile.high <= n_in
        assert tile.size <= (COLUMNS if horizontal else ROWS)
        assert tile.high - tile.origin <= (STRIP_COLUMNS if horizontal else ROWS)


def test_more_taps_than_any_program_are_left_to_pillow():
    assert taps_class(MOST_TAPS, channels=3) == MOST_TAPS
    assert taps_class(MOST_TAPS + 1, channels=3) == 0
    assert plan_resize((30000, 5), (100, 5), channels=3) is None


def test_taps_that_no_program_has_are_not_computed():
    tracemalloc.start()
    try:
        assert plan_resize((1, 8_000_000), (1, 7168), channels=3) is None
        assert tracemalloc.get_traced_memory()[1] < 1_000_000  # the taps themselves are 2 GB
    finally:
        tracemalloc.stop()


def test_classes_take_the_next_program_up():
    assert [taps_class(n, channels=3) for n in range(1, 18)] == [5] * 5 + [6, 7, 8, 10, 10, 12, 12] + [16] * 4 + [
        MOST_TAPS
    ]
    assert [taps_class(n, channels=4) for n in (5, 8, 9, 16, 17)] == [8, 8, 16, 16, MOST_TAPS]
    assert TAPS[4] == (8, 16)


def test_straight_table_is_pillows_division():
    pairs = np.array(list(itertools.product(range(256), repeat=2)), np.uint8)  # alpha, premultiplied value
    words = np.stack([pairs[:, 1], pairs[:, 1], pairs[:, 1], pairs[:, 0]], axis=-1)
    image = Image.frombytes("RGBa", (256, 256), words.tobytes())
    want = np.asarray(image.convert("RGBA"))[..., 0]
    assert_bit_equal(straight_table(premultiplied=True), want, what="RGBa to RGBA")
    assert_bit_equal(straight_table(premultiplied=False)[77], np.arange(256, dtype=np.uint8), what="identity")


@pytest.mark.parametrize("channels", [3, 4])
def test_long_thin_pictures_are_left_to_pillow(channels):
    # They fill few columns or rows of the tiles: what would be computed for nothing takes longer than Pillow.
    for size_in, size_out in (((100, 30_000), (23, 7168)), ((8_000, 30), (7168, 26)), ((65_616, 100), (7168, 10))):
        assert plan_resize(size_in, size_out, channels=channels) is not None
        assert renderer().worthwhile(size_in, size_out, channels=channels) is None
    for size_in, size_out in (((2048, 2048), (1795, 1795)), ((400, 16_000), (179, 7168)), ((60, 60), (60, 60))):
        assert renderer().worthwhile(size_in, size_out, channels=channels) is not None
