"""The pure functions under every process-wide setting of JAX, in a forked child, and with inputs that change later."""

import dataclasses
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bits import assert_bit_equal
from jax.sharding import AxisType

from kimi_jax_prep import (
    KIMI_K3,
    KIMI_K25,
    MediaProcConfig,
    composite,
    normalize,
    normalize_lut,
    patchify,
    preprocess_frames,
    reference,
    resize_bicubic,
    unpatchify,
)

SMALL = MediaProcConfig(in_patch_limit=6, patch_limit_on_one_side=512, image_std=(0.5, 0.5, 0.25))
LUT = normalize_lut(SMALL, dtype="bfloat16")


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).integers(0, 256, shape, np.uint8)


# Function and input. The resizes: several strips and taps in a loop; one strip and unrolled taps.
CASES = {
    "resize": (lambda x: resize_bicubic(x, height=260, width=3), noise(270, 40, 3)),
    "resize-loop": (lambda x: resize_bicubic(x, height=3, width=9), noise(60, 8, 3)),
    "patchify": (lambda x: patchify(x, LUT), noise(2, 30, 40, 3)),
    "normalize": (lambda x: normalize(x, normalize_lut(SMALL), dtype="float16"), noise(4, 3, 14, 14)),
    "preprocess_frames": (lambda x: preprocess_frames(x, config=SMALL), noise(60, 50, 3)),
    "composite": (lambda x: composite(x, config=KIMI_K3), noise(20, 30, 4)),
    "unpatchify": (lambda x: unpatchify(x, (1, 2, 2), LUT), np.asarray(patchify(noise(28, 28, 3), LUT))),
}


def mesh(kind: AxisType):
    return jax.make_mesh((1,), ("x",), axis_types=(kind,))


SETTINGS = {
    "transfer_guard": lambda: jax.transfer_guard("disallow"),
    "x64": lambda: jax.enable_x64(True),
    "debug_nans": lambda: jax.debug_nans(True),
    "debug_infs": lambda: jax.debug_infs(True),
    "disable_jit": lambda: jax.disable_jit(True),
    "standard_promotion": lambda: jax.numpy_dtype_promotion("standard"),
    "checking_leaks": jax.checking_leaks,
    "default_device": lambda: jax.default_device(jax.devices()[-1]),
    "explicit_mesh": lambda: jax.set_mesh(mesh(AxisType.Explicit)),
    "auto_mesh": lambda: jax.set_mesh(mesh(AxisType.Auto)),
}


@pytest.fixture(scope="module")
def expected():
    return {name: np.asarray(function(x)) for name, (function, x) in CASES.items()}


@pytest.mark.parametrize("kind", ["numpy", "jit"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_setting_changes_nothing(setting, case, kind, expected):
    function, x = CASES[case]
    if kind == "jit":
        function, x = jax.jit(function), jax.device_put(x)
    with SETTINGS[setting]():
        got = function(x)
    assert_bit_equal(got, expected[case], what=f"{case} {setting}")


@pytest.mark.parametrize("case", CASES)
def test_inputs_may_be_overwritten_after_the_call(case, expected):
    function, x = CASES[case]
    # Aligned, so that JAX would take the memory without a copy.
    memory = np.empty(x.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    mine = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    mine[...] = x
    got = function(mine)
    mine[...] = 0
    assert_bit_equal(got, expected[case], what=case)


def test_one_table_for_all_channels_is_chosen_by_bits():
    # 1e300 makes every entry a zero, whose sign is that of the byte's distance from the mean.
    config = MediaProcConfig(
        in_patch_limit=99, patch_limit_on_one_side=99, image_mean=(0.0, 0.5, 1.0), image_std=(1e300,) * 3
    )
    lut, frames = normalize_lut(config), noise(28, 28, 3)
    assert (lut == 0).all()
    assert len({lut[:, c].tobytes() for c in range(3)}) == 3
    want = lut[frames, np.arange(3)].reshape(2, 14, 2, 14, 3).transpose(0, 2, 4, 1, 3).reshape(4, 3, 14, 14)
    assert_bit_equal(patchify(frames, lut), want, what="signs of zero")
    assert_bit_equal(jax.jit(patchify)(frames, lut), want, what="signs of zero, traced")


@pytest.mark.parametrize(("mean", "std"), [(1e308, 0.5), (0.5, 1e-320), (-1e39, 1.0), (0.0, 5e-324)])
def test_means_and_stds_beyond_float32_give_the_references_values(mean, std):
    config = MediaProcConfig(
        in_patch_limit=99, patch_limit_on_one_side=99, image_mean=(mean,) * 3, image_std=(std,) * 3
    )
    frames = noise(28, 28, 3)
    got = np.asarray(preprocess_frames(frames, config=config))
    assert_bit_equal(got, reference.preprocess([frames], config).pixel_values, what=f"{mean} {std}")


def test_a_square_larger_than_any_image_is_one_cell():
    background = dataclasses.replace(KIMI_K3.transparent_bg_config, chessboard_square_size=10**400)
    config = dataclasses.replace(KIMI_K3, transparent_bg_config=background)
    got = np.asarray(composite(np.zeros((5, 7, 4), np.uint8), config=config))
    assert_bit_equal(got, np.full((5, 7, 3), 255, np.uint8), what="one cell")


@pytest.mark.parametrize("config", ["k3", KIMI_K3.to_dict()], ids=["name", "dict"])
def test_configs_in_every_form(config):
    rgba = noise(20, 30, 4)
    assert_bit_equal(composite(rgba, config=config), composite(rgba, config=KIMI_K3), what="composite")
    assert normalize_lut(config) is normalize_lut(KIMI_K3)
    frames = rgba[..., :3]
    want = preprocess_frames(frames, config=KIMI_K3, dtype="bfloat16")
    assert_bit_equal(preprocess_frames(frames, config=config, dtype=jnp.bfloat16), want, what="preprocess_frames")


@pytest.mark.parametrize("config", [None, 3, [KIMI_K25]], ids=repr)
@pytest.mark.usefixtures("unchecked")
def test_a_wrong_config_says_what_was_expected(config):
    for call in (
        lambda: composite(noise(4, 4, 4), config=config),
        lambda: preprocess_frames(noise(4, 4, 3), config=config),
        lambda: normalize_lut(config),
    ):
        with pytest.raises(TypeError, match="`config` is a MediaProcConfig such as KIMI_K25"):
            call()


# Each call in a child that was forked after JAX had started: an error within seconds instead of a hang.
CHILD = """
import os, sys
import numpy as np
import kimi_jax_prep as kjp
lut = kjp.normalize_lut(kjp.KIMI_K25)
frames = np.zeros((28, 28, 3), np.uint8)
patches = np.asarray(kjp.patchify(frames, lut))
calls = {
    "resize_bicubic": lambda: kjp.resize_bicubic(frames, height=5, width=5),
    "patchify": lambda: kjp.patchify(frames, lut),
    "normalize": lambda: kjp.normalize(np.zeros((4, 3, 14, 14), np.uint8), lut),
    "preprocess_frames": lambda: kjp.preprocess_frames(frames, config=kjp.KIMI_K25),
    "composite": lambda: kjp.composite(np.zeros((28, 28, 4), np.uint8), config=kjp.KIMI_K3),
    "unpatchify": lambda: kjp.unpatchify(patches, (1, 2, 2), lut),
    "export_preprocess": lambda: kjp.export_preprocess(height=28, width=28, config="k3"),
}
pid = os.fork()
if pid:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
status = 1
try:
    for name, call in calls.items():
        try:
            call()
        except RuntimeError as err:
            assert f"`{name}` needs JAX" in str(err) and "'spawn' or 'forkserver'" in str(err), err
        else:
            raise AssertionError(name)
    assert kjp.normalize_lut(kjp.KIMI_K3).shape == (256, 3)
    status = 0
finally:
    os._exit(status)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_gets_an_error_that_names_spawn():
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
