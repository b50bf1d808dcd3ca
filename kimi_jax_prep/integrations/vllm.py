"""`KimiImageProcessor` where vLLM's Kimi K2.5 and K3 models take their image processor. Known to fit vLLM 0.33.

vLLM runs in several processes. `install` does its work in the one that calls it, and sets the environment variable
`KIMI_JAX_PREP_VLLM=1`, with which vLLM's plugin loader calls `plugin` in every process that it starts.
"""

import importlib
import importlib.metadata
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ENVIRONMENT_VARIABLE = "KIMI_JAX_PREP_VLLM"
# Where vLLM 0.33 defines its class, and the models that have copied the name by the time they are imported.
_SOURCE = "vllm.transformers_utils.processors.kimi_k25_vision_fused"
_CLASS = "KimiK25FusedVisionProcessor"
_K25, _K3 = "vllm.model_executor.models.kimi_k25", "vllm.models.kimi_k3.common.mm_preprocess"
# With this the K2.5 model asks whether its class can be used; without numba it takes the checkpoint's.
_QUESTION = "is_numba_available"

_replaced: list[tuple[ModuleType, str, Any]] = []


@dataclass(frozen=True, slots=True)
class Replaced:
    """A name in vLLM that means something of ours now."""

    module: str
    name: str
    before: str


def install() -> tuple[Replaced, ...]:
    """Have vLLM's K2.5 and K3 models use `KimiImageProcessor`. May be called again.

    Processors that vLLM has made already stay as they are: call it before the engine is made.

    Returns:
      What was replaced in this process, now or before.

    Raises:
      ImportError: vLLM is not installed, or itself fails to import; nothing was changed.
      RuntimeError: this vLLM keeps its processor elsewhere, or its models do not take it from there; nothing was
        changed.
    """
    if not _replaced:
        for module, name, value in _replacements():
            _replaced.append((module, name, getattr(module, name)))
            setattr(module, name, value)
        os.environ[ENVIRONMENT_VARIABLE] = "1"
    return tuple(
        Replaced(module.__name__, name, f"{before.__module__}.{before.__qualname__}")
        for module, name, before in _replaced
    )


def uninstall() -> None:
    """Put back what `install` replaced in this process, and start no further process with it."""
    if _replaced:
        ours, theirs = getattr(_replaced[0][0], _CLASS), _replaced[0][2]
        # Models that were imported since then have copied our class.
        for model in (sys.modules.get(name) for name in (_K25, _K3)):
            if model is not None and getattr(model, _CLASS, None) is ours:
                setattr(model, _CLASS, theirs)
    while _replaced:
        module, name, before = _replaced.pop()
        setattr(module, name, before)
    os.environ.pop(ENVIRONMENT_VARIABLE, None)


def plugin() -> None:
    """Called by vLLM in every process it starts; does nothing unless `KIMI_JAX_PREP_VLLM=1` is set."""
    if os.environ.get(ENVIRONMENT_VARIABLE) == "1":
        install()


def _replacements() -> list[tuple[ModuleType, str, Any]]:
    """Everything is looked up before anything is changed."""
    try:
        vllm = importlib.import_module("vllm")
    except ModuleNotFoundError as err:
        if err.name != "vllm":
            raise
        raise ImportError("vLLM is not installed here; install it first: pip install vllm") from err
    from kimi_jax_prep.processor import KimiImageProcessor

    has_numba = _module("vllm.utils.import_utils", _QUESTION).is_numba_available()
    # Models that are imported later copy the name from where it is defined.
    holders = [_SOURCE, *(name for name in (_K25, _K3) if name in sys.modules or (name == _K25 and not has_numba))]
    found: list[tuple[ModuleType, str, Any]] = [(_module(name), _CLASS, KimiImageProcessor) for name in holders]
    if not has_numba:
        found.append((_module(_K25, _QUESTION), _QUESTION, _yes))
    for name in (_K25, _K3):
        _check_model(Path(vllm.__path__[0]), name)
    return found


def _module(name: str, attribute: str = _CLASS) -> ModuleType:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as err:
        if err.name is None or not f"{name}.".startswith(f"{err.name}."):
            raise  # something else that vLLM needs is missing
        raise _another_layout(attribute, name) from err
    if not hasattr(module, attribute):
        raise _another_layout(attribute, name)
    return module


def _check_model(folder: Path, name: str) -> None:
    """The model takes its class from where it is replaced. Read, not imported: K3's would load its GPU kernels."""
    file = folder.joinpath(*name.split(".")[1:]).with_suffix(".py")
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if _SOURCE not in text or _CLASS not in text:
        raise _another_layout(_CLASS, name)


def _another_layout(attribute: str, module: str) -> RuntimeError:
    return RuntimeError(
        f"vLLM {_version()} has no `{attribute}` in `{module}`: it is not laid out as vLLM 0.33, the one known "
        "here. Nothing was changed."
    )


def _version() -> str:
    try:
        return importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return "of an unknown version"


def _yes() -> bool:
    return True
