"""`AutoProcessor.from_pretrained` for Kimi's folders: what `register` puts in its place."""

import functools
from collections.abc import Callable
from typing import Any

from kimi_jax_prep.processor.text import KimiProcessor

# For `AutoProcessor` and `AutoImageProcessor`; neither the processor nor its tokenizer has a use for them.
_NOT_PASSED_ON = ("backend", "use_fast")


def auto_processor(original: Callable[..., Any], is_kimis: Callable[[Any, dict[str, Any]], bool]) -> Callable[..., Any]:
    """`AutoProcessor.from_pretrained` that returns a `KimiProcessor` for Kimi's folders; for others as `original`.

    `trust_remote_code=True` goes to the tokenizer alone, since Kimi's own is remote code.

    Args:
      original: the method as a function of the class.
      is_kimis: whether a folder or repository is Kimi's, from its name and the keywords of the call.
    """

    @functools.wraps(original)
    def from_pretrained(cls: type, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_kimis(pretrained_model_name_or_path, kwargs):
            return original(cls, pretrained_model_name_or_path, *args, **kwargs)
        rest = {name: value for name, value in kwargs.items() if name not in _NOT_PASSED_ON}
        return KimiProcessor.from_pretrained(pretrained_model_name_or_path, *args, **rest)

    return from_pretrained
