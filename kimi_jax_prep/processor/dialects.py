"""Which interface a `KimiProcessor` stands in for: the checkpoint's own processor or transformers' port of it."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Outputs(NamedTuple):
    """Defaults of a call, and the names of its results."""

    expand: bool
    """Whether every medium has as many `<|media_pad|>` ids as tokens, or one."""
    return_tensors: str | None
    names: str | None
    """"checkpoint": `grid_thws`. "transformers": `image_grid_thw`. None: as the image processor has it."""


OUTPUTS: dict[str | None, Outputs] = {
    None: Outputs(expand=True, return_tensors=None, names=None),
    "checkpoint": Outputs(expand=False, return_tensors="pt", names="checkpoint"),
    "transformers": Outputs(expand=True, return_tensors=None, names="transformers"),
}
_FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
_TRANSFORMERS_CLASS = "Kimi_K25Processor"
_CHECKPOINT_CLASSES = ("KimiK25Processor", "KimiK3Processor")


def outputs_of_files(contents: Mapping[str, Mapping[str, Any]], *, trust_remote_code: bool = False) -> str | None:
    """The value of `outputs` that stands for the class that a folder asks for.

    `AutoProcessor.from_pretrained` follows `processor_class`, and `auto_map` where there is no such class in
    transformers or the caller trusts remote code. What those classes return is what callers of this folder expect.

    Args:
      contents: of the folder's JSON files, by name.
    """
    files = [contents[name] for name in _FILES if name in contents]
    classes = [file.get("processor_class") for file in files]
    remote = any("AutoProcessor" in (file.get("auto_map") or {}) for file in files)
    if _TRANSFORMERS_CLASS in classes and not (remote and trust_remote_code):
        return "transformers"
    return "checkpoint" if remote or any(name in _CHECKPOINT_CLASSES for name in classes) else None
