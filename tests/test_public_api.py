"""The public surface is what `__all__` says, is hard to call wrongly, and costs nothing to import."""

import inspect
import subprocess
import sys
import types

import pytest

import kimi_jax_prep

# What __init__.py takes from the standard library, and what the type checker's hook puts into every file.
FOR_ITSELF = {"importlib", "TYPE_CHECKING", "Any", "jaxtyping"}
PUBLIC_FUNCTIONS = [f for f in (getattr(kimi_jax_prep, n) for n in kimi_jax_prep.__all__) if inspect.isfunction(f)]
HEAVY = {"jax", "jaxlib", "torch", "transformers", "numpy", "PIL"}


def test_nothing_public_outside_dunder_all():
    # Submodules appear here once they are imported, by whoever imports them.
    names = {n for n, value in vars(kimi_jax_prep).items() if not isinstance(value, types.ModuleType)}
    names = {n for n in names if not n.startswith("_")} - FOR_ITSELF
    assert names <= set(kimi_jax_prep.__all__)


def test_no_name_is_listed_twice():
    assert len(set(kimi_jax_prep.__all__)) == len(kimi_jax_prep.__all__)
    assert set(kimi_jax_prep.__all__) <= set(dir(kimi_jax_prep))


@pytest.mark.parametrize("name", kimi_jax_prep.__all__)
def test_every_listed_name_resolves(name):
    assert getattr(kimi_jax_prep, name).__module__.startswith("kimi_jax_prep")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'kimi_jax_prep' has no attribute 'patchfiy'"):
        kimi_jax_prep.patchfiy  # noqa: B018


@pytest.mark.parametrize("fn", PUBLIC_FUNCTIONS, ids=lambda f: f.__name__)
def test_options_and_sizes_are_keyword_only(fn):
    for p in inspect.signature(fn).parameters.values():
        if p.default is not p.empty or p.name in {"width", "height", "size", "fps", "num_frames"}:
            assert p.kind is p.KEYWORD_ONLY, f"{fn.__name__}({p.name})"


@pytest.mark.parametrize("name", kimi_jax_prep.__all__)
def test_every_public_name_has_a_docstring(name):
    assert inspect.getdoc(getattr(kimi_jax_prep, name))


def test_functions_were_found():
    assert len(PUBLIC_FUNCTIONS) >= 10


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    ).stdout


def modules_after(code: str) -> set[str]:
    return set(run(code + "; import sys; print(*sys.modules)").split())


@pytest.mark.parametrize(
    "code",
    [
        "import kimi_jax_prep",
        "from kimi_jax_prep import plan_image, KIMI_K3; plan_image(width=9, height=9, config=KIMI_K3)",
        "from kimi_jax_prep import plan_video, KIMI_K25;"
        "plan_video(num_frames=9, fps=3.0, width=9, height=9, config=KIMI_K25)",
        "from kimi_jax_prep import MediaProcConfig, KIMI_K3; MediaProcConfig.from_dict(KIMI_K3.to_dict())",
    ],
)
def test_configs_and_plans_load_nothing_heavy(code):
    assert not HEAVY & modules_after(code)


def test_the_array_functions_need_neither_torch_nor_transformers():
    loaded = modules_after("import kimi_jax_prep as k; [getattr(k, n) for n in k.__all__]")
    assert not {"torch", "transformers"} & loaded
    assert {"jax", "numpy"} <= loaded


@pytest.mark.parametrize("module", ["jax", "numpy", "PIL"])
def test_the_probe_sees_what_is_loaded(module):
    assert module in modules_after(f"import {module}")


# Backend, environment, x64, warning filters, log handlers, Pillow's limits: all as before.
STATE = """
import json, logging, os, sys, warnings
import jax, PIL.Image, PIL.ImageFile
def state():
    return [dict(os.environ), list(map(str, warnings.filters)), list(map(str, logging.root.handlers)),
            logging.root.level, jax.config.values['jax_enable_x64'], PIL.Image.MAX_IMAGE_PIXELS,
            PIL.ImageFile.LOAD_TRUNCATED_IMAGES, jax._src.xla_bridge.backends_are_initialized()]
before = state()
{code}
print(json.dumps(state() == before))
"""


@pytest.mark.parametrize(
    ("code", "same"),
    [
        ("import kimi_jax_prep as k; [getattr(k, n) for n in k.__all__]", "true"),
        ("from kimi_jax_prep import reference, media", "true"),
        ("jax.devices()", "false"),
        ("os.environ['XLA_FLAGS'] = ''", "false"),
        ("PIL.Image.MAX_IMAGE_PIXELS = None", "false"),
    ],
)
def test_importing_changes_nothing_in_the_process(code, same):
    assert run(STATE.replace("{code}", code)).strip() == same
