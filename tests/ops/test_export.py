"""Exported functions in a fresh process that cannot import this package: equal bits, every platform, StableHLO."""

import subprocess
import sys

import jax
import jax.export
import numpy as np
import pytest
from bits import assert_bit_equal

from kimi_jax_prep import KIMI_K3, KIMI_K25, MediaProcConfig, PlanError, export_preprocess, preprocess_frames

SMALL = MediaProcConfig(in_patch_limit=40, patch_limit_on_one_side=512, in_patch_limit_each_frame=20)
DTYPES = ["float32", "bfloat16", "float16", "uint8"]
BLOCK = "import sys; sys.modules['kimi_jax_prep'] = None; import jax, numpy as np\n"
RUN_JAX = """
import jax.export
for i in range(int(sys.argv[1])):
    exported = jax.export.deserialize(bytearray(open(f"{i}.bin", "rb").read()))
    np.save(f"{i}.got.npy", np.asarray(exported.call(np.load(f"{i}.npy"))).view(np.uint8))
"""
# JAX only brings the compiler here: it neither traces nor knows what the program is.
RUN_STABLEHLO = """
import io
from jaxlib import xla_client
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo
context = ir.Context()
stablehlo.register_dialect(context)
module = stablehlo.deserialize_portable_artifact(context, open("0.bin", "rb").read())
bytecode = io.BytesIO()
module.operation.write_bytecode(bytecode)
device = jax.devices("cpu")[0]
devices = xla_client.DeviceList((device,))
program = device.client.compile_and_load(bytecode.getvalue(), devices, xla_client.CompileOptions())
results = program.execute_sharded([jax.device_put(np.load("0.npy"), device)])
np.save("0.got.npy", np.asarray(results.disassemble_into_single_device_arrays()[0][0]).view(np.uint8))
"""


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).integers(0, 256, shape, np.uint8)


def run(code: str, folder, cases: list[tuple[bytes, np.ndarray]]) -> list[np.ndarray]:
    """The bytes that each exported function returns in another process."""
    for i, (blob, frames) in enumerate(cases):
        (folder / f"{i}.bin").write_bytes(blob)
        np.save(folder / f"{i}.npy", frames)
    command = [sys.executable, "-c", BLOCK + code, str(len(cases))]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [np.load(folder / f"{i}.got.npy") for i in range(len(cases))]


def test_a_process_without_this_package_has_equal_bits(tmp_path):
    one, chunk, many = noise(110, 151, 3), noise(2, 90, 61, 3), noise(3, 60, 50, 3)
    cases = [(export_preprocess(height=110, width=151, config=SMALL, dtype=dtype), one) for dtype in DTYPES]
    cases.append((export_preprocess(height=90, width=61, config=SMALL, num_frames=2), chunk))
    cases.append((export_preprocess(height=60, width=50, config=SMALL, batch=3), many))
    want = [np.asarray(preprocess_frames(one, config=SMALL, dtype=dtype)) for dtype in DTYPES]
    want.append(np.asarray(preprocess_frames(chunk, config=SMALL)))
    want.append(np.stack([np.asarray(preprocess_frames(x, config=SMALL)) for x in many]))
    for i, (got, expected) in enumerate(zip(run(RUN_JAX, tmp_path, cases), want, strict=True)):
        assert_bit_equal(got, expected.view(np.uint8), what=f"case {i}")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_another_compiler_reads_the_stablehlo(tmp_path, dtype):
    frames = noise(110, 151, 3)
    blob = export_preprocess(height=110, width=151, config=SMALL, dtype=dtype, platforms=("cpu",), format="stablehlo")
    (got,) = run(RUN_STABLEHLO, tmp_path, [(blob, frames)])
    assert_bit_equal(got, np.asarray(preprocess_frames(frames, config=SMALL, dtype=dtype)).view(np.uint8), what=dtype)


@pytest.mark.parametrize("config", [KIMI_K25, KIMI_K3, "k3"], ids=["K2.5", "K3", "name"])
def test_what_is_exported(config):
    exported = jax.export.deserialize(bytearray(export_preprocess(height=448, width=60, config=config)))
    assert exported.platforms == ("cpu", "cuda", "tpu")
    assert [(a.shape, str(a.dtype)) for a in exported.in_avals] == [((448, 60, 3), "uint8")]
    assert [(a.shape, str(a.dtype)) for a in exported.out_avals] == [((192, 3, 14, 14), "float32")]
    assert "stablehlo.custom_call" not in exported.mlir_module()


def test_platforms_may_be_one_name():
    exported = jax.export.deserialize(
        bytearray(export_preprocess(height=28, width=28, config=KIMI_K25, platforms="tpu"))
    )
    assert exported.platforms == ("tpu",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"height": 0}, "`height` is 0; expected a positive whole number"),
        ({"width": "28"}, "`width` is '28'; expected a positive whole number"),
        ({"batch": 0}, "`batch` is 0; expected a positive whole number or None"),
        ({"num_frames": 5}, "1 to 4 frames"),
        ({"num_frames": 1.5}, "`num_frames` is 1.5; expected a positive whole number or None"),
        ({"dtype": "int8"}, "`dtype` is 'int8'"),
        ({"format": "onnx"}, "`format` is 'onnx'; expected one of 'jax', 'stablehlo'"),
        ({"platforms": ("gpu",)}, "`platforms` is 'gpu'; expected one of 'cpu', 'cuda', 'rocm', 'tpu'"),
        ({"platforms": ()}, r"`platforms` is \(\); expected at least one platform"),
        ({"format": "stablehlo"}, "`platforms` is .*'cpu', 'cuda', 'tpu'.*; expected one platform"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_options(options, message):
    with pytest.raises(PlanError, match=message):
        export_preprocess(**({"height": 28, "width": 28, "config": KIMI_K25} | options))


def test_without_flatbuffers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    for name in [name for name in sys.modules if name.startswith("jax._src.export.serialization")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"kimi-jax-prep\[export\]"):
        export_preprocess(height=28, width=28, config=KIMI_K25)
