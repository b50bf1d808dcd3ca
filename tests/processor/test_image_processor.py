"""The transformers adapter, with transformers' and torch's own classes."""

import copy
import hashlib
import importlib.util
import io
import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image
from transformers import BaseImageProcessor, BatchFeature
from transformers.utils import TensorType

import kimi_jax_prep as kjp
from kimi_jax_prep import reference
from kimi_jax_prep.media.options import MediaOptions
from kimi_jax_prep.processor import KimiImageProcessor
from kimi_jax_prep.processor.keywords import OVERRIDES
from kimi_jax_prep.processor.tensors import converter

K25, K3 = kjp.KIMI_K25, kjp.KIMI_K3


def picture(width: int = 40, height: int = 30, *, mode: str = "RGB", seed: int = 0) -> Image.Image:
    channels = len(mode)
    array = np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)
    return Image.fromarray(array)


def run_python(code: str, *, stdin: bytes = b"", **environment: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=stdin,
        capture_output=True,
        check=False,
        timeout=300,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


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
    got["grid_thws"] += 1
    again = processor(PICTURES, return_tensors=kind)
    assert_bit_equal(np.asarray(again["pixel_values"]), want.pixel_values, what="the next result")
    assert_bit_equal(np.asarray(got["pixel_values"]), want.pixel_values + 1, what="the first result")
    assert_bit_equal(np.asarray(got["grid_thws"]), want.grid_thws + 1, what="the first grids")


@pytest.mark.parametrize("kind", ["np", "pt"])
def test_results_stay_when_others_are_dropped(kind):
    if kind == "pt":
        pytest.importorskip("torch", reason="torch is an extra")
    processor = KimiImageProcessor()
    kept = processor(PICTURES, return_tensors=kind)["pixel_values"]
    part = kept[3:5]
    want = np.asarray(part).copy()
    del kept  # the memory behind it may come back to the engine only when `part` is gone too
    for seed in range(4):
        processor(picture(100, 57, seed=seed), return_tensors=kind)
    assert_bit_equal(np.asarray(part), want, what="a view of a dropped result")


def test_numpy_results_are_contiguous():
    got = KimiImageProcessor()(PICTURES, return_tensors="np")
    assert all(array.flags.c_contiguous and array.flags.writeable for array in got.values())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "uint8"])
def test_dtypes_in_torch(dtype):
    torch = pytest.importorskip("torch", reason="torch is an extra")
    got = KimiImageProcessor(dtype=dtype)(PICTURES, return_tensors="pt")["pixel_values"]
    assert got.dtype == getattr(torch, dtype)
    assert got.is_contiguous()
    want = kjp.preprocess(PICTURES, config=K25, dtype=dtype).pixel_values
    bits = got.view(torch.int16).numpy().view(np.uint16) if got.element_size() == 2 else got.numpy()
    assert_bit_equal(bits, want.view(np.uint16) if want.itemsize == 2 else want, what=dtype)


def test_bfloat16_goes_to_torch_without_a_copy():
    torch = pytest.importorskip("torch", reason="torch is an extra")
    array = kjp.preprocess(PICTURES, config=K25, dtype="bfloat16").pixel_values
    tensor = converter("pt")(array)
    assert tensor.dtype == torch.bfloat16
    assert tensor.data_ptr() == array.ctypes.data


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "uint8"])
def test_dtypes_in_jax(dtype):
    want = kjp.preprocess(PICTURES, config=K25, dtype=dtype).pixel_values
    assert_bit_equal(KimiImageProcessor(dtype=dtype)(PICTURES, return_tensors="jax")["pixel_values"], want, what=dtype)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("dtype", ["float64", "xyz", np.float64, np.dtype(">f4"), 3], ids=repr)
def test_unknown_dtypes_list_the_valid_ones(dtype):
    with pytest.raises(kjp.PlanError, match="'float32', 'bfloat16', 'float16', 'uint8'"):
        KimiImageProcessor(dtype=dtype)


@pytest.mark.parametrize("x64", [False, True])
def test_jax_results(x64):
    want = reference.preprocess(PICTURES, K25)
    with jax.enable_x64(x64):
        got = KimiImageProcessor()(PICTURES, return_tensors="jax")
    assert isinstance(got["pixel_values"], jax.Array)
    assert_bit_equal(got["pixel_values"], want.pixel_values, what="pixel_values")
    grids = want.grid_thws if x64 else want.grid_thws.astype(np.int32)
    assert_bit_equal(got["grid_thws"], grids, what="grid_thws")


def test_jax_results_inside_a_trace_are_arrays_and_no_tracers():
    want, got = reference.preprocess(PICTURES, K25), []

    @jax.jit
    def traced(x):
        got.append(KimiImageProcessor()(PICTURES, return_tensors="jax"))
        return x

    traced(1.0)
    assert not isinstance(got[0]["pixel_values"], jax.core.Tracer)
    assert_bit_equal(got[0]["pixel_values"], want.pixel_values, what="pixel_values")


@pytest.mark.parametrize("guard", ["disallow", "disallow_explicit"])
def test_jax_results_under_a_transfer_guard(guard):
    with jax.transfer_guard(guard):
        got = KimiImageProcessor()(PICTURES, return_tensors="jax")
    assert_bit_equal(got["pixel_values"], reference.preprocess(PICTURES, K25).pixel_values, what="pixel_values")


def test_jax_results_when_x64_is_on_from_the_start():
    code = """
import warnings
from PIL import Image
from kimi_jax_prep.processor import KimiImageProcessor
processor = KimiImageProcessor()
warnings.simplefilter("error")
got = processor(Image.new("RGB", (28, 28)), return_tensors="jax")
print(got["pixel_values"].dtype, got["grid_thws"].dtype)
"""
    assert run_python(code, JAX_ENABLE_X64="1").split() == ["float32", "int64"]


def test_in_a_fork_jax_arrays_are_refused_and_numpy_answers():
    code = """
import os, warnings
import jax, numpy as np
from PIL import Image
from kimi_jax_prep import reference
from kimi_jax_prep.processor import KimiImageProcessor
processor, image = KimiImageProcessor(), Image.new("RGB", (50, 30), (1, 2, 3))
jax.numpy.zeros(3).block_until_ready()
warnings.simplefilter("ignore")  # JAX and this library both warn of forks
if os.fork() == 0:
    want = reference.preprocess([image], processor.config).pixel_values
    same = np.array_equal(processor(image, return_tensors="np")["pixel_values"], want)
    try:
        processor(image, return_tensors="jax")
    except RuntimeError as err:
        print(same, err, flush=True)
    os._exit(0)
os.wait()
"""
    out = run_python(code)
    assert out.startswith("True this process was forked after JAX had started")
    assert "ask for 'np'" in out


@pytest.mark.parametrize("name", ["tf", "xyz", 3, ["pt"], TensorType.MLX, np.array(["np", "pt"])], ids=str)
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
    assert "kimi-jax-prep[torch]" in run_python(code)


@pytest.mark.parametrize("kind", ["np", "jax", None])
@pytest.mark.parametrize("nothing", [[], (), iter(())], ids=["list", "tuple", "iterator"])
def test_nothing_in_nothing_out(nothing, kind):
    got = KimiImageProcessor().preprocess(nothing, return_tensors=kind)
    assert isinstance(got, BatchFeature)
    assert dict(got) == {}


def test_one_medium_needs_no_list():
    want = reference.preprocess([PICTURES[0]], K25).pixel_values
    for one in (PICTURES[0], np.asarray(PICTURES[0]), {"type": "image", "image": PICTURES[0]}):
        assert_bit_equal(KimiImageProcessor()(one)["pixel_values"], want, what=type(one).__name__)


def test_any_iterable_of_media():
    want = reference.preprocess(PICTURES, K25).pixel_values
    for medias in (PICTURES, tuple(PICTURES), iter(PICTURES), (p for p in PICTURES)):
        assert_bit_equal(KimiImageProcessor().preprocess(medias)["pixel_values"], want, what=type(medias).__name__)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_chunks_and_pictures_together_leave_the_dicts_alone(dtype):
    frames = [picture(90, 50, seed=s) for s in range(3)]
    chunk = {"type": "video_chunk", "video_chunk": frames}
    medias = [PICTURES[0], chunk, {"type": "image", "image": PICTURES[1]}]
    got = KimiImageProcessor(dtype=dtype)(medias)
    assert got["grid_thws"].tolist() == [[1, 4, 4], [3, 4, 8], [1, 6, 8]]
    if dtype == "float32":
        assert_bit_equal(got["pixel_values"], reference.preprocess(medias, K25).pixel_values, what="mixed")
    assert medias[1] is chunk
    assert chunk == {"type": "video_chunk", "video_chunk": frames}


@pytest.mark.parametrize(
    ("medias", "message"),
    [
        ([PICTURES[0], None], r"^medias\[1\]: got NoneType"),
        (None, r"^medias\[0\]: got NoneType"),
        ([[PICTURES[0]]], r"^medias\[0\]: got a list; all media come in one flat list"),
        ([PICTURES[0], (PICTURES[1],)], r"^medias\[1\]: got a tuple; all media come in one flat list"),
        ([[], [PICTURES[0]]], r"^medias\[0\]: got a list"),
        ("picture.png", r"^medias\[0\]: .*pathlib\.Path"),
        (io.BytesIO(b"a\nb"), r"^medias\[0\]: this is not an image"),
        ([np.zeros((2, 30, 40, 3), np.uint8)], r"^medias\[0\]: .*\(2, 30, 40, 3\)"),
        ({"type": "audio"}, r"^medias\[0\]: unknown medium type 'audio'"),
    ],
    ids=["none", "bare none", "nested", "nested tuple", "empty nested", "string", "open file", "4 axes", "audio"],
)
def test_a_bad_medium_is_named_and_the_next_call_works(medias, message):
    processor = KimiImageProcessor()
    with pytest.raises(kjp.MediaError, match=message):
        processor(medias)
    assert processor(PICTURES[0])["grid_thws"].tolist() == [[1, 4, 4]]


def test_a_missing_file_stays_a_file_not_found_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"medias\[1\]"):
        KimiImageProcessor()([PICTURES[0], tmp_path / "missing.png"])


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


def test_resize_config_has_the_checkpoints_keys_and_plain_numbers():
    # 4000x3000 under K2.5, from trials.md.
    sizes = KimiImageProcessor().get_resize_config({"type": "image", "image": Image.new("L", (4000, 3000))})
    assert sizes == {
        "num_tokens": 4200,
        "new_width": 2073,
        "new_height": 1554,
        "pad_width": 27,
        "pad_height": 14,
        "sampled_nframes": 1,
    }
    assert {type(v) for v in sizes.values()} == {int}


def test_fixed_output_tokens_change_the_count_only():
    config = replace(K25, fixed_output_tokens=7)
    processor = KimiImageProcessor(media_proc_cfg=config)
    assert processor.media_tokens_calculator(PICTURES[0]) == 7
    want = reference.preprocess(PICTURES, K25).pixel_values
    assert_bit_equal(processor(PICTURES)["pixel_values"], want, what="pixels")


def test_counting_decodes_nothing(tmp_path):
    path = tmp_path / "cut.jpg"
    picture(800, 600).save(path)
    path.write_bytes(path.read_bytes()[:2000])  # the header is there, the pixels are not
    processor = KimiImageProcessor()
    plan = kjp.plan_image(width=800, height=600, config=K25)
    assert processor.media_tokens_calculator(path) == plan.num_tokens
    assert processor.media_tokens_calculator({"type": "image", "image": path.read_bytes()}) == plan.num_tokens
    chunk = {"type": "video_chunk", "video_chunk": [path, path]}
    assert processor.get_resize_config(chunk)["sampled_nframes"] == 2
    with pytest.raises(kjp.MediaError, match=r"medias\[0\].*truncated"):
        processor(path)


def test_prompts():
    processor = KimiImageProcessor()
    assert processor.num_frames_per_chunk == 4
    media = "<|media_content|><|media_pad|><|media_end|>"
    assert processor.make_chunk_prompt("00:00:02.100") == f"00:00:02.100<|media_begin|>video{media}"
    assert processor.make_image_prompt(640, 480) == f"<|media_begin|>image 640x480{media}"


def test_media_proc_cfg_reads_as_the_checkpoints_dict():
    # How SGLang reads it.
    cfg = KimiImageProcessor(media_proc_cfg=K3).media_proc_cfg
    assert (cfg["patch_size"], cfg["merge_kernel_size"], cfg["in_patch_limit"]) == (14, 2, 65536)
    assert cfg.get("fixed_output_tokens") is None
    assert cfg["transparent_bg_config"]["pattern"] == "chessboard"


def test_a_config_may_be_a_dict_or_the_object_and_stays_the_callers():
    given = K3.to_dict()["media_proc_cfg"] | {"merge_kernel_size": [2, 2]}
    before = copy.deepcopy(given)
    processor = KimiImageProcessor(given)
    assert processor.config == KimiImageProcessor(media_proc_cfg=K3).config == K3
    assert given == before
    given["in_patch_limit"] = 1
    processor.to_dict()["media_proc_cfg"]["transparent_bg_config"]["pattern"] = "white"
    assert processor.config == K3
    assert KimiImageProcessor().config == K25


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"in_patch_limit": 0}, "`in_patch_limit` is 0"),
        ({"in_patch_limit": True}, "`in_patch_limit` is True"),
        ({"in_patch_limit": "16384"}, "`in_patch_limit` is '16384'"),
        ({"merge_kernel_size": [2, 3]}, r"`merge_kernel_size` is \[2, 3\]"),
        ({"image_std": [0.5, 0.5, float("nan")]}, "nan"),
        ({"transparent_bg_fill_stage": "later"}, "'later'.*'before_resize'.*'after_resize'"),
    ],
    ids=str,
)
def test_bad_configs_name_key_and_value(changes, message):
    with pytest.raises(kjp.ConfigError, match=message):
        KimiImageProcessor(media_proc_cfg=K25.to_dict()["media_proc_cfg"] | changes)


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
    assert json.loads((tmp_path / "preprocessor_config.json").read_text())["dtype"] == "bfloat16"
    assert "dtype" not in KimiImageProcessor(media_proc_cfg=K3).to_dict()
    clear = picture(60, 40, mode="RGBA")
    want = reference.preprocess([clear], K3).pixel_values
    processor = KimiImageProcessor.from_pretrained(tmp_path, dtype="float32")
    assert_bit_equal(processor(clear)["pixel_values"], want, what="on K3's background")


@pytest.mark.parametrize("config", [K25, K3], ids=["k25", "k3"])
def test_what_is_written_is_json_of_plain_types_in_one_order(tmp_path, config):
    processor = KimiImageProcessor(media_proc_cfg=config)
    written = Path(processor.save_pretrained(tmp_path)[0])
    assert written == tmp_path / "preprocessor_config.json"
    assert json.loads(processor.to_json_string()) == json.loads(written.read_text()) == processor.to_dict()
    processor(PICTURES)
    processor.save_pretrained(tmp_path)
    assert written.read_text() == processor.to_json_string()
    assert KimiImageProcessor.from_dict(processor.to_dict()).to_json_string() == processor.to_json_string()
    assert KimiImageProcessor.from_json_file(written).to_json_string() == processor.to_json_string()


def test_a_folder_that_holds_both_files_means_the_checkpoints(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(K3.to_dict()))
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": TRANSFORMERS}))
    assert KimiImageProcessor.from_pretrained(tmp_path).config == K3


def test_subfolders_and_single_files(tmp_path):
    KimiImageProcessor(media_proc_cfg=K25).save_pretrained(tmp_path)
    KimiImageProcessor(media_proc_cfg=K3).save_pretrained(tmp_path / "three")
    other_name = tmp_path / "k3.json"
    other_name.write_text(json.dumps(K3.to_dict()))
    assert KimiImageProcessor.from_pretrained(tmp_path).config == K25
    assert KimiImageProcessor.from_pretrained(tmp_path, subfolder="three").config == K3
    assert KimiImageProcessor.from_pretrained(other_name).config == K3


def test_keywords_on_top_of_a_file(tmp_path):
    KimiImageProcessor(media_proc_cfg=K25, dtype="uint8").save_pretrained(tmp_path)
    processor = KimiImageProcessor.from_pretrained(tmp_path, dtype="float16", in_patch_limit=64)
    assert processor.dtype == "float16"
    assert processor.config == replace(K25, in_patch_limit=64)
    smaller = replace(K25, in_patch_limit=100)
    assert KimiImageProcessor.from_pretrained(tmp_path, media_proc_cfg=smaller).config == smaller
    assert KimiImageProcessor.from_pretrained(tmp_path, max_patches=100).config == smaller
    size = {"max_height": 8, "max_width": 8}
    assert KimiImageProcessor.from_pretrained(tmp_path, size=size).config == replace(K25, patch_limit_on_one_side=8)
    with pytest.raises(kjp.ConfigError, match="`in_patch_limit` is -1"):
        KimiImageProcessor.from_pretrained(tmp_path, in_patch_limit=-1)
    with pytest.raises(TypeError, match="'in_patch_limt'; did you mean 'in_patch_limit'"):
        KimiImageProcessor.from_pretrained(tmp_path, in_patch_limt=64)


@pytest.mark.parametrize(("folder", "given"), [(K3, K25), (K25, K3)], ids=["k3 as k2.5", "k2.5 as k3"])
def test_a_folder_of_one_model_is_not_read_as_the_other(tmp_path, folder, given):
    KimiImageProcessor(media_proc_cfg=folder).save_pretrained(tmp_path)
    for config in (given, given.to_dict()["media_proc_cfg"]):
        with pytest.raises(kjp.ConfigError, match=r"folder of K.* is K.*leave `media_proc_cfg` out, or load the other"):
            KimiImageProcessor.from_pretrained(tmp_path, media_proc_cfg=config)
    # A background may be switched off by its own name.
    assert KimiImageProcessor.from_pretrained(tmp_path, transparent_bg_config=None).config.transparent_bg_config is None


def test_loaders_keywords_are_ignored_and_not_written(tmp_path):
    KimiImageProcessor().save_pretrained(tmp_path)
    loaders = {"revision": "main", "trust_remote_code": True, "use_fast": True, "local_files_only": True}
    processor = KimiImageProcessor.from_pretrained(tmp_path, cache_dir=None, _from_auto=True, **loaders)
    assert processor.to_json_string() == KimiImageProcessor().to_json_string()
    processor, unused = KimiImageProcessor.from_dict(
        processor.to_dict(), use_fast=True, in_patch_limit=64, return_unused_kwargs=True
    )
    assert (processor.config.in_patch_limit, unused) == (64, {"use_fast": True})


def test_a_repository_in_the_hubs_cache(tmp_path):
    # The layout that huggingface_hub keeps; offline, so that nothing else can be read.
    repository = tmp_path / "models--some--kimi"
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    (snapshot / "preprocessor_config.json").write_text(json.dumps(K3.to_dict()))
    code = """
from kimi_jax_prep import KIMI_K3
from kimi_jax_prep.processor import KimiImageProcessor
processor = KimiImageProcessor.from_pretrained("some/kimi", revision="main", trust_remote_code=True)
print(processor.config == KIMI_K3)
"""
    assert run_python(code, HF_HUB_OFFLINE="1", HF_HUB_CACHE=str(tmp_path)).strip() == "True"


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
    with pytest.raises(kjp.ConfigError, match=r"preprocessor_config\.json: .*\[2, 3\]"):
        KimiImageProcessor.from_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(CHECKPOINT | {"dtype": "float8"}))
    with pytest.raises(kjp.ConfigError, match=r"preprocessor_config\.json: `dtype` is 'float8'"):
        KimiImageProcessor.from_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("[]")
    with pytest.raises(kjp.ConfigError, match=r"preprocessor_config\.json holds a list"):
        KimiImageProcessor.from_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_bytes(b"\xff\xfe")
    with pytest.raises(kjp.ConfigError, match=r"preprocessor_config\.json is not JSON"):
        KimiImageProcessor.from_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    (tmp_path / "processor_config.json").write_text('{"processor_class": "Kimi_K25Processor"}')
    with pytest.raises(kjp.ConfigError, match=r"processor_config\.json has no key `image_processor`"):
        KimiImageProcessor.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["./missing", "/missing/folder", "a/b/c", "missing.json", "missing/", Path("missing")])
def test_a_path_that_is_not_there_never_goes_to_the_hub(monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)

    def refuse(*args, **kwargs):
        raise AssertionError(f"asked the hub: {args} {kwargs}")

    monkeypatch.setattr(BaseImageProcessor, "get_image_processor_dict", refuse)
    monkeypatch.setattr("transformers.image_processing_base.resolve_revision", refuse)
    with pytest.raises(FileNotFoundError, match=r"there is no folder or file '.*(missing|a/b/c)"):
        KimiImageProcessor.from_pretrained(name)


@pytest.mark.parametrize(
    ("name", "value", "grid"),
    [
        ("in_patch_limit", 64, [[1, 8, 10]]),
        ("patch_limit_on_one_side", 10, [[1, 8, 10]]),
        ("patch_limit_on_one_side", 512, [[1, 16, 22]]),
        ("fixed_output_tokens", 5, [[1, 16, 22]]),
        ("in_patch_limit_each_frame", 64, [[1, 16, 22]]),
        ("in_patch_limit_video", 64, [[1, 16, 22]]),
    ],
    ids=str,
)
def test_overrides_hold_for_one_call(name, value, grid):
    processor = KimiImageProcessor()
    large = picture(300, 200)
    before, text = processor(large), processor.to_json_string()
    got = processor(large, **{name: value})
    assert got["grid_thws"].tolist() == grid
    want = reference.preprocess([large], replace(K25, **{name: value}))
    assert_bit_equal(got["pixel_values"], want.pixel_values, what=name)
    assert_bit_equal(processor(large)["pixel_values"], before["pixel_values"], what="the call after")
    assert processor.to_json_string() == text


@pytest.mark.parametrize("name", ["in_patch_limit_each_frame", "in_patch_limit_video"])
def test_overrides_of_a_frames_budget(name):
    chunk = {"type": "video_chunk", "video_chunk": [picture(300, 200, seed=s) for s in range(2)]}
    got = KimiImageProcessor()(chunk, **{name: 64})
    want = reference.preprocess([chunk], replace(K25, **{name: 64}))
    assert_bit_equal(got["pixel_values"], want.pixel_values, what=name)
    assert got["grid_thws"].tolist() != KimiImageProcessor()(chunk)["grid_thws"].tolist()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", OVERRIDES)
@pytest.mark.parametrize("value", [0, -1, True, "64", 1.5, float("nan")])
def test_overrides_are_checked(name, value):
    with pytest.raises(kjp.ConfigError, match=f"`{name}` is {value!r}"):
        KimiImageProcessor()(PICTURES, **{name: value})


def test_overrides_keep_within_the_models_positions():
    with pytest.raises(kjp.PlanError, match="is 513; the model's positions end at 512 patches"):
        KimiImageProcessor()(PICTURES, patch_limit_on_one_side=513)
    thin = Image.new("RGB", (9000, 20))
    for limits in ({"in_patch_limit": 10**9}, {"patch_limit_on_one_side": 511, "fixed_output_tokens": 1}):
        assert KimiImageProcessor()(thin, **limits)["grid_thws"].tolist() == [[1, 2, 512]]
    with pytest.raises(kjp.PlanError, match=r"medias\[0\]: .*multiple of `merge_kernel_size`"):
        KimiImageProcessor()(thin, patch_limit_on_one_side=511)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("in_patch_limt", "'in_patch_limt'; did you mean 'in_patch_limit'"),
        ("return_tensor", "'return_tensor'; did you mean 'return_tensors'"),
        ("background", "'background'; expected one of 'in_patch_limit', "),
    ],
)
def test_unknown_keywords_are_type_errors_with_the_nearest_name(name, message):
    with pytest.raises(TypeError, match=message):
        KimiImageProcessor()(PICTURES, **{name: 64})


def _by_cloudpickle(processor):
    import cloudpickle

    return pickle.loads(cloudpickle.dumps(processor))


TRAVELS = {"deepcopy": copy.deepcopy, "copy": copy.copy, "pickle": lambda p: pickle.loads(pickle.dumps(p))}
if importlib.util.find_spec("cloudpickle"):
    TRAVELS["cloudpickle"] = _by_cloudpickle


@pytest.mark.parametrize("travel", TRAVELS.values(), ids=TRAVELS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_object_that_travels(travel, dtype):
    processor = KimiImageProcessor(media_proc_cfg=K3, dtype=dtype)
    unused, text = pickle.dumps(processor), processor.to_json_string()
    want = processor(PICTURES)["pixel_values"]
    processor(PICTURES, return_tensors="jax", in_patch_limit=64)
    assert (pickle.dumps(processor), processor.to_json_string()) == (unused, text)
    assert len(unused) < 2000
    want_state = {"config": K3, "dtype": dtype, "names": "checkpoint", "options": MediaOptions()}
    assert vars(processor) == want_state  # no program, lock or array can hide elsewhere
    other = travel(processor)
    assert other.to_json_string() == processor.to_json_string()
    assert_bit_equal(other(PICTURES)["pixel_values"], want, what="after travelling")


def test_pickles_differ_only_where_settings_do(tmp_path):
    # Pickle tells shared strings from equal ones, and who shares what depends on the way and on the Python version.
    made = {}
    for cfg in (K25, K3):
        for dtype in ("float32", "uint8"):
            processor = KimiImageProcessor(media_proc_cfg=cfg, dtype=dtype)
            processor.save_pretrained(tmp_path)
            same = [
                processor,
                KimiImageProcessor(media_proc_cfg=cfg.to_dict()["media_proc_cfg"], dtype=dtype),
                KimiImageProcessor.from_pretrained(tmp_path),
                copy.deepcopy(processor),
                pickle.loads(pickle.dumps(processor)),
            ]
            assert [p.config for p in same] == [cfg] * 5
            made[cfg, dtype] = {pickle.dumps(p) for p in same}
    assert [len(pickles) for pickles in made.values()] == [1, 1, 1, 1]
    assert len(set.union(*made.values())) == 4


def test_unknown_keys_travel():
    processor = KimiImageProcessor.from_dict(CHECKPOINT)
    for travel in TRAVELS.values():
        assert travel(processor).config == processor.config
        assert travel(processor).to_json_string() == processor.to_json_string()


def test_a_process_that_imported_nothing_gives_the_same_bits():
    processor = KimiImageProcessor(media_proc_cfg=K3)
    want = processor(PICTURES)["pixel_values"]
    code = """
import hashlib, pickle, sys
processor, pictures = pickle.load(sys.stdin.buffer)
print(hashlib.sha256(processor(pictures)["pixel_values"].tobytes()).hexdigest())
"""
    got = run_python(code, stdin=pickle.dumps((processor, PICTURES)))
    assert got.strip() == hashlib.sha256(want.tobytes()).hexdigest()


def test_it_works_from_a_preset_with_no_network_and_no_files(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert KimiImageProcessor(media_proc_cfg=K25)(PICTURES[0])["grid_thws"].tolist() == [[1, 4, 4]]
    assert list(Path().iterdir()) == []
