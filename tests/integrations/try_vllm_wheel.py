"""Run vLLM's own Kimi code, taken from its published wheel, around our image processor.

    pip download vllm --no-deps -d wheels
    python tests/integrations/try_vllm_wheel.py wheels/vllm-*.whl

vLLM need not be installed. Its files run as they are from the bytes of a picture to the tensors and tokens of a
request: loader of images, parser, processors, the processing classes in the model files, loader of plugins, and the
normalization on the device. All the rest of it (kernels, layers, configuration) is an empty stand-in. Needs torch.
With numba installed, results are also compared with those of vLLM's own image processor; with cachetools, vLLM's cache
of processed media is tried too.
"""

import base64
import importlib
import io
import itertools
import os
import sys
import tempfile
import types
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import Kimi_K25Config, PreTrainedTokenizerFast
from wheels import Wheel

import kimi_jax_prep as kjp
from kimi_jax_prep import reference
from kimi_jax_prep.integrations import vllm as integration
from kimi_jax_prep.processor import KimiImageProcessor

K25, K3, FUSED = (f"vllm.{name}" for name in (*integration.LAYOUT.models, integration.LAYOUT.source))
# What runs as it is; a name stands for everything below it too.
REAL = (
    *(K25, K3, "vllm.envs", "vllm.plugins", "vllm.version", "vllm.model_executor.layers.fusion.mm_input_norm"),
    *(f"vllm.multimodal.{name}" for name in ("hasher", "image", "inputs", "parse", "processing")),
    *("vllm.multimodal.media.base", "vllm.multimodal.media.image"),
    *(f"vllm.transformers_utils.{name}" for name in ("processor", "processors", "repo_utils", "utils")),
    *(f"vllm.utils.{name}" for name in ("collection_utils", "func_utils", "import_utils", "jit_monitor", "jsontree")),
    "vllm.utils.mem_constants",
    *(("vllm.multimodal.cache", "vllm.utils.cache") if find_spec("cachetools") else ()),
)
SPECIAL = ("<|media_pad|>", "<|kimi_image_placeholder|>", "<|media_begin|>", "<|media_content|>", "<|media_end|>")


def fill(module: types.ModuleType) -> None:
    """What the real files take from stand-ins and what matters here."""
    if module.__name__ == "vllm.multimodal.media":
        module.MediaWithBytes = importlib.import_module("vllm.multimodal.media.base").MediaWithBytes
    elif module.__name__ == "vllm.inputs":
        module.mm_input = dict
    elif module.__name__ == "vllm.model_executor.custom_op":
        module.CustomOp = type("CustomOp", (torch.nn.Module,), {"register": lambda _: lambda cls: cls})


def vllm(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"vllm.{module}"), name)


def tokenizer() -> PreTrainedTokenizerFast:
    words = ("<unk>", *SPECIAL, "what", "image", "x", *map(str, range(10_000)))
    small = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    small.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits()])
    return PreTrainedTokenizerFast(tokenizer_object=small, unk_token="<unk>", additional_special_tokens=list(SPECIAL))


class Model:
    """K2.5 or K3 as vLLM sets up its processing of media: `apply` is vLLM's, called with media of one request."""

    def __init__(self, name: str, folder: str, *, on_device: bool) -> None:
        k3 = name == "KimiK3"
        self.modality = "image" if k3 else "vision_chunk"
        self.placeholder = SPECIAL[1] if k3 else SPECIAL[0]
        config = vllm("transformers_utils.configs.kimi_k3", "KimiK3Config")() if k3 else Kimi_K25Config()
        config.image_token_id = config.media_placeholder_token_id = 1
        config.image_placeholder = SPECIAL[1]
        flags = {"do_rescale": False, "do_normalize": False} if on_device else {}
        limits = types.SimpleNamespace(
            merge_mm_processor_kwargs=lambda given: {**given, **flags},
            mm_tensor_ipc="direct_rpc",
            mm_hasher_algorithm="sha256",
            mm_processor_cache_gb=1,
            enable_mm_embeds=False,
            allow_missing_mm_embeddings=False,
            get_limit_per_prompt=lambda _: 999,
        )
        self.config = types.SimpleNamespace(
            model=folder,
            revision=None,
            trust_remote_code=False,
            hf_config=config,
            dtype=torch.float32,
            max_model_len=4096,
            multimodal_config=limits,
            get_multimodal_config=lambda: limits,
        )
        KimiImageProcessor(kjp.KIMI_K3 if k3 else kjp.KIMI_K25).save_pretrained(folder)
        vllm("transformers_utils.processor", "cached_get_image_processor").cache_clear()
        module = importlib.import_module(K3 if k3 else K25)
        context = vllm("multimodal.processing.context", "InputProcessingContext")(self.config, tokenizer())
        info = getattr(module, f"{name}ProcessingInfo")(context)
        self.processor = getattr(module, f"{name}MultiModalProcessor")(
            info, getattr(module, f"{name}DummyInputsBuilder")(info)
        )

    def apply(self, medias: list[Any], *, cache: Any = None) -> "Answer":
        prompt = tokenizer()(f"what {self.placeholder * len(medias)} what")["input_ids"]
        items = self.processor.info.parse_mm_data({self.modality: medias})
        inputs = vllm("multimodal.processing.inputs", "ProcessorInputs")(
            prompt=prompt, mm_data_items=items, mm_uuid_items=None, cache=cache
        )
        return self._answer(inputs)

    def profile(self) -> "Answer":
        """What vLLM sends through before it serves, to see how much memory the largest medium takes."""
        return self._answer(self.processor.get_dummy_inputs(4096, {self.modality: 1}, {}))

    def _answer(self, inputs: Any) -> "Answer":
        out = self.processor.apply(inputs, vllm("multimodal.processing.context", "TimingContext")())
        return Answer(out, self.modality)


class Answer:
    """Patches and grids that the model would get, and its prompt."""

    def __init__(self, out: dict[str, Any], modality: str) -> None:
        data = [item.get_data() for item in out["mm_kwargs"][modality]]
        self.pixel_values = torch.cat([item["pixel_values"] for item in data]).numpy()
        self.grid_thws = torch.stack([item["grid_thws"] for item in data]).numpy()
        self.prompt = out["prompt_token_ids"]
        self.num_tokens = [where.get_num_embeds() for where in out["mm_placeholders"][modality]]

    def check(self, medias: list[Any], config: kjp.MediaProcConfig) -> None:
        """Against the checkpoint's arithmetic; bytes after the look-up that the device would do."""
        want = reference.preprocess(medias, config)
        values = self.pixel_values
        if values.dtype == np.uint8:
            values = kjp.normalize_lut(config, dtype="float32")[:, 0][values]
        assert values.tobytes() == want.pixel_values.tobytes()
        assert np.array_equal(self.grid_thws, want.grid_thws)
        assert self.num_tokens == list(want.num_tokens)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answer) and all(np.array_equal(vars(self)[k], vars(other)[k]) for k in vars(self))

    __hash__ = None


def picture(mode: str, size: tuple[int, int], seed: int = 0) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 4), np.uint8)
    return Image.fromarray(noise).convert(mode) if mode != "RGBA" else Image.fromarray(noise)


def encoded(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def vision_chunks() -> list[dict[str, Any]]:
    """K2.5's: all modes, sizes at the limits, pictures as vLLM's loader gives them, chunks of one to four frames."""
    modes = [picture(mode, (90, 70)) for mode in ("RGB", "L", "P", "1", "CMYK", "RGBA", "LA")]
    sizes = [picture("RGB", size) for size in ((1, 1), (28, 28), (8000, 15), (15, 8000), (1792, 1792), (3000, 2000))]
    loader = vllm("multimodal.media.image", "ImageMediaIO")()
    loaded = [loader.load_bytes(encoded(picture(mode, (300, 200)))) for mode in ("RGB", "RGBA")]
    frames = [picture("RGB", (640, 360), seed) for seed in range(4)]
    chunks = [{"type": "image", "image": image, "uuid": None} for image in (*modes, *sizes, *loaded)]
    more = {"uuid": None, "prompt": "", "video_idx": 0}
    chunks += [{"type": "video_chunk", "video_chunk": frames[:count], **more} for count in range(1, 5)]
    return chunks + KimiImageProcessor(kjp.KIMI_K25).split_video_chunks(frames + frames[:2], fps=2.0)


def whole_requests(folder: str) -> dict[tuple[str, bool], Answer]:
    answers = {}
    for on_device in (True, False):
        answers["KimiK25", on_device] = Model("KimiK25", folder, on_device=on_device).apply(vision_chunks())
        pictures = [chunk["image"] for chunk in vision_chunks() if "image" in chunk]
        answers["KimiK3", on_device] = Model("KimiK3", folder, on_device=on_device).apply(pictures)
    return answers


def check_places() -> None:
    """Both models, imported before, take our class after vLLM's loader of plugins has run, and theirs after that."""
    holders = [importlib.import_module(name) for name in (FUSED, K25, K3)]
    theirs = [module.KimiK25FusedVisionProcessor for module in holders]
    if any(p.name == "kimi_jax_prep" for p in entry_points(group="vllm.general_plugins")):
        os.environ[integration.ENVIRONMENT_VARIABLE] = "1"
        vllm("plugins", "load_general_plugins")()
        assert integration._replaced
        print("vLLM's load_general_plugins() installs ours")
    else:
        print("not tried with vLLM's loader of plugins: the kimi_jax_prep that is installed here is none")
    print("install():", *integration.install(), sep="\n  ")
    assert all(module.KimiK25FusedVisionProcessor is KimiImageProcessor for module in holders)
    integration.uninstall()
    assert [module.KimiK25FusedVisionProcessor for module in holders] == theirs


def check_ours(answers: dict[tuple[str, bool], Answer], folder: str) -> None:
    chunks = vision_chunks()
    for chunk in chunks:
        if hasattr(chunk.get("image"), "original_bytes"):
            chunk["image"] = chunk["image"].media
    for on_device in (True, False):
        answer = answers["KimiK25", on_device]
        answer.check(chunks, kjp.KIMI_K25)
        what = f"{answer.pixel_values.dtype} {answer.pixel_values.shape}"
        print(f"KimiK25 with ours, normalized on the device {on_device}: {what}, as the reference")
    for name, config in (("KimiK25", kjp.KIMI_K25), ("KimiK3", kjp.KIMI_K3)):
        model = Model(name, folder, on_device=True)
        # vLLM's chat server would ask this class for it.
        assert not hasattr(model.processor, "split_video_chunks")
        assert type(model.processor.info.image_processor) is KimiImageProcessor
        profile = model.profile()
        frames = int(profile.grid_thws[0, 0])
        assert profile.num_tokens[0] * frames * config.merge_kernel_size**2 == len(profile.pixel_values)
        print(
            f"{name} with ours, vLLM's profiling: {len(profile.pixel_values)} patches, {profile.num_tokens[0]} tokens"
        )


def compare(ours: dict[tuple[str, bool], Answer], folder: str) -> None:
    """With the answers of vLLM's own processor to the same requests."""
    for key, theirs in whole_requests(folder).items():
        assert ours[key] == theirs, key
        what = f"{theirs.pixel_values.size} values, grids, prompt"
        print(f"{key[0]}, normalized on the device {key[1]}: equal to vLLM's own processor in {what}")
    image = picture("RGBA", (300, 200))
    loaded = vllm("multimodal.media.image", "ImageMediaIO")(image_mode=None).load_bytes(encoded(image))
    theirs = Model("KimiK3", folder, on_device=False).apply([loaded])
    theirs.check([image.convert("RGB")], kjp.KIMI_K3)
    print("KimiK3 with vLLM's own processor: where alpha gets that far, it is dropped")


def where_alpha_survives(folder: str) -> None:
    """The checkpoints need a transparent picture as it is; vLLM paints it white in more than one place."""
    image = picture("RGBA", (300, 200))
    want = reference.preprocess([image], kjp.KIMI_K3).pixel_values
    model = Model("KimiK3", folder, on_device=False)
    caches = {"without cache": lambda: None}
    if find_spec("cachetools"):
        caches["with cache"] = lambda: vllm("multimodal.cache", "MultiModalProcessorOnlyCache")(model.config)
    loader = vllm("multimodal.media.image", "ImageMediaIO")
    forms = {
        "PIL image": image,
        "loaded with image_mode RGB": loader(image_mode="RGB").load_bytes(encoded(image)),
        "loaded with image_mode None": loader(image_mode=None).load_bytes(encoded(image)),
    }
    print("a transparent picture for K3:")
    for (form, media), (name, cache) in itertools.product(forms.items(), caches.items()):
        survives = np.array_equal(model.apply([media], cache=cache()).pixel_values, want)
        assert survives == (form.endswith("None") and name == "without cache")
        print(f"  {form}, {name}: {'as the checkpoint paints it' if survives else 'on white'}")
    model = Model("KimiK25", folder, on_device=False)
    for name, cache in caches.items():
        chunk = {"type": "image", "image": forms["loaded with image_mode None"], "uuid": None}
        model.apply([chunk], cache=cache()).check([image.convert("RGB")], kjp.KIMI_K25)
        print(f"for K2.5, loaded with image_mode None, {name}: alpha is dropped, as by the checkpoint")


def device_table() -> None:
    """The values that vLLM's normalization on the device gives the 256 bytes, next to the checkpoint's."""
    norm = vllm("model_executor.layers.fusion.mm_input_norm", "FusedMMInputNorm")([0.5] * 3, [0.5] * 3, 1 / 255)
    values = norm.forward_native(torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, 3), torch.float32)
    want = torch.tensor(kjp.normalize_lut(kjp.KIMI_K25, dtype="float32").tolist())
    print(
        f"normalized on the device: {int((values[:, 0] != want[:, 0]).sum())} of 256 values differ from the "
        f"checkpoint's in float32, {int((values.bfloat16() != want.bfloat16())[:, 0].sum())} in bfloat16"
    )


def main(wheel: Path) -> None:
    if not find_spec("pybase64"):
        sys.modules["pybase64"] = base64  # the same functions
    with tempfile.TemporaryDirectory() as folder:
        Wheel(wheel, Path(folder), package="vllm", real=REAL, fill=fill)
        check_places()

        integration.install()
        ours = whole_requests(folder)
        check_ours(ours, folder)
        where_alpha_survives(folder)
        integration.uninstall()
        if find_spec("numba"):
            compare(ours, folder)
        else:
            print("not compared with vLLM's own image processor: numba is missing")
        device_table()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
