"""The transformers adapter, with transformers' and torch's own classes."""

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image
from transformers import BaseImageProcessor
from transformers.utils import TensorType

import kimi_jax_prep as kjp
from kimi_jax_prep import reference
from kimi_jax_prep.processor import KimiImageProcessor

K25, K3 = kjp.KIMI_K25, kjp.KIMI_K3


def picture(width: int = 40, height: int = 30, *, mode: str = "RGB", seed: int = 0) -> Image.Image:
    channels = len(mode)
    array = np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)
    return Image.fromarray(array)


PICTURES = [picture(), picture(100, 57, seed=1), picture(29, 28, mode="RGBA", seed=2)]


@pytest.mark.parametrize("config", [K25, K3], ids=["k25", "k3"])
def test_outputs_are_the_references(config):
    processor = KimiImageProcessor(media_proc_cfg=config)
    assert isinstance(processor, BaseImageProcessor)
    want = reference.preprocess(PICTURES, config)
    for got in (processor(PICTURES), processor.preprocess(PICTURES, return_tensors="np"), processor(iter(PICTURES))):
        assert list(got) == ["pixel_values", "grid_thws"]
        assert_bit_equal(got["pixel_values"], want.pixel_values, what="pixel_values")
        assert_bit_equal(got["grid_thws"], want.grid_thws, what="grid_thws")


@pytest.mark.parametrize("kind", ["np", "pt", TensorType.NUMPY, TensorType.PYTORCH, None], ids=str)
def test_numpy_and_torch_results_are_writable_and_the_callers_own(kind):
    if getattr(kind, "value", kind) == "pt":
        pytest.importorskip("torch", reason="torch is an extra")
    processor = KimiImageProcessor()
    want = reference.preprocess(PICTURES, K25)
    got = processor(PICTURES, return_tensors=kind)
    assert_bit_equal(np.asarray(got["pixel_values"]), want.pixel_values, what="pixel_values")
    assert_bit_equal(np.asarray(got["grid_thws"]), want.grid_thws, what="grid_thws")
    got["pixel_values"] += 1
    again = processor(PICTURES, return_tensors=kind)
    assert_bit_equal(np.asarray(again["pixel_values"]), want.pixel_values, what="the next result")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "uint8"])
def test_dtypes_in_torch(dtype):
    torch = pytest.importorskip("torch", reason="torch is an extra")
    got = KimiImageProcessor(dtype=dtype)(PICTURES, return_tensors="pt")["pixel_values"]
    assert got.dtype == getattr(torch, dtype)
    want = kjp.preprocess(PICTURES, config=K25, dtype=dtype).pixel_values
    bits = got.view(torch.int16).numpy().view(np.uint16) if got.element_size() == 2 else got.numpy()
    assert_bit_equal(bits, want.view(np.uint16) if want.itemsize == 2 else want, what=dtype)


@pytest.mark.parametrize("x64", [False, True])
def test_jax_results(x64):
    want = reference.preprocess(PICTURES, K25)
    with jax.enable_x64(x64):
        got = KimiImageProcessor()(PICTURES, return_tensors="jax")
    assert isinstance(got["pixel_values"], jax.Array)
    assert_bit_equal(got["pixel_values"], want.pixel_values, what="pixel_values")
    grids = want.grid_thws if x64 else want.grid_thws.astype(np.int32)
    assert_bit_equal(got["grid_thws"], grids, what="grid_thws")


@pytest.mark.parametrize("name", ["tf", "xyz", 3])
def test_unknown_return_tensors_list_the_valid_ones(name):
    with pytest.raises(ValueError, match=r"(?s)'np', 'pt', 'jax', None"):
        KimiImageProcessor()(PICTURES, return_tensors=name)


def test_without_torch_only_pt_fails_and_names_the_extra():
    code = """
import sys
sys.modules["torch"] = None
from PIL import Image
from kimi_jax_prep.processor import KimiImageProcessor
processor = KimiImageProcessor()
processor(Image.new("RGB", (28, 28)), return_tensors="np")
try:
    processor(Image.new("RGB", (28, 28)), return_tensors="pt")
except ImportError as err:
    print(err)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert "kimi-jax-prep[torch]" in done.stdout


def test_nothing_in_nothing_out():
    assert dict(KimiImageProcessor()([])) == {}


def test_one_medium_needs_no_list():
    want = reference.preprocess([PICTURES[0]], K25).pixel_values
    for one in (PICTURES[0], np.asarray(PICTURES[0]), {"type": "image", "image": PICTURES[0]}):
        assert_bit_equal(KimiImageProcessor()(one)["pixel_values"], want, what=type(one).__name__)


def test_a_bad_medium_is_named():
    with pytest.raises(kjp.MediaError, match=r"medias\[1\]"):
        KimiImageProcessor()([PICTURES[0], None])


@pytest.mark.parametrize("config", [K25, K3], ids=["k25", "k3"])
def test_counts_and_sizes_agree_with_the_pixels(config):
    processor = KimiImageProcessor(media_proc_cfg=config)
    frames = [picture(90, 50, seed=s) for s in range(3)]
    chunk = {"type": "video_chunk", "video_chunk": frames}
    for media in (*PICTURES, chunk):
        grid = processor(media)["grid_thws"][0]
        sizes = processor.get_resize_config(media)
        assert processor.media_tokens_calculator(media) == sizes["num_tokens"] == grid[1] * grid[2] // 4
        assert sizes["sampled_nframes"] == grid[0]
        assert (sizes["new_width"] + sizes["pad_width"]) == grid[2] * 14
        assert (sizes["new_height"] + sizes["pad_height"]) == grid[1] * 14


def test_counting_decodes_nothing(tmp_path):
    path = tmp_path / "cut.jpg"
    picture(800, 600).save(path)
    path.write_bytes(path.read_bytes()[:2000])  # the header is there, the pixels are not
    processor = KimiImageProcessor()
    assert processor.media_tokens_calculator(path) == kjp.plan_image(width=800, height=600, config=K25).num_tokens
    with pytest.raises(kjp.MediaError, match=r"medias\[0\].*truncated"):
        processor(path)


def test_prompts():
    processor = KimiImageProcessor()
    assert processor.num_frames_per_chunk == 4
    media = "<|media_content|><|media_pad|><|media_end|>"
    assert processor.make_chunk_prompt("00:00:02.100") == f"00:00:02.100<|media_begin|>video{media}"
    assert processor.make_image_prompt(640, 480) == f"<|media_begin|>image 640x480{media}"


CHECKPOINT = {
    "auto_map": {"AutoImageProcessor": "kimi_k25_vision_processing.KimiK25VisionProcessor"},
    "config_type": "media",
    "media_proc_cfg": K25.to_dict()["media_proc_cfg"] | {"config_type": "media_proc", "merge_kernel_size": [2, 2]},
}
TRANSFORMERS = {
    "image_processor_type": "Kimi_K25ImageProcessor",
    "max_patches": 16384,
    "size": {"max_height": 512, "max_width": 512},
    "patch_size": 14,
    "merge_size": 2,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("preprocessor_config.json", CHECKPOINT),
        ("preprocessor_config.json", CHECKPOINT["media_proc_cfg"]),
        ("preprocessor_config.json", TRANSFORMERS),
        ("processor_config.json", {"image_processor": TRANSFORMERS, "processor_class": "Kimi_K25Processor"}),
    ],
    ids=["nested", "flat", "transformers", "processor_config"],
)
def test_reading_and_writing_folders(tmp_path, name, content):
    (tmp_path / name).write_text(json.dumps(content))
    processor = KimiImageProcessor.from_pretrained(tmp_path, revision="main", trust_remote_code=True)
    want = reference.preprocess(PICTURES, K25)
    assert_bit_equal(processor(PICTURES)["pixel_values"], want.pixel_values, what="after reading")
    first, second = tmp_path / "first", tmp_path / "second"
    processor.save_pretrained(first)
    again = KimiImageProcessor.from_pretrained(str(first / "preprocessor_config.json"))
    again.save_pretrained(second)
    texts = [(folder / "preprocessor_config.json").read_bytes() for folder in (first, second)]
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["media_proc_cfg"]["in_patch_limit"] == 16384
    assert_bit_equal(again(PICTURES)["pixel_values"], want.pixel_values, what="after a round trip")


def test_unknown_keys_and_the_background_survive(tmp_path):
    KimiImageProcessor(media_proc_cfg=CHECKPOINT["media_proc_cfg"], auto_map=CHECKPOINT["auto_map"]).save_pretrained(
        tmp_path
    )
    written = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert written["auto_map"] == CHECKPOINT["auto_map"]
    assert written["media_proc_cfg"]["config_type"] == "media_proc"
    assert written["image_processor_type"] == "KimiImageProcessor"
    KimiImageProcessor(media_proc_cfg=K3, dtype="bfloat16").save_pretrained(tmp_path)
    again = KimiImageProcessor.from_pretrained(tmp_path)
    assert (again.config, again.dtype) == (K3, "bfloat16")


def test_folders_that_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"(?s)preprocessor_config\.json.*KIMI_K25"):
        KimiImageProcessor.from_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(kjp.ConfigError, match=r"preprocessor_config\.json is not JSON"):
        KimiImageProcessor.from_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"media_proc_cfg": {"patch_size": 14}}')
    with pytest.raises(kjp.ConfigError, match="`in_patch_limit` is missing"):
        KimiImageProcessor.from_pretrained(tmp_path)
    merge = CHECKPOINT | {"media_proc_cfg": CHECKPOINT["media_proc_cfg"] | {"merge_kernel_size": [2, 3]}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(merge))
    with pytest.raises(kjp.ConfigError, match=r"\[2, 3\]"):
        KimiImageProcessor.from_pretrained(tmp_path)


def test_overrides_hold_for_one_call():
    processor = KimiImageProcessor()
    large = picture(300, 200)
    before = processor(large)["grid_thws"]
    assert processor(large, in_patch_limit=64)["grid_thws"].tolist() == [[1, 8, 10]]
    assert_bit_equal(processor(large)["grid_thws"], before, what="the call after")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("value", [0, -1, True, "64", 1.5])
def test_overrides_are_checked(value):
    with pytest.raises(kjp.ConfigError, match=f"`in_patch_limit` is {value!r}"):
        KimiImageProcessor()(PICTURES, in_patch_limit=value)
    with pytest.raises(kjp.PlanError, match="512 patches"):
        KimiImageProcessor()(PICTURES, patch_limit_on_one_side=513)
    with pytest.raises(TypeError, match=r"'in_patch_limt'; did you mean 'in_patch_limit'"):
        KimiImageProcessor()(PICTURES, in_patch_limt=value)


@pytest.mark.parametrize("travel", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))], ids=["deepcopy", "pickle"])
def test_an_object_that_travels(travel):
    processor = KimiImageProcessor(media_proc_cfg=K3)
    unused = pickle.dumps(processor)
    want = processor(PICTURES)["pixel_values"]
    assert pickle.dumps(processor) == unused
    assert len(unused) < 100_000
    other = travel(processor)
    assert other.to_json_string() == processor.to_json_string()
    assert_bit_equal(other(PICTURES)["pixel_values"], want, what="after travelling")


def test_it_works_from_a_preset_with_no_network_and_no_files(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert KimiImageProcessor(media_proc_cfg=K25)(PICTURES[0])["grid_thws"].tolist() == [[1, 4, 4]]
    assert list(Path().iterdir()) == []
