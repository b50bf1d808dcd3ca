"""Reading, checking and writing `media_proc_cfg`, in every dialect that is met in the field."""

import copy
import dataclasses
import json
import math
import pickle

import numpy as np
import pytest

from kimi_jax_prep import (
    KIMI_K3,
    KIMI_K25,
    KIMI_K26,
    KIMI_K27,
    ConfigError,
    MediaProcConfig,
    TransparentBgConfig,
)
from kimi_jax_prep.checks import shown
from kimi_jax_prep.config import as_config

# The files as they ship, with keys that this library does not know at both levels.
INNER_K25 = {
    "in_patch_limit": 16384,
    "patch_size": 14,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "merge_kernel_size": 2,
    "fixed_output_tokens": None,
    "patch_limit_on_one_side": 512,
    "in_patch_limit_each_frame": 4096,
    "in_patch_limit_video": None,
    "sample_fps": 2.0,
    "max_num_frames_each_video": None,
    "temporal_merge_kernel_size": 4,
    "timestamp_mode": "hh:mm:ss.fff",
    "config_type": "media_proc.processors.moonvit.MoonViTMediaProcessorConfig",
}
AUTO_MAP = {"AutoProcessor": "kimi_k25_processor.KimiK25Processor", "nested": [1, {"a": None}]}
K25 = {"auto_map": AUTO_MAP, "media_proc_cfg": INNER_K25}
BACKGROUND = {
    "pattern": "chessboard",
    "chessboard_square_size": 8,
    "chessboard_square_on_top_left": True,
    "chessboard_white_value": 255,
    "chessboard_gray_value": 180,
    "made_by": "hand",
}
INNER_K3 = {
    "in_patch_limit": 65536,
    "patch_size": 14,
    "merge_kernel_size": [2, 2],
    "patch_limit_on_one_side": 512,
    "in_patch_limit_each_frame": 16384,
    "sample_fps": 8.0,
    "transparent_bg_config": BACKGROUND,
    "transparent_bg_fill_stage": "after_resize",
    "config_type": "k3",
}
K3 = {"auto_map": AUTO_MAP, "media_proc_cfg": INNER_K3}
TRANSFORMERS = {
    "image_processor_type": "Kimi_K25ImageProcessor",
    "max_patches": 16384,
    "size": {"max_height": 512, "max_width": 512},
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 4,
    "fps": 2.0,
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "resample": 3,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
FLAT_K25 = {"auto_map": AUTO_MAP} | INNER_K25
FILES = {"K2.5": K25, "K3": K3, "flat": FLAT_K25, "transformers": TRANSFORMERS}
unchecked = pytest.mark.usefixtures("unchecked")
every_file = pytest.mark.parametrize("values", FILES.values(), ids=FILES)


def known(config: MediaProcConfig) -> MediaProcConfig:
    """The config without the keys that are only kept for the round trip."""
    background = config.transparent_bg_config
    if background is not None:
        background = dataclasses.replace(background, unknown_json="{}")
    return dataclasses.replace(config, unknown_json="{}", unknown_outer_json="{}", transparent_bg_config=background)


@pytest.mark.parametrize("name", FILES)
def test_files_mean_the_presets(name):
    preset = KIMI_K3 if name == "K3" else KIMI_K25
    assert known(MediaProcConfig.from_dict(FILES[name])) == preset


def test_presets_hold_the_shipped_values():
    assert KIMI_K25 == KIMI_K26 == KIMI_K27 != KIMI_K3
    expected = {k: v for k, v in INNER_K25.items() if k != "config_type"}
    assert KIMI_K25.to_dict() == {"media_proc_cfg": expected}
    shipped = {k: v for k, v in INNER_K3.items() if k not in ("config_type", "merge_kernel_size")}
    shipped["transparent_bg_config"] = {k: v for k, v in BACKGROUND.items() if k != "made_by"}
    assert shipped.items() <= KIMI_K3.to_dict()["media_proc_cfg"].items()


def test_background_defaults_are_the_checkpoints():
    config = MediaProcConfig.from_dict(INNER_K25 | {"transparent_bg_config": {}})
    assert config.transparent_bg_config == TransparentBgConfig(
        pattern="black",
        chessboard_square_size=16,
        chessboard_white_value=255,
        chessboard_gray_value=200,
        chessboard_square_on_top_left=True,
    )
    assert config.transparent_bg_fill_stage == "before_resize"


@every_file
def test_round_trip(values):
    before = copy.deepcopy(values)
    config = MediaProcConfig.from_dict(values)
    written = json.dumps(config.to_dict())
    again = MediaProcConfig.from_dict(json.loads(written))
    assert (again, hash(again)) == (config, hash(config))
    assert json.dumps(again.to_dict()) == written
    assert values == before


def test_unknown_keys_stay_in_their_places():
    written = MediaProcConfig.from_dict(K3).to_dict()
    assert written["auto_map"] == AUTO_MAP
    assert written["media_proc_cfg"]["config_type"] == "k3"
    assert written["media_proc_cfg"]["transparent_bg_config"] == BACKGROUND
    assert MediaProcConfig.from_dict(FLAT_K25).to_dict()["auto_map"] == AUTO_MAP
    assert MediaProcConfig.from_dict(TRANSFORMERS).to_dict()["do_resize"] is True


def test_unknown_keys_tell_configs_apart():
    assert MediaProcConfig.from_dict(K25) != KIMI_K25


@unchecked
def test_written_types_are_plain_json():
    values = {
        "in_patch_limit": np.int64(16384),
        "patch_limit_on_one_side": np.uint16(512),
        "in_patch_limit_each_frame": np.int32(4096),
        "sample_fps": np.float32(2),
        "image_mean": np.full(3, 0.5, np.float32),
        "image_std": (np.float64(0.5),) * 3,
        "transparent_bg_config": {"chessboard_gray_value": np.uint8(180)},
    }
    config = MediaProcConfig.from_dict(values)
    assert config == MediaProcConfig(**values)

    def types(value):
        if isinstance(value, dict):
            return {dict}.union(*map(types, value), *map(types, value.values()))
        return {list}.union(*map(types, value)) if isinstance(value, list) else {type(value)}

    assert types(config.to_dict()) == {dict, list, str, int, float, bool, type(None)}
    assert known(dataclasses.replace(config, transparent_bg_config=None)) == KIMI_K25


@pytest.mark.parametrize("side", [2, [2, 2], (2, 2), np.int64(2)], ids=repr)
def test_merge_kernel_is_read_in_every_form(side):
    config = MediaProcConfig.from_dict(INNER_K25 | {"merge_kernel_size": side})
    assert config == MediaProcConfig.from_dict(INNER_K25)
    assert type(config.merge_kernel_size) is int


POSITIVE_INTS = [
    "in_patch_limit",
    "patch_limit_on_one_side",
    "patch_size",
    "merge_kernel_size",
    "temporal_merge_kernel_size",
    "fixed_output_tokens",
    "in_patch_limit_each_frame",
    "in_patch_limit_video",
    "max_num_frames_each_video",
]
NOT_POSITIVE_INTS = [0, -1, True, "3", math.nan, 14.0]
BAD = [(key, value, "positive whole number") for key in POSITIVE_INTS for value in NOT_POSITIVE_INTS]
BAD += [(key, None, "positive whole number") for key in ("patch_size", "merge_kernel_size")]
BAD += [("temporal_merge_kernel_size", None, "positive whole number")]
BAD += [("merge_kernel_size", value, r"2, \[2, 2\] or \(2, 2\)") for value in ([2, 3], (2, 2, 2), [])]
BAD += [("sample_fps", value, "number above 0") for value in (0, -1.0)]
BAD += [("sample_fps", value, "finite number") for value in (True, "3", math.nan, math.inf, None, 10**400, [2.0])]
for key in ("image_mean", "image_std"):
    BAD += [(key, value, "three numbers, one for each of R, G and B") for value in (0.5, None, "abc", [0.5], [0.5] * 4)]
BAD += [("timestamp_mode", value, "'hh:mm:ss.fff', 'mm:ss.fff', 'mm:ss'") for value in ("ss", None, 3, True)]
BAD += [
    ("transparent_bg_fill_stage", value, "'before_resize', 'after_resize'.* ship 'after_resize'")
    for value in ("later", None, True)
]
BAD += [("transparent_bg_config", value, "JSON object or null") for value in ("chessboard", 8, True, [])]


@pytest.mark.parametrize(("key", "value", "valid"), BAD, ids=lambda v: repr(v)[:24])
def test_bad_values_are_named_shown_and_corrected(key, value, valid):
    with pytest.raises(ConfigError, match=rf"(?s)`{key}` is .*{valid}") as caught:
        MediaProcConfig.from_dict(INNER_K25 | {key: value})
    assert shown(value) in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "valid"),
    [("image_std", value, "number above 0") for value in (0, -0.5)]
    + [(key, v, "finite number") for key in ("image_mean", "image_std") for v in (math.nan, True, "3", None)],
)
def test_bad_channels_are_named(key, value, valid):
    with pytest.raises(ConfigError, match=rf"`{key}\[1\]` is {value!r}; expected a .*{valid}"):
        MediaProcConfig.from_dict(INNER_K25 | {key: [0.5, value, 0.5]})


@pytest.mark.parametrize(
    ("key", "value", "valid"),
    [("pattern", value, "'white', 'black', 'gray', 'chessboard'") for value in ("stripes", None, 3)]
    + [("chessboard_square_size", value, "positive whole number") for value in (*NOT_POSITIVE_INTS, None)]
    + [
        (key, value, "a byte, 0 to 255")
        for key in ("chessboard_white_value", "chessboard_gray_value")
        for value in (-1, 256, True, "3", math.nan, None, 1.0)
    ]
    + [("chessboard_square_on_top_left", value, "True or False") for value in (1, 0, None, "true")],
    ids=lambda v: repr(v)[:24],
)
def test_bad_background_values(key, value, valid):
    background = BACKGROUND | {key: value}
    with pytest.raises(ConfigError, match=rf"(?s)`transparent_bg_config\.{key}` is .*{valid}") as caught:
        MediaProcConfig.from_dict(INNER_K3 | {"transparent_bg_config": background})
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("key", ["fixed_output_tokens", "in_patch_limit_each_frame", "in_patch_limit_video"])
def test_none_is_kept_where_it_means_something(key):
    config = MediaProcConfig.from_dict(INNER_K25 | {key: None})
    assert getattr(config, key) is None
    assert config.to_dict()["media_proc_cfg"][key] is None


@pytest.mark.parametrize(
    ("key", "theirs"), [("in_patch_limit", "max_patches"), ("patch_limit_on_one_side", "size.max_height")]
)
@pytest.mark.parametrize("nest", [lambda d: d, lambda d: {"media_proc_cfg": d}], ids=["flat", "nested"])
@pytest.mark.parametrize("missing", [lambda d, k: {**d, k: None}, lambda d, k: {n: d[n] for n in d if n != k}])
def test_a_missing_limit_is_named_in_both_dialects(key, theirs, nest, missing):
    with pytest.raises(ConfigError, match=rf"`{key}` is missing .*`{theirs}`.*'patch_size'.*KIMI_K25 or KIMI_K3"):
        MediaProcConfig.from_dict(nest(missing(INNER_K25, key)))


def test_an_empty_file_names_the_first_missing_limit():
    with pytest.raises(ConfigError, match=r"`in_patch_limit` is missing.*no known key"):
        MediaProcConfig.from_dict({})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (K25 | {"in_patch_limit": 65536}, "`in_patch_limit` is 16384 in `media_proc_cfg` but 65536 beside it"),
        (K25 | {"max_patches": 65536}, "`in_patch_limit` is 16384 in `media_proc_cfg` but 65536 beside it"),
        (K25 | {"patch_size": True}, "`patch_size` is 14 in `media_proc_cfg` but True beside it"),
        (TRANSFORMERS | {"in_patch_limit": 4096}, "`in_patch_limit` is 4096 but `max_patches` is 16384"),
        (TRANSFORMERS | {"sample_fps": 8.0}, "`sample_fps` is 8.0 but `fps` is 2.0"),
        (TRANSFORMERS | {"size": {"max_height": 512, "max_width": 256}}, r"`size` is .*512.*256.* must be equal"),
        (TRANSFORMERS | {"size": {"max_height": 512}}, "`size` is .*must be equal"),
        (TRANSFORMERS | {"do_resize": False}, "`do_resize` is False; only True"),
        (TRANSFORMERS | {"resample": 2}, "`resample` is 2; only 3"),
        (TRANSFORMERS | {"rescale_factor": 1 / 127.5}, "`rescale_factor` is 0.00784.*; only 0.0039"),
        ({"media_proc_cfg": 3}, "`media_proc_cfg` is 3; expected a JSON object"),
        (INNER_K25 | {"odd": {1, 2}}, "unknown keys must hold JSON values"),
    ],
)
def test_contradictions(values, message):
    with pytest.raises(ConfigError, match=message):
        MediaProcConfig.from_dict(values)


@pytest.mark.parametrize("extra", [{"in_patch_limit": 16384}, {"max_patches": 16384}, {"image_mean": (0.5, 0.5, 0.5)}])
def test_saying_the_same_twice_is_no_contradiction(extra):
    assert MediaProcConfig.from_dict(K25 | extra) == MediaProcConfig.from_dict(K25)


@pytest.mark.parametrize("values", [[], "K2.5", None, 3])
@unchecked
def test_a_config_is_an_object(values):
    with pytest.raises(ConfigError, match=f"a config is a JSON object; got {type(values).__name__}"):
        MediaProcConfig.from_dict(values)


@every_file
def test_frozen_hashable_and_copied_whole(values):
    config = MediaProcConfig.from_dict(values)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.patch_size = 16
    for twin in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config), dataclasses.replace(config)):
        assert (twin, hash(twin)) == (config, hash(config))


@unchecked
def test_replace_checks_again():
    assert dataclasses.replace(KIMI_K25, in_patch_limit=64).in_patch_limit == 64
    for key, value in [("in_patch_limit", 0), ("patch_size", "14"), ("transparent_bg_config", 3)]:
        with pytest.raises(ConfigError, match=f"`{key}` is {value!r}"):
            dataclasses.replace(KIMI_K25, **{key: value})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("preprocessor_config.json", K3),
        ("processor_config.json", {"image_processor": K3, "video_processor": {"fps": 1.0}}),
    ],
)
def test_files_are_read_by_name_and_by_folder(tmp_path, name, values):
    file = tmp_path / name
    file.write_text(json.dumps(values), encoding="utf-8")
    for path in (file, tmp_path, str(file), str(tmp_path)):
        assert MediaProcConfig.from_json_file(path) == MediaProcConfig.from_dict(K3)


def test_preprocessor_config_goes_before_processor_config(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(K3))
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": K25}))
    assert MediaProcConfig.from_json_file(tmp_path) == MediaProcConfig.from_dict(K3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not JSON"),
        (b"", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b'{"in_patch_limit": ' + b"9" * 5000 + b"}", "is not JSON.*4300 digits"),
        (b"[" * 100_000, "is not JSON"),
        (b"{}", "`in_patch_limit` is missing"),
    ],
)
@unchecked
def test_a_bad_file_is_named(tmp_path, content, message):
    file = tmp_path / "preprocessor_config.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"(?s)preprocessor_config\.json.*{message}") as caught:
        MediaProcConfig.from_json_file(tmp_path)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("preprocessor_config.json", "[1]", "holds a list; expected a JSON object"),
        ("processor_config.json", '{"processor_class": "P"}', "has no key `image_processor`"),
    ],
)
def test_a_file_without_a_config_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=rf"{name} {message}"):
        MediaProcConfig.from_json_file(tmp_path)


@pytest.mark.parametrize("name", ["", "absent.json"])
def test_a_missing_file_stays_file_not_found(tmp_path, name):
    with pytest.raises(FileNotFoundError, match="absent.json" if name else "preprocessor_config.json"):
        MediaProcConfig.from_json_file(tmp_path / name)


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (KIMI_K3, KIMI_K3),
        ("k2.5", KIMI_K25),
        ("K2.7", KIMI_K25),
        ("K3", KIMI_K3),
        (K3, MediaProcConfig.from_dict(K3)),
        (KIMI_K3.to_dict()["media_proc_cfg"], KIMI_K3),
        ({"image_processor": K3, "processor_class": "P"}, MediaProcConfig.from_dict(K3)),
        ({"max_patches": 16384, "size": {"max_height": 512, "max_width": 512}}, KIMI_K25),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_a_config_is_taken_in_every_form(value, want):
    assert as_config(value) == want


@pytest.mark.parametrize("name", ["k4", "", "preprocessor_config.json", "kimi-k2.5"])
def test_an_unknown_preset_lists_the_presets(name):
    with pytest.raises(ConfigError, match=rf"`config` is '{name}'.*'k2.5', 'k2.6', 'k2.7', 'k3'.*from_json_file"):
        as_config(name)


@pytest.mark.parametrize("value", [None, 3, [K3], b"k3", MediaProcConfig])
def test_a_config_of_another_type(value):
    with pytest.raises(TypeError, match=r"`config` is a MediaProcConfig such as KIMI_K25, a mapping.*got "):
        as_config(value)
