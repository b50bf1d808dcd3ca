"""The calls of vLLM 0.33 and 0.34. Their wheels are too large for this suite: modules of the same names replace them.

`tests/integrations/try_vllm_wheel.py` runs the same against the files of the real wheel.
"""

import copy
import importlib
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bits import assert_bit_equal
from PIL import Image

import kimi_jax_prep as kjp
from kimi_jax_prep import reference
from kimi_jax_prep.integrations import vllm as integration
from kimi_jax_prep.processor import KimiImageProcessor

K25, K3 = kjp.KIMI_K25, kjp.KIMI_K3
SOURCE = "vllm.transformers_utils.processors.kimi_k25_vision_fused"
# Modules of vLLM 0.33 and 0.34 and what of them matters here.
FILES = {
    "vllm/__init__.py": "",
    "vllm/utils/__init__.py": "",
    "vllm/utils/import_utils.py": "def is_numba_available():\n    return {numba}\n",
    "vllm/transformers_utils/__init__.py": "",
    "vllm/transformers_utils/processors/__init__.py": "",
    "vllm/transformers_utils/processors/kimi_k25_vision_fused.py": """
        class KimiK25FusedVisionProcessor:
            pass
        """,
    "vllm/model_executor/__init__.py": "",
    "vllm/model_executor/models/__init__.py": "",
    "vllm/model_executor/models/kimi_k25.py": """
        from vllm.transformers_utils.processors.kimi_k25_vision_fused import KimiK25FusedVisionProcessor
        from vllm.utils.import_utils import is_numba_available

        def processor_class():
            return KimiK25FusedVisionProcessor if is_numba_available() else None
        """,
    "vllm/models/__init__.py": "",
    "vllm/models/kimi_k3/__init__.py": "",
    "vllm/models/kimi_k3/common/__init__.py": "",
    "vllm/models/kimi_k3/common/mm_preprocess.py": """
        from vllm.transformers_utils.processors.kimi_k25_vision_fused import KimiK25FusedVisionProcessor

        def processor_class():
            return KimiK25FusedVisionProcessor
        """,
}
MODELS = ("vllm.model_executor.models.kimi_k25", "vllm.models.kimi_k3.common.mm_preprocess")


def write(folder: Path, *, numba: bool = True, without: str = "", only_in: str = "", also: str = "") -> None:
    """Writes vLLM's files, `without` a name (`only_in` the files whose path has this), `also` with a line on top."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = textwrap.dedent(text).replace("{numba}", str(numba))
        if only_in in name:
            text = f"{also}\n{text}".replace(without or "\0", "Other")
        path.write_text(text)


@pytest.fixture
def vllm(tmp_path, monkeypatch):
    """Puts a package of vLLM's layout on the path; without numba or a name if asked."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv(integration.ENVIRONMENT_VARIABLE, raising=False)

    def forget() -> None:
        integration.uninstall()
        for name in [n for n in sys.modules if n == "vllm" or n.startswith("vllm.")]:
            del sys.modules[name]
        importlib.invalidate_caches()

    yield lambda **options: (forget(), write(tmp_path, **options))
    forget()


@pytest.mark.parametrize("numba", [True, False])
@pytest.mark.parametrize("imported", [(), MODELS[:1], MODELS[1:], MODELS], ids=len)
def test_both_models_take_our_class_whenever_they_are_imported(vllm, imported, numba):
    vllm(numba=numba)
    for name in imported:
        importlib.import_module(name)
    replaced = integration.install()
    assert integration.install() == replaced
    assert replaced[0] == integration.Replaced(
        SOURCE, "KimiK25FusedVisionProcessor", f"{SOURCE}.KimiK25FusedVisionProcessor"
    )
    assert set(imported) <= {r.module for r in replaced}
    for name in MODELS:
        assert importlib.import_module(name).processor_class() is KimiImageProcessor
    assert os.environ[integration.ENVIRONMENT_VARIABLE] == "1"


@pytest.mark.parametrize("numba", [True, False])
def test_uninstall_puts_everything_back(vllm, numba):
    vllm(numba=numba)
    before = [importlib.import_module(name).processor_class() for name in MODELS]
    integration.install()
    integration.uninstall()
    integration.uninstall()
    assert [importlib.import_module(name).processor_class() for name in MODELS] == before
    assert integration.ENVIRONMENT_VARIABLE not in os.environ
    assert len(integration.install()) == 3 + (not numba)


def test_uninstall_reaches_models_that_were_imported_after_install(vllm):
    vllm()
    integration.install()
    after = [importlib.import_module(name) for name in MODELS]
    assert [model.processor_class() for model in after] == [KimiImageProcessor] * 2
    integration.uninstall()
    theirs = importlib.import_module(SOURCE).KimiK25FusedVisionProcessor
    assert theirs is not KimiImageProcessor
    assert [model.processor_class() for model in after] == [theirs] * 2


def assert_unchanged() -> None:
    assert integration.ENVIRONMENT_VARIABLE not in os.environ
    assert integration._replaced == []
    source = sys.modules.get(SOURCE)
    assert source is None or getattr(source, "KimiK25FusedVisionProcessor", None) is not KimiImageProcessor


@pytest.mark.parametrize("without", ["KimiK25FusedVisionProcessor", "is_numba_available"])
def test_another_layout_is_an_error_that_changes_nothing(vllm, without):
    vllm(without=without)
    with pytest.raises(RuntimeError, match=rf"vLLM .* does not have `{without}` in `vllm\.") as caught:
        integration.install()
    assert "it names it in no module. Nothing was changed" in str(caught.value)
    assert_unchanged()


@pytest.mark.parametrize("model", ["kimi_k25.py", "mm_preprocess.py"])
def test_a_model_that_takes_its_processor_elsewhere_is_an_error_too(vllm, model):
    # The class is where it was, but replacing it there would do nothing for this model.
    vllm(without=SOURCE, only_in=model)
    other = next(name for name in MODELS if not name.endswith(model[:-3]))
    with pytest.raises(RuntimeError, match=rf"have `KimiK25FusedVisionProcessor` in `vllm\..*{model[:-3]}`") as caught:
        integration.install()
    assert f"`{SOURCE}`" in str(caught.value)  # where it was found
    assert f"`{other}`" in str(caught.value)
    assert_unchanged()


def test_a_module_that_is_gone_is_another_layout(vllm, tmp_path):
    vllm()
    (tmp_path / f"{SOURCE.replace('.', '/')}.py").unlink()
    with pytest.raises(RuntimeError, match=rf"have `KimiK25FusedVisionProcessor` in `{SOURCE}`"):
        integration.install()
    assert_unchanged()


@pytest.mark.parametrize("broken", ["vllm/__init__.py", "kimi_k25_vision_fused.py"])
def test_what_vllm_itself_misses_is_not_called_a_layout(vllm, broken):
    vllm(only_in=broken, also="import a_library_that_vllm_needs")
    with pytest.raises(ModuleNotFoundError, match="a_library_that_vllm_needs"):
        integration.install()
    assert_unchanged()


def test_without_vllm_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError, match="install it first"):
        integration.install()


def test_the_plugin_does_nothing_unless_it_is_asked_for(vllm, monkeypatch):
    vllm()
    integration.plugin()
    assert integration._replaced == []
    monkeypatch.setenv(integration.ENVIRONMENT_VARIABLE, "1")
    integration.plugin()
    assert importlib.import_module(MODELS[1]).processor_class() is KimiImageProcessor


def test_vllm_finds_the_plugin_in_every_process(tmp_path):
    write(tmp_path)
    # What vLLM's loader of plugins does.
    code = """
from importlib.metadata import entry_points
(plugin,) = [p for p in entry_points(group="vllm.general_plugins") if p.name == "kimi_jax_prep"]
plugin.load()()
from vllm.model_executor.models.kimi_k25 import processor_class
print(processor_class().__module__)
"""
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    for value, want in (("", SOURCE), ("0", SOURCE), ("1", "kimi_jax_prep.processor.image")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=120,
            env=os.environ | {"PYTHONPATH": path, integration.ENVIRONMENT_VARIABLE: value},
        )
        assert done.stdout.strip() == want, done.stderr


@dataclass
class WithBytes:
    """As vLLM couples a picture with the bytes it came from: everything else is asked of the picture."""

    media: Any
    original_bytes: bytes = field(repr=False)
    io_config: dict[str, Any] | None = None

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        return np.array(self.media, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.media, name)

    def __getitem__(self, index: Any) -> Any:
        return self.media[index]

    def __iter__(self):
        return iter(self.media)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def picture(seed: int, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (40 + 10 * seed, 60, len(mode)), np.uint8)
    return Image.fromarray(pixels)


def image_chunk(seed: int, *, wrapped: bool, mode: str = "RGB") -> dict[str, Any]:
    image = picture(seed, mode)
    return {"type": "image", "image": WithBytes(image, b"original") if wrapped else image, "uuid": f"id-{seed}"}


def video_chunk(seed: int, frames: int = 4) -> dict[str, Any]:
    return {
        "type": "video_chunk",
        "video_chunk": [picture(seed)] * frames,
        "uuid": None,
        "prompt": "00:00:00.000<|media_begin|>video<|media_content|><|media_pad|><|media_end|>",
        "video_idx": 0,
    }


@pytest.fixture
def folder(tmp_path):
    def make(config) -> str:
        KimiImageProcessor(config).save_pretrained(tmp_path)
        return str(tmp_path)

    return make


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("trust", [False, True])
def test_the_calls_of_the_k25_model(folder, wrapped, trust):
    torch = pytest.importorskip("torch", reason="torch is an extra")
    processor = KimiImageProcessor.from_pretrained(folder(K25), revision=None, trust_remote_code=trust)
    assert processor.num_frames_per_chunk == 4
    chunks = [image_chunk(1, wrapped=wrapped), video_chunk(2), image_chunk(3, wrapped=wrapped), video_chunk(0, 2)]
    before = copy.deepcopy(chunks)
    plain = [c | {"image": c["image"].media} if wrapped and "image" in c else c for c in chunks]
    want = reference.preprocess(plain, K25)
    got = processor.preprocess(chunks, return_tensors="pt", do_rescale=True, do_normalize=True)
    assert list(got) == ["pixel_values", "grid_thws"]
    assert (got["pixel_values"].dtype, got["grid_thws"].dtype) == (torch.float32, torch.int64)
    assert_bit_equal(got["pixel_values"].numpy(), want.pixel_values, what="patches")
    assert_bit_equal(got["grid_thws"].numpy(), want.grid_thws, what="grids")
    assert got["grid_thws"].prod(-1).sum() == len(got["pixel_values"])
    assert [processor.media_tokens_calculator(chunk) for chunk in chunks] == list(want.num_tokens)
    assert [list(chunk) for chunk in chunks] == [list(chunk) for chunk in before]
    assert chunks == before
    # An empty request, and what the model unpacks into its own result.
    assert dict(processor.preprocess([], return_tensors="pt", do_rescale=True, do_normalize=True)) == {}
    assert set({**got}) == {"pixel_values", "grid_thws"}


@pytest.mark.parametrize("config", [K25, K3], ids=["k25", "k3"])
def test_bytes_for_the_device(folder, config):
    torch = pytest.importorskip("torch", reason="torch is an extra")
    processor = KimiImageProcessor.from_pretrained(folder(config), revision=None, trust_remote_code=True)
    chunks = [image_chunk(1, wrapped=True), video_chunk(2)]
    bytes_ = processor.preprocess(chunks, return_tensors="pt", do_rescale=False, do_normalize=False)["pixel_values"]
    values = processor.preprocess(chunks, return_tensors="pt", do_rescale=True, do_normalize=True)["pixel_values"]
    assert bytes_.dtype == torch.uint8
    lut = kjp.normalize_lut(config, dtype="float32")[:, 0]
    assert_bit_equal(lut[bytes_.numpy()], values.numpy(), what="normalized later")


@pytest.mark.parametrize(
    "flags",
    [
        {"do_rescale": True, "do_normalize": False},
        {"do_rescale": False, "do_normalize": True},
        {"do_rescale": False},
        {"do_normalize": False},
    ],
)
def test_one_flag_alone_is_an_error(flags):
    with pytest.raises(kjp.PlanError, match="one table does both"):
        KimiImageProcessor().preprocess([picture(0)], **flags)


def test_the_calls_of_the_k3_model_keep_alpha(folder):
    pytest.importorskip("torch", reason="torch is an extra")
    processor = KimiImageProcessor.from_pretrained(folder(K3), revision=None, trust_remote_code=True)
    limits = ("patch_size", "merge_kernel_size", "in_patch_limit", "patch_limit_on_one_side", "fixed_output_tokens")
    assert [processor.media_proc_cfg[key] for key in limits] == [14, 2, 65536, 512, None]
    medias = [image_chunk(k, wrapped=k % 2 == 1, mode="RGBA") for k in range(3)]
    got = processor.preprocess(medias, return_tensors="pt", do_rescale=True, do_normalize=True)
    want = reference.preprocess([picture(k, "RGBA") for k in range(3)], K3)
    assert_bit_equal(got["pixel_values"].numpy(), want.pixel_values, what="patches")
    dropped = reference.preprocess([picture(k, "RGBA").convert("RGB") for k in range(3)], K3)
    assert not np.array_equal(got["pixel_values"].numpy(), dropped.pixel_values)
    assert [processor.media_tokens_calculator(media) for media in medias] == list(want.num_tokens)
