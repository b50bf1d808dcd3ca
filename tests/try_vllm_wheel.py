"""Run vLLM's own Kimi code, taken from its published wheel, with our processor in it.

    pip download "vllm==0.33.*" --no-deps -d wheels
    python tests/try_vllm_wheel.py wheels/vllm-0.33.0-*.whl

vLLM need not be installed. Its processor classes run as they are; their imports that would need a GPU build are empty
stand-ins; the model files, which need one, are read but not run. With numba and pybase64 installed, outputs are also
compared with those of vLLM's own image processor.
"""

import ast
import contextlib
import importlib
import sys
import tempfile
import types
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import kimi_jax_prep as kjp
from kimi_jax_prep import reference
from kimi_jax_prep.integrations.vllm import install, uninstall
from kimi_jax_prep.processor import KimiImageProcessor

RUN = "vllm/transformers_utils/processors/"
READ = ("vllm/model_executor/models/kimi_k25.py", "vllm/models/kimi_k3/common/mm_preprocess.py")
WRAPPER = "vllm/multimodal/media/base.py"


def main(wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.startswith(RUN + "kimi_") or n in (*READ, WRAPPER)]
        for name in names:
            archive.extract(name, folder)
        print(f"{wheel.name}: {len(names)} files")
        for name in READ:
            check_model((Path(folder) / name).read_text(), name)
        stand_in(Path(folder))
        processors = "vllm.transformers_utils.processors"
        fused = importlib.import_module(f"{processors}.kimi_k25_vision_fused")
        theirs = fused.KimiK25FusedVisionProcessor
        # Without numba `install` would also need the K2.5 model, which does not load here.
        sys.modules["vllm.utils.import_utils"].is_numba_available = lambda: True
        print("replaced:", *install(), sep="\n  ")
        assert fused.KimiK25FusedVisionProcessor is KimiImageProcessor
        run_k25(importlib.import_module(f"{processors}.kimi_k25").KimiK25Processor, fused, folder)
        run_k3(importlib.import_module(f"{processors}.kimi_k3").KimiK3Processor, fused, folder)
        uninstall()
        assert fused.KimiK25FusedVisionProcessor is theirs
        if find_spec("numba") and find_spec("pybase64"):
            compare(theirs)
        else:
            print("not compared with vLLM's own processor: numba or pybase64 is missing")


def check_model(source: str, name: str) -> None:
    """The model takes the class from the module where we replace it, and asks for it when it is made."""
    tree = ast.parse(source)
    imported = [
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and any(a.name == "KimiK25FusedVisionProcessor" for a in node.names)
    ]
    assert imported == ["vllm.transformers_utils.processors.kimi_k25_vision_fused"], imported
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("image_processor")
    }
    assert all(hasattr(KimiImageProcessor(), attribute) for attribute in used), used
    print(f"{name}: takes the class from {imported[0]}, uses {', '.join(sorted(used))}")


def stand_in(folder: Path) -> None:
    """Empty packages of vLLM's names, whose files are those of the wheel where it was extracted."""
    for name in ("", ".utils", ".transformers_utils", ".transformers_utils.processors", ".multimodal", ".tokenizers"):
        module = types.ModuleType(f"vllm{name}")
        module.__path__ = [str(folder / f"vllm{name}".replace(".", "/"))]
        sys.modules[module.__name__] = module
    numba = find_spec("numba") is not None and find_spec("pybase64") is not None
    if not find_spec("pybase64"):
        sys.modules["pybase64"] = types.ModuleType("pybase64")
    for name, contents in {
        "vllm.multimodal.image": {"open_image": Image.open},
        "vllm.multimodal.inputs": {"VisionChunk": dict},
        "vllm.tokenizers.hf": {"HfTokenizer": object},
        "vllm.utils.import_utils": {"is_numba_available": lambda: numba},
        "vllm.utils.jit_monitor": {"numba_workqueue_threading_layer": contextlib.nullcontext},
    }.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(contents)


def tokenizer() -> PreTrainedTokenizerFast:
    words = ["<unk>", "<|media_pad|>", "<|kimi_image_placeholder|>", "what", "is"]
    small = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    small.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=small, unk_token="<unk>", additional_special_tokens=words[1:3])


def pictures(mode: str, count: int = 3) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    shapes = [(rng.integers(20, 900), rng.integers(20, 900), len(mode)) for _ in range(count)]
    return [Image.fromarray(rng.integers(0, 256, shape, np.uint8)) for shape in shapes]


def make(fused: types.ModuleType, config: kjp.MediaProcConfig, folder: str) -> Any:
    KimiImageProcessor(config).save_pretrained(folder)
    return fused.KimiK25FusedVisionProcessor.from_pretrained(folder, revision=None, trust_remote_code=False)


def run_k25(cls: type, fused: types.ModuleType, folder: str) -> None:
    processor = cls(image_processor=make(fused, kjp.KIMI_K25, folder), tokenizer=tokenizer(), media_token_id=1)
    images = pictures("RGB")
    chunks = [{"type": "image", "image": image, "uuid": None} for image in images]
    chunks.append({"type": "video_chunk", "video_chunk": [images[0]] * 4, "uuid": None, "prompt": "", "video_idx": 0})
    want = reference.preprocess(chunks, kjp.KIMI_K25)
    text = "what is " + "<|media_pad|> " * len(chunks)
    for flag in (True, False):
        got = processor(
            text=text, vision_chunks=[dict(c) for c in chunks], return_tensors="pt", do_rescale=flag, do_normalize=flag
        )
        values = got["pixel_values"].numpy()
        if not flag:
            assert values.dtype == np.uint8
            values = kjp.normalize_lut(kjp.KIMI_K25, dtype="float32")[:, 0][values]
        assert values.tobytes() == want.pixel_values.tobytes()
        assert np.array_equal(got["grid_thws"].numpy(), want.grid_thws)
        assert int((got["input_ids"] == 1).sum()) == sum(want.num_tokens)
        print(f"vLLM's KimiK25Processor, flags {flag}: {values.shape}, equal to the reference, tokens agree")


def run_k3(cls: type, fused: types.ModuleType, folder: str) -> None:
    processor = cls(image_processor=make(fused, kjp.KIMI_K3, folder), tokenizer=tokenizer())
    images = pictures("RGBA")
    got = processor(text="what is", images=images, return_tensors="pt")
    want = reference.preprocess(images, kjp.KIMI_K3)
    assert got["pixel_values"].numpy().tobytes() == want.pixel_values.tobytes()
    print(f"vLLM's KimiK3Processor with transparent pictures: {want.pixel_values.shape}, equal to the reference")


def compare(theirs: type) -> None:
    """On opaque pictures vLLM's own processor must agree: it has the checkpoint's arithmetic at mean and std 0.5."""
    cfg = kjp.KIMI_K25.to_dict()["media_proc_cfg"]
    chunks = [{"type": "image", "image": image} for image in pictures("RGB")]
    got = theirs(media_proc_cfg=cfg).preprocess([dict(c) for c in chunks], return_tensors="pt")
    ours = KimiImageProcessor(kjp.KIMI_K25).preprocess(chunks, return_tensors="pt")
    different = int((got["pixel_values"] != ours["pixel_values"]).sum())
    assert np.array_equal(got["grid_thws"].numpy(), ours["grid_thws"].numpy())
    print(f"vLLM's own image processor: {different} of {ours['pixel_values'].numel()} values differ from ours")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
