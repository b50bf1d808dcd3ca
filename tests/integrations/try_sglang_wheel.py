"""Run SGLang's own Kimi code, taken from its published wheel, around our processor.

    pip download sglang --no-deps -d wheels
    python tests/integrations/try_sglang_wheel.py wheels/sglang-*.whl

SGLang need not be installed. Its loader of processors and the files of its Kimi K2.5 and K3 processors run as they are;
the rest of it (server, kernels, transport) is an empty stand-in. Needs torch. Without a GPU, SGLang calls the
checkpoint's processor, in whose place ours is put. Ids, counts, patches and grids of whole requests are compared with
the rule of the checkpoint.
"""

import importlib
import json
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import BaseImageProcessor, PreTrainedTokenizerFast
from wheels import Wheel

import kimi_jax_prep as kjp
from kimi_jax_prep import reference
from kimi_jax_prep.processor import KimiProcessor, register

FOLDER = "sglang.srt.multimodal.processors"
LOADER = "sglang.srt.utils.hf_transformers.processor"
REAL = (f"{FOLDER}.kimi_k25", f"{FOLDER}.kimi_k3", f"{FOLDER}.kimi_common", LOADER)
PAD = "<|media_pad|>"
SPECIAL = ("<unk>", "<pad>", PAD, "<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|kimi_image_placeholder|>")
WORDS = ("what", "is", "this", "image", "x")
SIZES = ((1, 1), (28, 28), (29, 28), (224, 224), (448, 449), (640, 480), (3000, 2000), (8000, 15), (15, 8000))


def fill(module: types.ModuleType) -> None:
    """What the real files take from stand-ins and what matters here."""
    if module.__name__ == f"{FOLDER}.base_processor":
        module.BaseMultimodalProcessor = type("BaseMultimodalProcessor", (), {})
    elif module.__name__ == "sglang.srt.environ":
        no = types.SimpleNamespace(get=lambda: False)
        module.envs = types.SimpleNamespace(SGLANG_FORCE_CPU_IMAGE_PREPROCESSING=no, SGLANG_MM_SKIP_COMPUTE_HASH=no)
    elif module.__name__ == "sglang.srt.utils":
        module.is_cuda = lambda: False
    elif module.__name__ == "sglang.srt.multimodal.customized_mm_processor_utils":
        module._CUSTOMIZED_MM_PROCESSOR = {}
    elif module.__name__ == "sglang.srt.utils.hf_transformers.common":
        config = types.SimpleNamespace(model_type="kimi")
        module.AutoConfig = types.SimpleNamespace(from_pretrained=lambda *_, **__: config)
        module.resolve_runai_obj_uri = lambda name: name
        module.get_tokenizer_from_processor = lambda processor: processor.tokenizer


def tokenizer() -> PreTrainedTokenizerFast:
    names = (*SPECIAL, *WORDS, *map(str, range(10)))
    small = Tokenizer(models.WordLevel({word: i for i, word in enumerate(names)}, unk_token="<unk>"))
    small.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(True)])
    small.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=small, unk_token="<unk>", pad_token="<pad>")


def picture(size: tuple[int, int], mode: str = "RGB", seed: int = 0) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 4), np.uint8)
    return Image.fromarray(noise).convert(mode)


def pictures() -> list[Image.Image]:
    modes = [picture((90, 70), mode, seed) for seed, mode in enumerate(("RGB", "RGBA", "L", "LA", "P", "CMYK"))]
    return [*(picture(size) for size in SIZES), *modes]


def loaded(name: str, config: kjp.MediaProcConfig, folder: Path) -> Any:
    """What SGLang's loader returns for a checkpoint's folder while our classes are registered."""
    auto_map = {"AutoImageProcessor": f"kimi_{name}.Vision", "AutoProcessor": f"kimi_{name}.Processor"}
    values = {"media_proc_cfg": config.to_dict()["media_proc_cfg"], "auto_map": auto_map}
    tok = tokenizer()
    tok.chat_template = "{{ messages }}"
    tok.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    with register():
        ours = importlib.import_module(LOADER).get_processor(str(folder), trust_remote_code=True)
    print(f"{name}: SGLang's get_processor() returns {type(ours).__module__}.{type(ours).__name__}")
    return ours


def wrapper_of(name: str, ours: Any) -> Any:
    """SGLang's wrapper around our processor, made as its own class makes it."""
    assert type(ours) is KimiProcessor
    assert isinstance(ours.image_processor, BaseImageProcessor)
    assert ours.media_processor is ours.image_processor
    cfg = ours.media_processor.media_proc_cfg
    keys = ("patch_size", "merge_kernel_size", "in_patch_limit", "patch_limit_on_one_side", "image_mean", "image_std")
    values = {key: cfg[key] for key in keys} | {"fixed_output_tokens": cfg.get("fixed_output_tokens")}
    tokens = {"image_token": PAD, "image_token_id": ours.tokenizer.convert_tokens_to_ids(PAD)}
    module = importlib.import_module(f"{FOLDER}.kimi_{name}")
    if name == "k25":
        return module.KimiGPUProcessorWrapper(ours, **tokens, **values)
    values["transparent_bg_config"] = cfg.get("transparent_bg_config")
    return module.KimiK3GPUProcessorWrapper(ours, **tokens, config=types.SimpleNamespace(**values))


def wanted_ids(name: str, tok: Any, images: list[Image.Image], counts: tuple[int, ...]) -> list[int]:
    """The rule: one pad for each token; K3 writes the size around them."""
    begin = ["<|media_begin|>image {}x{}<|media_content|>".format(*i.size) if name == "k3" else "" for i in images]
    end = "<|media_end|>" if name == "k3" else ""
    text = "".join(f"{b}{PAD * n}{end}" for b, n in zip(begin, counts, strict=True))
    return tok(f"what is {text} this")["input_ids"]


def check(name: str, config: kjp.MediaProcConfig, folder: Path) -> None:
    wrapper, images = wrapper_of(name, loaded(name, config, folder)), pictures()
    tok, want = wrapper.tokenizer, reference.preprocess(images, config)
    text = f"what is {PAD * len(images)} this"
    ids = wanted_ids(name, tok, images, want.num_tokens)
    for given in (None, tok(text)["input_ids"]):
        out = wrapper(text=[text], images=images, sglang_original_input_ids=given, padding=True, return_tensors="pt")
        assert out["pixel_values"].dtype == torch.float32
        assert out["pixel_values"].numpy().tobytes() == want.pixel_values.tobytes()
        assert torch.as_tensor(out["image_grid_thw"]).tolist() == want.grid_thws.tolist()
        assert out["input_ids"].shape[0] == 1
        assert out["input_ids"][0].tolist() == ids, (out["input_ids"][0].tolist()[:20], ids[:20])
    print(
        f"{name}: {len(images)} pictures in one request, text and ids: {len(want.pixel_values)} patches, {len(ids)} ids"
    )
    one = wrapper(text=["what is this"], images=None, padding=True, return_tensors="pt")
    assert one["input_ids"][0].tolist() == tok("what is this")["input_ids"]
    print(f"{name}: a request without pictures")

    module = importlib.import_module(f"{FOLDER}.kimi_k25")
    calculator = wrapper.media_processor.media_tokens_calculator
    limits = (config.patch_size, config.merge_kernel_size, config.in_patch_limit, config.patch_limit_on_one_side)
    rng = np.random.default_rng(0)
    sizes = [*SIZES, *(tuple(map(int, size)) for size in rng.integers(1, 9000, (300, 2)))]
    for width, height in sizes:
        theirs = module.navit_resize_config(width, height, *limits)
        image = Image.new("1", (width, height))
        ours = wrapper.image_processor.get_resize_config({"type": "image", "image": image})
        assert {key: ours[key] for key in theirs} == theirs
        assert calculator({"type": "image", "image": image}) == theirs["num_tokens"]
    print(f"{name}: sizes and counts equal to SGLang's own for {len(sizes)} sizes")
    counter = types.SimpleNamespace(_processor=wrapper)
    mixin = importlib.import_module(f"{FOLDER}.kimi_common").KimiGridMMDataMixin
    assert mixin.resolve_image_token_counts(counter, images) == list(want.num_tokens)


def main(wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Wheel(wheel, Path(folder), package="sglang", real=REAL, fill=fill)
        sys.path.insert(0, folder)
        for name, config in (("k25", kjp.KIMI_K25), ("k3", kjp.KIMI_K3)):
            with tempfile.TemporaryDirectory() as checkpoint:
                check(name, config, Path(checkpoint))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
