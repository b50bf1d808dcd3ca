"""`KimiImageProcessor` in place of the image processor of vLLM's Kimi K2.5 and K3 models.

vLLM runs in several processes. `install` does its work in the one that calls it, and sets the environment variable
`KIMI_JAX_PREP_VLLM=1`, with which vLLM's plugin loader calls `plugin` in every process that it starts.
"""

import importlib
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ENVIRONMENT_VARIABLE = "KIMI_JAX_PREP_VLLM"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where some versions of vLLM keep what is replaced. Modules are written without the leading `vllm.`."""

    versions: str
    """That were tried."""
    class_name: str
    """The image processor."""
    source: str
    """Module that defines it."""
    models: tuple[str, ...]
    """Modules that import it from there, each under the same name."""
    question: str
    """Function that says whether the class can be used: without numba some models take the checkpoint's instead."""
    question_source: str
    askers: tuple[str, ...]
    """Models that ask it."""


LAYOUT = Layout(
    versions="0.33 and 0.34",
    class_name="KimiK25FusedVisionProcessor",
    source="transformers_utils.processors.kimi_k25_vision_fused",
    models=("model_executor.models.kimi_k25", "models.kimi_k3.common.mm_preprocess"),
    question="is_numba_available",
    question_source="utils.import_utils",
    askers=("model_executor.models.kimi_k25",),
)

_replaced: list[tuple[ModuleType, str, Any]] = []


@dataclass(frozen=True, slots=True)
class Replaced:
    """A name in vLLM that now stands for an object of this library."""

    module: str
    name: str
    before: str


def install() -> tuple[Replaced, ...]:
    """Have vLLM's K2.5 and K3 models use `KimiImageProcessor`. May be called again.

    Call it before the engine is made: processors that vLLM has made already stay as they are.

    Returns:
      What was replaced in this process, now or before.

    Raises:
      ImportError: vLLM is not installed, or itself fails to import; nothing was changed.
      RuntimeError: this vLLM keeps its processor elsewhere, or its models do not take it from there; the message says
        where the name was found. Nothing was changed.
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
    """Put back what `install` replaced in this process, and no longer install it in processes that vLLM starts."""
    if _replaced:
        ours, theirs = getattr(_replaced[0][0], LAYOUT.class_name), _replaced[0][2]
        # Models that were imported since then have copied our class.
        for model in (sys.modules.get(f"vllm.{name}") for name in LAYOUT.models):
            if model is not None and getattr(model, LAYOUT.class_name, None) is ours:
                setattr(model, LAYOUT.class_name, theirs)
    while _replaced:
        module, name, before = _replaced.pop()
        setattr(module, name, before)
    os.environ.pop(ENVIRONMENT_VARIABLE, None)


def plugin() -> None:
    """Called by vLLM in every process it starts; does nothing unless `KIMI_JAX_PREP_VLLM=1` is set."""
    if os.environ.get(ENVIRONMENT_VARIABLE) == "1":
        install()


def _replacements() -> list[tuple[ModuleType, str, Any]]:
    """Modules, names in them, and what they are to mean. Everything is looked up before anything is changed."""
    try:
        vllm = importlib.import_module("vllm")
    except ModuleNotFoundError as err:
        if err.name != "vllm":
            raise
        raise ImportError("vLLM is not installed here; install it first: pip install vllm") from err
    from kimi_jax_prep.processor import KimiImageProcessor

    folder = Path(vllm.__path__[0])
    has_numba = getattr(_module(folder, LAYOUT.question_source, LAYOUT.question), LAYOUT.question)()
    # Models that are imported later copy the name from where it is defined.
    imported = [name for name in LAYOUT.models if f"vllm.{name}" in sys.modules]
    asking = [] if has_numba else list(LAYOUT.askers)
    holders = [LAYOUT.source, *(name for name in LAYOUT.models if name in imported or name in asking)]
    found: list[tuple[ModuleType, str, Any]] = [
        (_module(folder, name, LAYOUT.class_name), LAYOUT.class_name, KimiImageProcessor) for name in holders
    ]
    found += [(_module(folder, name, LAYOUT.question), LAYOUT.question, _yes) for name in asking]
    for name in LAYOUT.models:
        _check_model(folder, name)
    return found


def _module(folder: Path, name: str, attribute: str) -> ModuleType:
    try:
        module = importlib.import_module(f"vllm.{name}")
    except ModuleNotFoundError as err:
        if err.name is None or not f"vllm.{name}.".startswith(f"{err.name}."):
            raise  # something else that vLLM needs is missing
        raise _another_layout(folder, name, attribute) from err
    if not hasattr(module, attribute):
        raise _another_layout(folder, name, attribute)
    return module


def _check_model(folder: Path, name: str) -> None:
    """The model takes its class from where it is replaced. Read, not imported: K3's would load its GPU kernels."""
    file = folder.joinpath(*name.split(".")).with_suffix(".py")
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if f"vllm.{LAYOUT.source}" not in text or LAYOUT.class_name not in text:
        raise _another_layout(folder, name, LAYOUT.class_name)


def _another_layout(folder: Path, module: str, attribute: str) -> RuntimeError:
    where = ", ".join(f"`{name}`" for name in _modules_with(folder, attribute)) or "no module"
    return RuntimeError(
        f"vLLM {_version()} does not have `{attribute}` in `vllm.{module}` as vLLM {LAYOUT.versions} do; "
        f"it names it in {where}. Nothing was changed."
    )


def _modules_with(folder: Path, name: str) -> Iterator[str]:
    """vLLM's modules whose source has this name, for whoever writes the next `Layout`."""
    for file in sorted(folder.rglob("*.py")):
        if name in file.read_text(encoding="utf-8", errors="replace"):
            yield ".".join(("vllm", *file.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")


def _version() -> str:
    try:
        return importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return "of an unknown version"


def _yes() -> bool:
    return True
