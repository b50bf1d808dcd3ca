"""Pillow's bicubic, bit for bit: against the installed Pillow, and in both pass orders against plain NumPy."""

import jax
import numpy as np
import PIL
import plain
import pytest
from bits import assert_bit_equal
from PIL import Image

from kimi_jax_prep import PlanError, resize_bicubic
from kimi_jax_prep.tables.passes import PASS_ORDERS, installed_pass_order, vertical_first

MODES = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "vmap": lambda f: lambda x: jax.vmap(f)(x[None])[0],
    "jit of vmap": lambda f: lambda x: jax.jit(jax.vmap(f))(x[None])[0],
}
# (height, width) before and after: thin, up, down, mixed, one side only, none; the last four shrink upright
# pictures, where Pillow 13 turned its passes round.
SWEEP = [
    ((1, 1), (1, 1)),
    ((1, 1), (5, 7)),
    ((1, 97), (1, 13)),
    ((97, 1), (13, 1)),
    ((2, 50), (1, 120)),
    ((13, 17), (40, 61)),
    ((64, 48), (63, 47)),
    ((70, 100), (23, 33)),
    ((30, 90), (61, 31)),
    ((90, 30), (31, 61)),
    ((40, 60), (40, 25)),
    ((40, 60), (25, 60)),
    ((33, 44), (33, 44)),
    ((211, 307), (97, 101)),
    ((200, 40), (60, 39)),
    ((200, 40), (100, 20)),
    ((307, 64), (41, 48)),
    ((400, 9), (9, 9)),
]
sweep = pytest.mark.parametrize(("before", "after"), SWEEP, ids=lambda s: "x".join(map(str, s)))


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).integers(0, 256, shape, np.uint8)


def checkerboard(height: int, width: int) -> np.ndarray:
    board = (np.arange(height)[:, None] + np.arange(width)) % 2 * 255
    return np.repeat(board[..., None], 3, axis=2).astype(np.uint8)


def pillow(image: np.ndarray, *, height: int, width: int) -> np.ndarray:
    """Each channel by itself, as mode L: Pillow would premultiply RGBA."""
    size, method = (width, height), Image.Resampling.BICUBIC
    return np.stack([np.asarray(Image.fromarray(c).resize(size, method)) for c in np.moveaxis(image, 2, 0)], axis=2)


@sweep
@pytest.mark.parametrize("make", [lambda h, w: noise(h, w, 3), checkerboard], ids=["noise", "checkerboard"])
def test_like_the_installed_pillow(make, before, after):
    image, (height, width) = make(*before), after
    got = resize_bicubic(image, height=height, width=width)
    assert_bit_equal(got, pillow(image, height=height, width=width), what=f"{before} to {after}")


@sweep
@pytest.mark.parametrize("pass_order", PASS_ORDERS)
def test_both_pass_orders_like_plain_numpy(pass_order, before, after):
    image, (height, width) = noise(*before, 3), after
    got = resize_bicubic(image, height=height, width=width, pass_order=pass_order)
    want = plain.resize(image, height=height, width=width, pass_order=pass_order)
    assert_bit_equal(got, want, what=f"{pass_order} {before} to {after}")


def test_the_two_orders_differ_and_the_installed_pillow_has_one_of_them():
    image = noise(307, 64, 3)
    results = {o: np.asarray(resize_bicubic(image, height=41, width=48, pass_order=o)) for o in PASS_ORDERS}
    assert (results["horizontal-first"] != results["pillow-13"]).any()
    order = "pillow-13" if int(PIL.__version__.split(".")[0]) >= 13 else "horizontal-first"
    assert installed_pass_order() == order
    assert_bit_equal(pillow(image, height=41, width=48), results[order], what=order)


@pytest.mark.parametrize(
    ("before", "after", "first"),
    [
        ((100, 100), (50, 80), True),
        ((100, 100), (50, 75), False),
        ((100, 100), (50, 76), True),
        ((100, 100), (99, 100), True),
        ((100, 100), (100, 120), False),
        ((100, 100), (120, 130), False),
    ],
)
def test_when_pillow_13_runs_the_vertical_pass_first(before, after, first):
    assert vertical_first(size_in=before, size_out=after, pass_order="pillow-13") is first
    assert not vertical_first(size_in=before, size_out=after, pass_order="horizontal-first")


def test_recorded_numbers_of_square_noise():
    # sgl-project/sglang#33349: up to 173 levels off there. Square pictures are alike in all Pillows.
    image = np.random.default_rng(0).integers(0, 256, (512, 512, 3), np.uint8)
    got = np.asarray(resize_bicubic(image, height=252, width=252))
    assert int(got.astype(np.int64).sum()) == 24_267_574
    assert got[0, 0].tolist() == [167, 149, 178]
    assert got[-1, -1].tolist() == [136, 84, 130]


def test_a_fractional_ratio_of_a_large_picture():
    image = noise(700, 1000, 3)
    got = resize_bicubic(image, height=233, width=333)
    assert_bit_equal(got, pillow(image, height=233, width=333), what="1000x700 to 333x233")


def test_edge_rings():
    edge = np.full((4, 12, 3), 0x10, np.uint8)
    edge[:, 6:] = 0xF0
    row = np.asarray(resize_bicubic(edge, width=5, height=4))[0, :, 0]
    assert bytes(row).hex(" ") == "10 06 80 fa f0"  # dark and bright overshoot are real


@pytest.mark.parametrize("level", [0, 1, 127, 254, 255])
@pytest.mark.parametrize(("before", "after"), [((9, 100), (30, 7)), ((211, 13), (10, 29)), ((5, 5), (64, 64))])
def test_flat_stays_flat(level, before, after):
    flat = np.full((*before, 3), level, np.uint8)
    got = resize_bicubic(flat, height=after[0], width=after[1])
    assert_bit_equal(got, np.full((*after, 3), level, np.uint8), what=f"{level}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels_are_independent_in_every_mode(mode, channels):
    image = noise(37, 53, channels)
    got = MODES[mode](lambda x: resize_bicubic(x, height=20, width=61))(image)
    assert_bit_equal(got, pillow(image, height=20, width=61), what=f"{mode} {channels}")


def test_leading_axes_are_kept():
    frames = noise(2, 3, 20, 30, 3)
    got = np.asarray(resize_bicubic(frames, height=13, width=17))
    assert got.shape == (2, 3, 13, 17, 3)
    for i, j in np.ndindex(2, 3):
        assert_bit_equal(got[i, j], pillow(frames[i, j], height=13, width=17), what=f"{i, j}")


def test_inputs_are_unchanged():
    image = noise(20, 30, 3)
    before = image.copy()
    resize_bicubic(image, height=20, width=30)
    resize_bicubic(image, height=7, width=9)
    assert_bit_equal(image, before, what="input")


@pytest.mark.parametrize(
    ("frames", "options", "message"),
    [
        (np.zeros((4, 4, 3), np.float32), {}, "`frames` must be a uint8 array .*; got float32"),
        ([[0]], {}, "; got list"),
        (np.zeros((4, 4), np.uint8), {}, r"\(4, 4\)"),
        (np.zeros((3, 4, 5), np.uint8), {}, r"\(3, 4, 5\)"),
        (np.zeros((0, 4, 3), np.uint8), {}, r"no empty axis; got uint8 \(0, 4, 3\)"),
        (
            np.zeros((4, 4, 3), np.uint8),
            {"pass_order": "12"},
            "'12'; expected one of 'horizontal-first', 'pillow-13'. None is",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_frames_and_orders(frames, options, message):
    with pytest.raises(PlanError, match=message):
        resize_bicubic(frames, height=2, width=2, **options)


@pytest.mark.parametrize("value", [0, -1, True, 2.5, "2", None, float("nan")], ids=repr)
@pytest.mark.parametrize("name", ["height", "width"])
@pytest.mark.usefixtures("unchecked")
def test_bad_sizes(name, value):
    with pytest.raises(PlanError) as caught:
        resize_bicubic(np.zeros((4, 4, 3), np.uint8), **({"height": 2, "width": 2} | {name: value}))
    assert f"`{name}` is {value!r}; expected a positive whole number" in str(caught.value)


@pytest.mark.parametrize("side", [2**22 + 1, 2**31, 2**53, 10**400])
@pytest.mark.parametrize("name", ["height", "width"])
def test_sides_whose_taps_take_gigabytes_are_errors(name, side):
    frames = np.zeros((4, 4, 3), np.uint8)
    with pytest.raises(PlanError, match=rf"`{name}` is .*; expected at most 4194304 pixels"):
        resize_bicubic(frames, **({"height": 2, "width": 2} | {name: side}))
    with pytest.raises(PlanError, match="the result would have shape"):
        resize_bicubic(frames, height=2**22, width=2**22)
    with pytest.raises(
        PlanError, match=r"`frames` must have sides of at most 4194304 pixels; got uint8 \(4194305, 1, 1\)"
    ):
        resize_bicubic(np.zeros((2**22 + 1, 1, 1), np.uint8), height=2, width=2)


@pytest.mark.parametrize("height", [20, 300], ids=["one strip", "two strips"])
def test_vmap_keeps_the_kernels_apart(height):
    # There is a condition per kernel, see `ops.words.kernel`. If it depended on pixels, vmap would turn it into a
    # select, and XLA would fuse all kernels into one.
    def conditions(function, *shape):
        program = jax.jit(function).lower(jax.ShapeDtypeStruct(shape, np.uint8)).compile()
        return program.as_text().count(" conditional(")

    def resize(x):
        return resize_bicubic(x, height=height, width=61)

    alone = conditions(resize, 40, 53, 3)
    assert alone > 0
    assert conditions(jax.vmap(resize), 4, 40, 53, 3) == alone
