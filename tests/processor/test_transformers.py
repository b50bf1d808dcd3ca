"""In transformers 5: AutoImageProcessor, its Kimi_K25Processor, and outputs by its names, with its own classes."""

import contextlib
import functools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from bits import assert_bit_equal
from datasets.fingerprint import Hasher
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoImageProcessor, AutoProcessor, Kimi_K25Processor, PreTrainedTokenizerFast
from transformers.image_utils import SizeDict
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING
from transformers.processing_utils import ImagesKwargs
from transformers.utils import is_torchvision_available

import kimi_jax_prep as kjp
from kimi_jax_prep import reference
from kimi_jax_prep.processor import KimiImageProcessor, register, unregister
from kimi_jax_prep.processor.keywords import CALL_KEYWORDS, KimiImageProcessorKwargs

K25, K3 = kjp.KIMI_K25, kjp.KIMI_K3


def picture(width: int, height: int, *, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def chunk(frames: int, *, seed: int = 0) -> dict:
    return {"type": "video_chunk", "video_chunk": [picture(60, 40, seed=seed + k) for k in range(frames)]}


PICTURES = [picture(100, 57), picture(30, 30, seed=1), picture(500, 400, seed=2)]


@pytest.fixture
def registered():
    with register():
        yield


def checkpoint(folder: Path, config=K25, *, model_type: str = "kimi_k25", **keys) -> Path:
    """A folder as the hub has it, save for the remote code that its files name."""
    auto_map = {"AutoImageProcessor": "kimi_vision_processing.KimiVisionProcessor"}
    values = {"media_proc_cfg": config.to_dict()["media_proc_cfg"], "auto_map": auto_map} | keys
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    config_map = {"AutoConfig": "configuration_kimi.KimiConfig"}
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, "auto_map": config_map}))
    return folder


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("trust", [None, False, True])
@pytest.mark.parametrize(("config", "model_type"), [(K25, "kimi_k25"), (K3, "kimi_k3")])
def test_auto_with_our_backend_gives_our_class(tmp_path, config, model_type, trust):
    folder = checkpoint(tmp_path, config, model_type=model_type)
    register()  # again
    for name in (folder, str(folder)):
        processor = AutoImageProcessor.from_pretrained(name, backend="jax", trust_remote_code=trust, dtype="bfloat16")
        assert type(processor) is KimiImageProcessor
        assert processor.config.to_dict()["media_proc_cfg"] == config.to_dict()["media_proc_cfg"]
        assert processor.dtype == "bfloat16"


@pytest.mark.usefixtures("registered")
def test_auto_with_our_backend_reads_transformers_own_dialect(tmp_path):
    values = {"image_processor_type": "Kimi_K25ImageProcessor", "max_patches": 16384, "merge_size": 2}
    values |= {"size": {"max_height": 512, "max_width": 512}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    processor = AutoImageProcessor.from_pretrained(tmp_path, backend="jax", names="transformers")
    want = reference.preprocess(PICTURES, K25)
    assert_bit_equal(processor(PICTURES)["pixel_values"], want.pixel_values, what="patches")


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("values", "model_type"),
    [
        (K25.to_dict()["media_proc_cfg"], "kimi_k25"),
        ({"max_patches": 16384, "size": {"max_height": 512, "max_width": 512}}, "kimi_k25"),
        ({"in_patch_limit": 16384, "patch_limit_on_one_side": 512}, None),
        (
            {
                "image_processor_type": "Kimi_K25ImageProcessorFast",
                "max_patches": 16384,
                "size": {"max_height": 512, "max_width": 512},
            },
            None,
        ),
    ],
)
def test_auto_finds_kimis_folders_by_their_model_too(tmp_path, values, model_type):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    if model_type:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    processor = AutoImageProcessor.from_pretrained(tmp_path, backend="jax")
    assert type(processor) is KimiImageProcessor
    assert (processor.config.in_patch_limit, processor.config.patch_limit_on_one_side) == (16384, 512)


def test_register_says_what_it_replaced_and_is_undone():
    before = {auto: vars(auto)["from_pretrained"] for auto in (AutoImageProcessor, AutoProcessor)}
    unregister()  # not registered: nothing happens
    with register() as done:
        assert [(r.name, r.before) for r in done.replaced] == [
            (f"{auto.__name__}.from_pretrained", f"{auto.__module__}.{auto.__name__}.from_pretrained")
            for auto in before
        ]
        ours = {auto: vars(auto)["from_pretrained"] for auto in before}
        assert all(ours[auto] is not before[auto] for auto in before)
        with register() as again:  # inside of another one, it is not undone at the end
            assert again.replaced == done.replaced
        assert {auto: vars(auto)["from_pretrained"] for auto in before} == ours
    assert {auto: vars(auto)["from_pretrained"] for auto in before} == before
    register()
    unregister()
    assert {auto: vars(auto)["from_pretrained"] for auto in before} == before


def test_what_others_put_around_ours_is_not_lost():
    before = vars(AutoProcessor)["from_pretrained"]
    register()
    ours = vars(AutoProcessor)["from_pretrained"]

    @functools.wraps(ours.__func__)
    def another(cls, *args, **kwargs):
        return ours.__func__(cls, *args, **kwargs)

    AutoProcessor.from_pretrained = classmethod(another)
    try:
        register()  # finds ours below it
        assert AutoProcessor.from_pretrained.__func__ is another
        with pytest.raises(RuntimeError, match=r"`AutoProcessor\.from_pretrained` was replaced by .* undo that first"):
            unregister()
    finally:
        AutoProcessor.from_pretrained = ours
    unregister()
    assert vars(AutoProcessor)["from_pretrained"] is before


@pytest.mark.usefixtures("registered")
def test_without_our_backend_image_processors_are_looked_up_as_before(tmp_path, monkeypatch):
    values = {"image_processor_type": "Kimi_K25ImageProcessor", "max_patches": 16384}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    asked = []
    module = sys.modules["kimi_jax_prep.processor.register"]  # the package's attribute of that name is the function
    monkeypatch.setattr(module, "_is_kimis_folder", lambda *_: asked.append(1) or True)
    for backend in ({}, {"backend": "pil"}, {"backend": "torchvision"}, {"use_fast": False}):
        with contextlib.suppress(ValueError):  # transformers' own needs torchvision
            assert type(AutoImageProcessor.from_pretrained(tmp_path, **backend)) is not KimiImageProcessor
    assert asked == []


def test_a_broken_folder_is_transformers_to_report(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text("{")

    def errors() -> list[str]:
        found = []
        for auto, backend in ((AutoImageProcessor, {"backend": "jax"}), (AutoProcessor, {})):
            with pytest.raises((OSError, ValueError)) as caught:
                auto.from_pretrained(tmp_path, **backend)
            found.append(repr(caught.value))
        return found

    with register():
        ours = errors()
    assert ours == errors()


@pytest.mark.usefixtures("registered")
def test_other_folders_and_backends_are_left_to_transformers(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "ViTImageProcessor"}))
    for backend in ("pil", "jax"):
        processor = AutoImageProcessor.from_pretrained(tmp_path, backend=backend)
        assert type(processor).__name__.startswith("ViTImageProcessor")
    with pytest.raises(OSError, match="absent"):
        AutoImageProcessor.from_pretrained(tmp_path / "absent", backend="jax")


def test_importing_us_leaves_kimis_folders_to_transformers(tmp_path):
    folder = checkpoint(tmp_path)
    code = """
import sys
from dataclasses import replace
import transformers
before = transformers.AutoImageProcessor.__dict__["from_pretrained"]
import kimi_jax_prep.processor
assert transformers.AutoImageProcessor.__dict__["from_pretrained"] is before
try:
    found = type(transformers.AutoImageProcessor.from_pretrained(sys.argv[1])).__name__
except ValueError:
    found = "torchvision is missing"
print(found)
"""
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() in ("torchvision is missing", "Kimi_K25ImageProcessor"), done.stderr


def test_keywords_that_transformers_checks_are_those_of_a_call():
    known = set(KimiImageProcessorKwargs.__annotations__)
    assert set(CALL_KEYWORDS) <= known
    typed = set(KimiImageProcessorKwargs.__annotations__) - set(ImagesKwargs.__annotations__)
    assert typed <= set(CALL_KEYWORDS)


def test_what_we_register_breaks_no_look_up_by_name():
    # transformers 5.24 asks everything registered for its name, and dicts of classes have none.
    assert all(isinstance(content.__name__, str) for content in IMAGE_PROCESSOR_MAPPING._extra_content.values())


@pytest.mark.parametrize(("config", "dtype"), [(K25, "float32"), (K3, "uint8")])
def test_a_folder_that_we_saved_loads_in_a_fresh_process(tmp_path, config, dtype):
    KimiImageProcessor(config, dtype=dtype, exif_transpose=True).save_pretrained(tmp_path)
    np.save(tmp_path / "picture.npy", np.asarray(PICTURES[0]))
    code = """
import sys
from dataclasses import replace
import numpy as np
import kimi_jax_prep.processor
from transformers import AutoImageProcessor
processor = AutoImageProcessor.from_pretrained(sys.argv[1])
values = processor(np.load(sys.argv[1] + "/picture.npy"), return_tensors="np")["pixel_values"]
print(type(processor).__name__, processor.options.exif_transpose)
np.save(sys.argv[1] + "/values.npy", values)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.stdout == "KimiImageProcessor True\n", done.stderr
    want = KimiImageProcessor(config, dtype=dtype)(PICTURES[0])["pixel_values"]
    assert_bit_equal(np.load(tmp_path / "values.npy"), want, what="patches")


@pytest.mark.parametrize("kind", [None, "np", "pt", "jax"])
def test_outputs_by_transformers_names(kind):
    if kind == "pt":
        pytest.importorskip("torch", reason="torch is an extra")
    processor = KimiImageProcessor(names="transformers")
    medias = [
        PICTURES[0],
        chunk(4),
        {"type": "video", "video": [picture(60, 40, seed=k) for k in range(9)]},
        PICTURES[1],
    ]
    got = processor(medias, return_tensors=kind)
    assert set(got) == set(processor.model_input_names)
    images = reference.preprocess([PICTURES[0], PICTURES[1]], K25)
    videos = reference.preprocess([chunk(4), *kjp.split_video_chunks(medias[2]["video"])], K25)
    grid = np.int32 if kind == "jax" else np.int64
    for key, want in {
        "pixel_values": images.pixel_values,
        "image_grid_thw": images.grid_thws.astype(grid),
        "pixel_values_videos": videos.pixel_values,
        "video_grid_thw": videos.grid_thws.astype(grid),
        "num_chunks_per_video": np.array([1, 3], grid),
    }.items():
        assert_bit_equal(np.asarray(got[key]), want, what=key)
    assert set(processor(PICTURES[0])) == {"pixel_values", "image_grid_thw"}
    assert set(processor(chunk(2))) == {"pixel_values_videos", "video_grid_thw", "num_chunks_per_video"}
    assert dict(processor([])) == {}


def test_names_are_checked_and_survive_saving(tmp_path):
    with pytest.raises(kjp.ConfigError, match="'checkpoint', 'transformers'"):
        KimiImageProcessor(names="hf")
    KimiImageProcessor(names="transformers").save_pretrained(tmp_path)
    assert KimiImageProcessor.from_pretrained(tmp_path).names == "transformers"
    assert KimiImageProcessor.from_pretrained(tmp_path, names="checkpoint").names == "checkpoint"


def test_the_attributes_that_transformers_and_vllm_read():
    processor = KimiImageProcessor()
    assert (processor.patch_size, processor.merge_size, processor.temporal_patch_size) == (14, 2, 4)
    for width, height in ((100, 57), (4000, 3000), (1, 1), (8000, 10)):
        plan = kjp.plan_image(width=width, height=height, config=K25)
        assert processor.get_number_of_image_patches(height, width) == plan.num_patches
        smaller = kjp.plan_image(
            width=width, height=height, config=kjp.MediaProcConfig(in_patch_limit=64, patch_limit_on_one_side=8)
        )
        for kwargs in (
            {"in_patch_limit": 64, "patch_limit_on_one_side": 8},
            {"max_patches": 64, "size": {"max_height": 8, "max_width": 8}, "do_resize": True},
        ):
            assert processor.get_number_of_image_patches(height, width, kwargs) == smaller.num_patches
    with pytest.raises(kjp.PlanError):
        processor.get_number_of_image_patches(0, 5)


def test_sizes_may_be_overridden_by_transformers_names():
    processor = KimiImageProcessor()
    for ours, theirs in (
        ({"in_patch_limit": 64}, {"max_patches": 64}),
        ({"patch_limit_on_one_side": 8}, {"size": {"max_height": 8, "max_width": 8}}),
    ):
        want, got = processor(PICTURES, **ours), processor(PICTURES, **theirs)
        assert_bit_equal(got["grid_thws"], want["grid_thws"], what=str(theirs))
        assert not np.array_equal(got["grid_thws"], processor(PICTURES)["grid_thws"])
        # The budget of a frame is not touched.
        assert_bit_equal(
            processor(chunk(2), **theirs)["grid_thws"], processor(chunk(2), **ours)["grid_thws"], what="frames"
        )
    with pytest.raises(ValueError, match="must be equal"):
        processor(PICTURES, size={"max_height": 8, "max_width": 9})
    with pytest.raises(kjp.ConfigError, match=r"`size` is .*'max_height': n"):
        processor(PICTURES, size={"height": 8, "width": 8})
    counted = processor.media_tokens_calculator(PICTURES[2], max_patches=64, do_rescale=False, do_normalize=False)
    assert counted == processor(PICTURES[2], in_patch_limit=64)["grid_thws"].prod() // 4
    with pytest.raises(kjp.PlanError, match="positions end at 512"):
        processor(PICTURES, size={"max_height": 514, "max_width": 514})


TEXTS = [
    "what is <|media_begin|>image<|media_content|><|media_pad|><|media_end|> and "
    "<|media_begin|>image<|media_content|><|media_pad|><|media_end|> ?",
    "<|media_begin|>image<|media_content|><|media_pad|><|media_end|> a word",
]


def tokenizer() -> PreTrainedTokenizerFast:
    special = ["<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>"]
    special += ["<|kimi_k25_video_placeholder|>", "<unk>", "<pad>"]
    words = [*special, "what", "is", "image", "and", "?", "a", "word", "video"]
    small = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    small.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=small, unk_token="<unk>", pad_token="<pad>", additional_special_tokens=special[:5]
    )


class ImagesOnly(Kimi_K25Processor):
    """transformers 5.24 wants a video processor even for images, and has none without torchvision."""

    @classmethod
    def get_attributes(cls):
        return ["image_processor", "tokenizer"]


def kimi_processor(image_processor: KimiImageProcessor) -> Kimi_K25Processor:
    if is_torchvision_available():
        from transformers import Kimi_K25VideoProcessor

        return Kimi_K25Processor(image_processor, tokenizer(), Kimi_K25VideoProcessor())
    return ImagesOnly(image_processor, tokenizer())


@pytest.mark.parametrize("kind", ["np", "pt"])
def test_transformers_own_kimi_processor_counts_as_we_do(kind):
    if kind == "pt":
        pytest.importorskip("torch", reason="torch is an extra")
    processor = kimi_processor(KimiImageProcessor(names="transformers"))
    got = processor(text=TEXTS, images=PICTURES, return_tensors=kind, padding=True)
    want = reference.preprocess(PICTURES, K25)
    assert_bit_equal(np.asarray(got["pixel_values"]), want.pixel_values, what="patches")
    assert_bit_equal(np.asarray(got["image_grid_thw"]), want.grid_thws, what="grids")
    pads = (np.asarray(got["input_ids"]) == processor.image_token_id).sum(1)
    tokens = [plan.num_tokens for plan in want.plans]
    assert pads.tolist() == [tokens[0] + tokens[1], tokens[2]]
    sizes = [(image.height, image.width) for image in PICTURES]
    assert processor._get_num_multimodal_tokens(image_sizes=sizes)["num_image_tokens"] == tokens


def test_transformers_own_kimi_processor_with_chats_and_nested_lists():
    processor = kimi_processor(KimiImageProcessor(names="transformers"))
    template = (
        "{% for m in messages %}{% for c in m.content %}{% if c.type == 'image' %}"
        "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>{% else %}{{ c.text }}{% endif %}{% endfor %}"
        "{% endfor %}"
    )
    content = [{"type": "image", "image": PICTURES[0]}, {"type": "text", "text": "a word"}]
    got = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        chat_template=template,
        tokenize=True,
        return_dict=True,
        processor_kwargs={"return_tensors": "np"},
    )
    want = reference.preprocess(PICTURES, K25)
    assert_bit_equal(np.asarray(got["pixel_values"]), want.split()[0], what="a chat")
    assert (np.asarray(got["input_ids"]) == processor.image_token_id).sum() == want.num_tokens[0]
    nested = processor(text=TEXTS, images=[PICTURES[:2], PICTURES[2:]], return_tensors="np", padding=True)
    assert_bit_equal(nested["pixel_values"], want.pixel_values, what="nested lists")
    ours = processor.image_processor
    assert_bit_equal(ours([[], PICTURES[:2], (PICTURES[2],)])["pixel_values"], want.pixel_values, what="empty ones too")
    pair = np.stack([np.asarray(PICTURES[1]), np.asarray(PICTURES[1])[::-1]])
    assert_bit_equal(ours(pair)["pixel_values"], ours(list(pair))["pixel_values"], what="one array of pictures")


def test_keywords_of_transformers_that_change_nothing():
    processor = KimiImageProcessor(names="transformers")
    want = processor(PICTURES)["pixel_values"]
    nothing = {"do_resize": True, "do_convert_rgb": True, "resample": Image.Resampling.BICUBIC, "device": "cpu"}
    nothing |= {"data_format": "channels_first", "disable_grouping": None, "size": None, "max_patches": None}
    assert_bit_equal(processor(PICTURES, **nothing)["pixel_values"], want, what="the same")
    size = SizeDict(max_height=8, max_width=8)
    smaller = processor(PICTURES, size={"max_height": 8, "max_width": 8})["image_grid_thw"]
    assert_bit_equal(processor(PICTURES, size=size)["image_grid_thw"], smaller, what="SizeDict")
    for other in ({"do_resize": False}, {"resample": 2}, {"device": "cuda"}, {"data_format": "channels_last"}):
        with pytest.raises(kjp.PlanError, match=f"`{next(iter(other))}` is .*what the checkpoint does"):
            processor(PICTURES, **other)


def test_transformers_own_kimi_processor_passes_overrides_on():
    processor = kimi_processor(KimiImageProcessor(names="transformers"))
    got = processor(text=TEXTS, images=PICTURES, images_kwargs={"max_patches": 16}, return_tensors="np", padding=True)
    want = KimiImageProcessor()(PICTURES, in_patch_limit=16)
    assert_bit_equal(got["image_grid_thw"], want["grid_thws"], what="grids")
    tokens = want["grid_thws"].prod(1) // 4
    assert (got["input_ids"] == processor.image_token_id).sum() == tokens.sum()


def test_datasets_hash_the_same_before_and_after_use_and_in_another_process(tmp_path):
    # `datasets` caches by this hash: one that changed would compute everything again.
    made = [
        lambda: KimiImageProcessor(K25),
        lambda: KimiImageProcessor(K3),
        lambda: KimiImageProcessor(K25, dtype="uint8"),
        lambda: KimiImageProcessor(K25, names="transformers"),
        lambda: KimiImageProcessor(K25, exif_transpose=True),
        lambda: KimiImageProcessor(replace(K25, in_patch_limit=100)),
    ]
    hashes = []
    for k, make in enumerate(made):
        processor = make()
        first = Hasher.hash(processor)
        processor([*PICTURES, chunk(2)])
        (tmp_path / str(k)).write_bytes(cloudpickle.dumps(processor))
        assert len(cloudpickle.dumps(processor)) < 100_000
        assert [Hasher.hash(p) for p in (processor, make(), cloudpickle.loads(cloudpickle.dumps(processor)))] == [
            first
        ] * 3
        hashes.append(first)
    assert len(set(hashes)) == len(made)
    code = """
import pickle, sys
from datasets.fingerprint import Hasher
for k in range(6):
    with open(f"{sys.argv[1]}/{k}", "rb") as file:
        print(Hasher.hash(pickle.load(file)))
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == hashes, done.stderr


def test_datasets_map_over_processes_gives_the_same_rows(tmp_path):
    # In a process of its own: workers are forked, and this one has used JAX by now.
    code = """
import sys
from dataclasses import replace
import numpy as np
from datasets import Dataset, disable_progress_bars
from kimi_jax_prep.processor import KimiImageProcessor

if __name__ == "__main__":
    disable_progress_bars()
    processor = KimiImageProcessor()
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (h, 60, 3), np.uint8) for h in (28, 56, 84, 30, 28, 90)]
    rows = Dataset.from_dict({"k": list(range(6))})
    def work(row):
        out = processor(pictures[row["k"]], return_tensors="np")
        return {"pixel_values": out["pixel_values"], "grid_thws": out["grid_thws"]}
    for num_proc in (None, 2):
        done = rows.map(work, num_proc=num_proc, load_from_cache_file=False).with_format("numpy")
        for row, picture in zip(done, pictures):
            want = processor(picture, return_tensors="np")
            assert np.array_equal(np.asarray(row["pixel_values"], np.float32), want["pixel_values"])
            assert np.array_equal(row["grid_thws"], want["grid_thws"])
    print("equal")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"HF_DATASETS_CACHE": str(tmp_path), "HF_DATASETS_OFFLINE": "1"},
    )
    assert done.stdout.strip() == "equal", done.stderr
