"""Settings of `KimiImageProcessor` that are changed after construction: honoured or refused, never ignored."""

import copy
import json
import pickle
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image
from transformers import PreTrainedConfig

import kimi_jax_prep as kjp
from kimi_jax_prep import reference
from kimi_jax_prep.config import with_keys
from kimi_jax_prep.media.options import OPTIONS
from kimi_jax_prep.processor import KimiImageProcessor
from kimi_jax_prep.processor.keywords import ALIASES, CONFIG_KEYS, FIXED
from kimi_jax_prep.processor.settings import ConfigKey, Option, ProcessorSettings

K25, K3 = kjp.KIMI_K25, kjp.KIMI_K3
LARGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 300, 4), np.uint8))
# Another value of every setting.
CHANGES = {
    "in_patch_limit": 64,
    "patch_limit_on_one_side": 10,
    "patch_size": 7,
    "merge_kernel_size": 1,
    "fixed_output_tokens": 5,
    "in_patch_limit_each_frame": 64,
    "in_patch_limit_video": 64,
    "max_num_frames_each_video": 2,
    "sample_fps": 1.0,
    "temporal_merge_kernel_size": 2,
    "timestamp_mode": "mm:ss",
    "image_mean": (0.1, 0.2, 0.3),
    "image_std": (0.1, 0.2, 0.3),
    "transparent_bg_config": {"pattern": "white"},
    "transparent_bg_fill_stage": "after_resize",
    "allow_paths": True,
    "max_pixels": 100,
    "max_total_pixels": 1000,
    "max_frames": 3,
    "exif_transpose": True,
    "sixteen_bit": "scale",
    "formats": ("PNG", "JPEG"),
    "input_data_format": "channels_last",
    "progress": True,
}


def test_every_key_and_option_is_an_attribute():
    assert set(CONFIG_KEYS) <= CHANGES.keys()
    assert all(isinstance(vars(ProcessorSettings)[name], ConfigKey) for name in (*CONFIG_KEYS, *ALIASES))
    assert all(isinstance(vars(ProcessorSettings)[name], Option) for name in OPTIONS)


@pytest.mark.parametrize("name", CONFIG_KEYS)
def test_config_keys_are_attributes_that_hold_from_the_next_call_on(name):
    processor = KimiImageProcessor()
    processor(LARGE)
    setattr(processor, name, CHANGES[name])
    want = with_keys(K25, {name: CHANGES[name]})
    assert processor.config == want
    assert getattr(processor, name) == getattr(want, name)
    assert name not in vars(processor)
    assert_bit_equal(processor(LARGE)["pixel_values"], reference.preprocess([LARGE], want).pixel_values, what=name)


@pytest.mark.parametrize("alias", ALIASES)
def test_other_names_of_config_keys(alias):
    processor, key = KimiImageProcessor(), ALIASES[alias]
    setattr(processor, alias, CHANGES[key])
    assert getattr(processor, alias) == getattr(processor.config, key) == CHANGES[key]
    other = KimiImageProcessor()
    other.size = {"max_height": 10, "max_width": 10}
    assert other.config.patch_limit_on_one_side == other.size["max_width"] == 10


@pytest.mark.parametrize("name", sorted({*OPTIONS} & CHANGES.keys()))
def test_options_are_attributes(name):
    processor = KimiImageProcessor()
    setattr(processor, name, CHANGES[name])
    assert getattr(processor, name) == getattr(processor.options, name) == CHANGES[name]
    assert name not in vars(processor)
    assert processor.to_dict()[name] == CHANGES[name]


def test_dtype_names_and_config_hold_from_the_next_call_on():
    processor = KimiImageProcessor()
    processor.dtype = jnp.bfloat16
    assert processor.dtype == "bfloat16"
    assert processor(LARGE)["pixel_values"].dtype == jnp.bfloat16
    processor.names = "transformers"
    assert set(processor(LARGE)) == {"pixel_values", "image_grid_thw"}
    for other in (K3, "k3", K3.to_dict()):
        processor.config = K25
        processor.config = other
        assert processor.config == K3
        processor.config = K25
        processor.media_proc_cfg = other
        assert processor.config == K3
    processor.dtype = np.float32
    assert_bit_equal(processor(LARGE)["pixel_values"], reference.preprocess([LARGE], K3).pixel_values, what="K3")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("in_patch_limit", 0, kjp.ConfigError),
        ("in_patch_limit", "64", kjp.ConfigError),
        ("max_patches", -1, kjp.ConfigError),
        ("size", {"height": 3, "width": 3}, kjp.ConfigError),
        ("size", {"max_height": 3, "max_width": 4}, kjp.ConfigError),
        ("image_std", [0.5, 0.5, 0.0], kjp.ConfigError),
        ("dtype", "float64", kjp.PlanError),
        ("names", "hf", kjp.ConfigError),
        ("config", "k4", kjp.ConfigError),
        ("config", 3, TypeError),
        ("options", {"allow_paths": True}, TypeError),
        ("exif_transpose", 1, kjp.PlanError),
        ("do_resize", False, kjp.ConfigError),
        ("do_convert_rgb", False, kjp.ConfigError),
        ("resample", 2, kjp.ConfigError),
        ("rescale_factor", 1.0, kjp.ConfigError),
        ("device", "cuda", kjp.ConfigError),
        ("do_normalize", False, kjp.ConfigError),
        ("in_patch_limt", 64, AttributeError),
        ("exif_transposed", True, AttributeError),
        ("model_input_names", ["pixel_values"], AttributeError),
    ],
)
def test_impossible_values_are_refused_and_change_nothing(name, value, error):
    processor = KimiImageProcessor()
    before = pickle.dumps(processor)
    with pytest.raises(error, match=ALIASES.get(name, name).removesuffix("d")):
        setattr(processor, name, value)
    assert pickle.dumps(processor) == before


def test_steps_that_cannot_be_changed_say_what_is_done():
    processor = KimiImageProcessor()
    for name, values in FIXED.items():
        setattr(processor, name, values[0])
    assert processor.do_resize is KimiImageProcessor.do_resize is True
    assert processor.do_convert_rgb is processor.do_rescale is processor.do_normalize is True
    assert (processor.resample, processor.rescale_factor) == (3, 1 / 255)
    assert not vars(processor).keys() & FIXED.keys()
    assert KimiImageProcessor(dtype="uint8").do_normalize is False


def test_what_an_attribute_holds_cannot_be_changed_in_place():
    processor = KimiImageProcessor(K3)
    cfg = processor.media_proc_cfg
    for change in (
        lambda: cfg.__setitem__("in_patch_limit", 5),
        lambda: cfg.update(in_patch_limit=5),
        lambda: cfg.pop("in_patch_limit"),
        lambda: cfg.setdefault("other", 5),
        lambda: cfg["transparent_bg_config"].__setitem__("pattern", "white"),
        lambda: processor.size.__setitem__("max_height", 5),
    ):
        with pytest.raises(TypeError, match="cannot be changed; assign"):
            change()
    assert isinstance(processor.image_mean, tuple)
    assert processor.config == K3
    # A copy of it is the caller's own.
    for own in (dict(cfg), cfg.copy(), copy.copy(cfg), copy.deepcopy(cfg), pickle.loads(pickle.dumps(cfg)), cfg | {}):
        own["in_patch_limit"] = 5
        assert type(own) is dict
    assert json.loads(json.dumps(cfg)) == K3.to_dict()["media_proc_cfg"]


@pytest.mark.parametrize("value", ["k3", "K3", K3, K3.to_dict(), K3.to_dict()["media_proc_cfg"]], ids=type)
def test_a_config_in_every_form(value):
    assert KimiImageProcessor(value).config == KimiImageProcessor(config=value).config == K3
    assert KimiImageProcessor({"image_processor": K3.to_dict()}).config == K3
    with pytest.raises(TypeError, match="two names of one argument"):
        KimiImageProcessor(value, config=value)
    with pytest.raises(kjp.ConfigError, match=r"'k4'.*'k2\.5'"):
        KimiImageProcessor("k4")


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.dtype(jnp.bfloat16), "bfloat16"], ids=repr)
def test_dtypes_as_their_libraries_write_them(dtype, tmp_path):
    processor = KimiImageProcessor(dtype=dtype)
    assert processor.dtype == "bfloat16"
    processor.save_pretrained(tmp_path)
    assert KimiImageProcessor.from_pretrained(tmp_path).dtype == "bfloat16"
    assert KimiImageProcessor.from_pretrained(tmp_path, dtype=np.float16).dtype == "float16"


def test_both_names_of_the_media_on_both_calls():
    processor = KimiImageProcessor()
    want = processor(LARGE)["pixel_values"]
    for got in (
        processor(images=[LARGE]),
        processor(medias=[LARGE]),
        processor.preprocess(images=[LARGE]),
        processor.preprocess(medias=[LARGE], images=None),
        processor([LARGE], "np"),
    ):
        assert_bit_equal(got["pixel_values"], want, what="patches")
    with pytest.raises(TypeError, match="two names of one argument"):
        processor(medias=[LARGE], images=[LARGE])


def test_an_array_with_four_axes_is_a_list_of_images():
    frames = np.random.default_rng(1).integers(0, 256, (3, 40, 60, 3), np.uint8)
    for names in ("checkpoint", "transformers"):
        processor = KimiImageProcessor(names=names)
        want = processor(list(frames))["pixel_values"]
        for array in (frames, jnp.asarray(frames)):
            assert_bit_equal(processor(array)["pixel_values"], want, what=type(array).__name__)
    assert_bit_equal(kjp.preprocess(frames).pixel_values, want, what="as the engine")


def test_an_array_of_objects_and_a_series_are_lists_of_media():
    pictures = [LARGE, LARGE.resize((50, 60))]
    column = np.empty(2, object)
    column[:] = pictures
    want = KimiImageProcessor()(pictures)["pixel_values"]
    assert_bit_equal(KimiImageProcessor()(column)["pixel_values"], want, what="objects")
    pandas = pytest.importorskip("pandas", reason="a library that datasets brings")
    assert_bit_equal(KimiImageProcessor()(pandas.Series(pictures))["pixel_values"], want, what="Series")


def test_none_leaves_the_choice_to_the_processor():
    processor = KimiImageProcessor()
    want = processor(LARGE)["pixel_values"]
    nothing = dict.fromkeys(
        (
            "do_normalize",
            "do_rescale",
            "do_resize",
            "image_mean",
            "image_std",
            "size",
            "resample",
            "crop_size",
            "pad_size",
        )
    )
    assert_bit_equal(processor(LARGE, **nothing)["pixel_values"], want, what="None")
    bytes_ = KimiImageProcessor(dtype="uint8")
    assert bytes_(LARGE, do_normalize=None)["pixel_values"].dtype == np.uint8
    with pytest.raises(kjp.PlanError, match="'uint8', bytes that are not normalized"):
        bytes_(LARGE, do_rescale=True, do_normalize=True)


def test_a_call_may_repeat_what_the_processor_does_anyway():
    processor = KimiImageProcessor()
    want = processor(LARGE)["pixel_values"]
    same = {"image_mean": [0.5] * 3, "image_std": (0.5,) * 3, "patch_size": 14, "merge_size": 2}
    assert_bit_equal(processor(LARGE, **same)["pixel_values"], want, what="the same")
    for name, value in {"image_mean": [0.4] * 3, "patch_size": 7}.items():
        with pytest.raises(kjp.PlanError, match=f"`{name}` is .*a call cannot change it"):
            processor(LARGE, **{name: value})


def test_both_flags_make_a_processor_of_bytes():
    assert KimiImageProcessor(do_rescale=False, do_normalize=False).dtype == "uint8"
    assert KimiImageProcessor(do_rescale=True).dtype == "float32"
    for flags in ({"do_rescale": False}, {"do_rescale": True, "do_normalize": False}):
        with pytest.raises(kjp.ConfigError, match="one table does both"):
            KimiImageProcessor(**flags)
    with pytest.raises(kjp.ConfigError, match="one table does both"):
        KimiImageProcessor(dtype="bfloat16", do_rescale=False, do_normalize=False)


@pytest.mark.parametrize("names", ["checkpoint", "transformers"])
def test_a_keyword_replaces_what_a_file_says_of_the_dtype(tmp_path, names):
    KimiImageProcessor(dtype="uint8", names=names).save_pretrained(tmp_path)
    load = KimiImageProcessor.from_pretrained
    assert load(tmp_path).dtype == load(tmp_path, do_rescale=False, do_normalize=False).dtype == "uint8"
    assert load(tmp_path, dtype="bfloat16").dtype == "bfloat16"
    assert load(tmp_path, do_rescale=True, do_normalize=True).dtype == "float32"


class Noted(KimiImageProcessor):
    """A subclass with a parameter, and an attribute that is none."""

    def __init__(self, *args, note="none", **kwargs):
        super().__init__(*args, **kwargs)
        self.note = note
        self.counted = 0
        self._private = object


def test_a_subclass_keeps_its_attributes(tmp_path):
    processor = Noted("k3", note="mine", dtype="uint8")
    processor.counted = 7
    processor.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert (written["note"], written["counted"]) == ("mine", 7)
    assert "_private" not in written
    for again in (Noted.from_pretrained(tmp_path), Noted.from_dict(processor.to_dict()), copy.deepcopy(processor)):
        assert type(again) is Noted
        assert (again.note, again.counted, again.config, again.dtype) == ("mine", 7, K3, "uint8")
        assert again.to_dict() == processor.to_dict()
    assert Noted.from_pretrained(tmp_path, note="other").note == "other"
    # The base class keeps them too, for the next save.
    base = KimiImageProcessor.from_pretrained(tmp_path)
    assert (base.note, base.counted) == ("mine", 7)
    base.save_pretrained(tmp_path)
    assert Noted.from_pretrained(tmp_path).note == "mine"


def test_an_attribute_that_json_cannot_hold_is_named():
    processor = KimiImageProcessor()
    processor.model = object()
    with pytest.raises(kjp.ConfigError, match=r"attribute `model` is a object.*underscore"):
        processor.to_dict()


@pytest.mark.parametrize("config", [K25, K3, replace(K25, unknown_json='{"a": 1}', unknown_outer_json='{"b": 2}')])
def test_transformers_dialect_is_written_and_read(tmp_path, config):
    processor = KimiImageProcessor(config, names="transformers", exif_transpose=True)
    written = processor.to_dict()
    want = {
        "max_patches": config.in_patch_limit,
        "size": {"max_height": 512, "max_width": 512},
        "patch_size": 14,
        "merge_size": 2,
        "temporal_patch_size": 4,
        "do_resize": True,
        "do_convert_rgb": True,
        "do_rescale": True,
        "do_normalize": True,
        "resample": 3,
        "rescale_factor": 1 / 255,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "names": "transformers",
        "exif_transpose": True,
    }
    assert {name: written[name] for name in want} == want
    assert json.loads(json.dumps(written)) == written
    processor.save_pretrained(tmp_path)
    again = KimiImageProcessor.from_pretrained(tmp_path)
    assert again.config == config
    assert again.to_json_string() == processor.to_json_string()
    # Whoever edits the file is obeyed.
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(written | {"max_patches": 100}))
    assert KimiImageProcessor.from_pretrained(tmp_path).config.in_patch_limit == 100
    file.write_text(json.dumps(written | {"do_rescale": False}))
    with pytest.raises(kjp.ConfigError, match="one table does both"):
        KimiImageProcessor.from_pretrained(tmp_path)


def test_a_loader_takes_a_config_by_both_names_and_leaves_a_models_alone(tmp_path):
    KimiImageProcessor(K3).save_pretrained(tmp_path)
    smaller = replace(K3, in_patch_limit=100)
    for value in (smaller, smaller.to_dict()):
        assert KimiImageProcessor.from_pretrained(tmp_path, config=value).config == smaller
        assert KimiImageProcessor.from_pretrained(tmp_path, media_proc_cfg=value).config == smaller
    assert KimiImageProcessor.from_pretrained(tmp_path, config=PreTrainedConfig(), media_proc_cfg=None).config == K3
    with pytest.raises(TypeError, match="two names of one argument"):
        KimiImageProcessor.from_pretrained(tmp_path, config=smaller, media_proc_cfg=smaller)
    with pytest.raises(TypeError, match="`config` is a MediaProcConfig"):
        KimiImageProcessor.from_pretrained(tmp_path, media_proc_cfg=3)


def test_counts_refuse_what_a_call_refuses():
    processor = KimiImageProcessor()
    for kwargs in ({"patch_size": 7}, {"merge_size": 4}, {"do_resize": False}):
        with pytest.raises(kjp.PlanError, match=f"`{next(iter(kwargs))}` is"):
            processor.get_number_of_image_patches(100, 100, kwargs)
        with pytest.raises(kjp.PlanError, match=f"`{next(iter(kwargs))}` is"):
            processor(LARGE, **kwargs)
    same = {"patch_size": 14, "merge_size": 2, "do_resize": True, "max_patches": None}
    assert processor.get_number_of_image_patches(100, 100, same) == 64
