"""`pack_stream`: whole media in order, best fit within the lookahead, failures by their index among all media."""

import io

import jax
import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image

from kimi_jax_prep import KIMI_K3, KIMI_K25, MediaError, PlanError, pack_stream, preprocess


def image(patches: int, seed: int = 0) -> np.ndarray:
    """An image of a row of so many patches, a multiple of 4."""
    return np.random.default_rng((patches, seed)).integers(0, 256, (28, patches // 4 * 28, 3), np.uint8)


# Patches per medium; sums of 64 and less make packs of capacity 64.
SIZES = [32, 16, 24, 64, 8, 40, 8, 4, 60, 4, 56, 12]
MEDIA = [image(size, i) for i, size in enumerate(SIZES)]


def greedy(sizes: list[int], capacity: int, max_media: int, lookahead: int) -> list[list[int]]:
    """The rule as a plain loop over indices."""
    left, packs = list(range(len(sizes))), []
    while left:
        pack, free = [], capacity
        while left and len(pack) < max_media:
            window = left[: lookahead + 1]
            if sizes[window[0]] <= free:
                best = window[0]
            else:
                fitting = [i for i in window if sizes[i] <= free]
                if not fitting:
                    break
                best = sorted(fitting, key=lambda i: (-sizes[i], i))[0]
            left.remove(best)
            pack.append(best)
            free -= sizes[best]
        packs.append(pack)
    return packs


def sources(packed) -> list[int]:
    return [s for s in packed.sources.tolist() if s >= 0]


@pytest.mark.parametrize("lookahead", [0, 1, 3, 8])
@pytest.mark.parametrize("max_media", [None, 2])
def test_packs_follow_the_rule(lookahead, max_media):
    stream = pack_stream(iter(MEDIA), capacity=64, max_media=max_media, lookahead=lookahead, dtype="uint8")
    packs = list(stream)
    want = greedy(SIZES, 64, max_media or 16, lookahead)
    assert [sources(p) for p in packs] == want
    assert [int(p.num_patches) for p in packs] == [sum(SIZES[i] for i in pack) for pack in want]
    assert stream.num_packs == len(packs)
    assert stream.fill == sum(SIZES) / (64 * len(packs))
    assert stream.failures == ()


def test_lookahead_fills_packs_better():
    fills = [len(list(pack_stream(MEDIA, capacity=64, lookahead=n, dtype="uint8"))) for n in (0, 8)]
    assert fills[1] < fills[0]


@pytest.mark.parametrize("config", [KIMI_K25, KIMI_K3], ids=["K2.5", "K3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_each_pack_is_that_of_its_media(config, dtype):
    chunk = {"type": "video_chunk", "video_chunk": [MEDIA[1], MEDIA[1][::-1].copy(), MEDIA[1]]}
    media = [MEDIA[0], chunk, *MEDIA[1:]]
    for packed in pack_stream(media, config=config, capacity=64, max_media=5, dtype=dtype, lookahead=2):
        batch = preprocess([media[i] for i in sources(packed)], config=config, dtype=dtype)
        want = batch.pack(capacity=64, max_media=5)
        for name in packed.__dataclass_fields__:
            if name != "sources":
                assert_bit_equal(getattr(packed, name), getattr(want, name), what=name)


def test_every_pack_has_the_same_shapes():
    shapes = {
        tuple((x.shape, str(x.dtype)) for x in jax.tree.leaves(p)) for p in pack_stream(MEDIA, capacity=64, lookahead=3)
    }
    assert len(shapes) == 1


def test_media_are_read_lazily():
    read = []

    def reading():
        for i in range(100):
            read.append(i)
            yield image(64, i)

    stream = pack_stream(reading(), capacity=64, dtype="uint8")
    assert read == []
    next(stream)
    assert read == [0, 1]  # a pack is full when the next medium does not fit


def test_no_media_give_no_packs():
    stream = pack_stream([], capacity=64)
    assert list(stream) == []
    assert stream.fill == 0.0


def truncated(patches: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image(patches)).save(file, "PNG")
    return file.getvalue()[:-400]


def test_media_that_break_while_decoding_leave_their_space_empty():
    media = [MEDIA[0], truncated(16), MEDIA[2], MEDIA[3], truncated(64), truncated(64), MEDIA[4]]
    stream = pack_stream(media, capacity=64, dtype="uint8", on_error="skip")
    packs = list(stream)
    assert [sources(p) for p in packs] == [[0], [2], [3], [6]]
    assert [f.index for f in stream.failures] == [1, 4, 5]
    assert all(str(f.error).startswith(f"medias[{f.index}]: ") for f in stream.failures)
    assert stream.fill == (32 + 24 + 64 + 8) / 256
    for packed in packs:
        batch = preprocess([media[i] for i in sources(packed)], dtype="uint8")
        assert_bit_equal(packed.pixel_values, batch.pack(capacity=64).pixel_values, what=f"{sources(packed)}")
    with pytest.raises(MediaError, match=r"^medias\[1\]: "):
        list(pack_stream(media, capacity=64, dtype="uint8"))


def test_full_packs_come_before_an_error():
    stream = pack_stream([image(64), image(64), b"no image"], capacity=64, dtype="uint8")
    assert sources(next(stream)) == [0]
    with pytest.raises(MediaError, match=r"^medias\[2\]: "):
        next(stream)


@pytest.mark.parametrize("place", [0, 3, 11])
def test_errors_name_the_index_among_all_media(place):
    media = MEDIA[:]
    media.insert(place, image(68))
    with pytest.raises(PlanError, match=rf"medias\[{place}\]: it has 68 patches, more than `capacity` = 64"):
        list(pack_stream(media, capacity=64, dtype="uint8"))
    media[place] = b"no image"
    with pytest.raises(MediaError, match=rf"^medias\[{place}\]: "):
        list(pack_stream(media, capacity=64, dtype="uint8"))


def test_failures_are_skipped_with_their_index(tmp_path):
    media = [*MEDIA[:10], image(68), b"no image", *MEDIA[10:], tmp_path / "absent.png"]
    stream = pack_stream(media, capacity=64, dtype="uint8", on_error="skip")
    packed = [s for p in stream for s in sources(p)]
    assert packed == [*range(10), 12, 13]
    assert [f.index for f in stream.failures] == [10, 11, 14]
    kinds = [PlanError, MediaError, FileNotFoundError]
    for failure, kind in zip(stream.failures, kinds, strict=True):
        assert isinstance(failure.error, kind)
        assert f"medias[{failure.index}]" in str(failure.error)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 0}, "`capacity` is 0; expected a positive whole number"),
        ({"capacity": 66}, "`capacity` is 66; expected a multiple of 4"),
        ({"capacity": 64, "max_media": 0}, "`max_media` is 0; expected a positive whole number or None"),
        ({"capacity": 64, "lookahead": -1}, "`lookahead` is -1; expected a positive whole number"),
        ({"capacity": 64, "on_error": "ignore"}, "`on_error` is 'ignore'; expected one of 'raise', 'skip'"),
    ],
)
def test_bad_options_are_seen_before_any_medium(options, message):
    def reading():
        raise AssertionError("read")
        yield

    with pytest.raises(PlanError, match=message):
        pack_stream(reading(), **options)


def test_one_medium_is_no_list():
    with pytest.raises(TypeError, match="`medias` is an iterable of media; got one bytes"):
        pack_stream(b"abc", capacity=64)
