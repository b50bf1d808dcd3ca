"""A script for test_meshes.py: the pure functions over eight virtual CPU devices. Prints what it found as JSON.

Each entry: whether the bits are those of one device, the result's partition spec, and compiles of a first and a second
call.
"""

import dataclasses
import itertools
import json
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import kimi_jax_prep as kjp

SMALL = kjp.MediaProcConfig(in_patch_limit=40, patch_limit_on_one_side=512, in_patch_limit_each_frame=20)
CLIP = kjp.MediaProcConfig(
    in_patch_limit=16384,
    patch_limit_on_one_side=512,
    image_mean=(0.48145466, 0.4578275, 0.40821073),
    image_std=(0.26862954, 0.26130258, 0.27577711),
)
LUT = kjp.normalize_lut(CLIP)


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).integers(0, 256, shape, np.uint8)


# Function of one example, and eight examples. The resizes have one strip and two.
FUNCTIONS = {
    "preprocess_frames": (lambda x: kjp.preprocess_frames(x, config=SMALL), noise(8, 110, 151, 3)),
    "chunk-bfloat16": (lambda x: kjp.preprocess_frames(x, config=SMALL, dtype="bfloat16"), noise(8, 2, 90, 61, 3)),
    "resize_bicubic": (lambda x: kjp.resize_bicubic(x, height=300, width=20), noise(8, 60, 31, 3)),
    "patchify": (lambda x: kjp.patchify(x, LUT), noise(8, 30, 57, 3)),
    "normalize": (lambda x: kjp.normalize(x, LUT, dtype="float16"), noise(8, 6, 3, 14, 14)),
    "composite": (lambda x: kjp.composite(x, config=kjp.KIMI_K3), noise(8, 30, 41, 4)),
}
# Functions of all examples at once: the sharded axis is one of their own.
LEADING_AXES = {
    "resize_bicubic": lambda x: kjp.resize_bicubic(x, height=70, width=160),
    "patchify": lambda x: kjp.patchify(x, LUT),
}
# Every way with the function that contains the others, some with each of those.
SOME = {
    AxisType.Explicit: ("jit(vmap)", "jit(lax.map)", "jit(shard_map(vmap))"),
    AxisType.Auto: ("jit(vmap)",),
}
compiles = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, _, **__: compiles.append(name) if name == "/jax/core/compile/backend_compile_duration" else None
)


def ways(function, mesh):
    """Name: (jitted function, partition spec of its input)."""
    sharded = NamedSharding(mesh, P("x"))
    mapped = jax.shard_map(jax.vmap(function), mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    return {
        "jit(vmap)": (jax.jit(jax.vmap(function)), P("x")),
        "jit(lax.map)": (jax.jit(lambda x: jax.lax.map(function, x)), P()),
        "jit(lax.scan)": (jax.jit(lambda x: jax.lax.scan(lambda c, y: (c, function(y)), 0, x)[1]), P()),
        "jit(shard_map(vmap))": (jax.jit(mapped), P("x")),
        "jit(vmap, in and out shardings)": (
            jax.jit(jax.vmap(function), in_shardings=sharded, out_shardings=sharded),
            P("x"),
        ),
        "jit(vmap, donated)": (jax.jit(jax.vmap(function), donate_argnums=0), P("x")),
    }


def bits(array) -> bytes:
    return np.asarray(array).tobytes()


def main() -> None:
    found = {}
    for name, (function, examples) in FUNCTIONS.items():
        want = np.stack([np.asarray(function(x)) for x in examples])
        for kind in (AxisType.Explicit, AxisType.Auto):
            mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
            full = name == "preprocess_frames"
            chosen = [w for w in ways(function, mesh) if full or w in SOME[kind]]
            for x64 in (False, True) if full else (False,):
                with jax.enable_x64(x64):
                    for way in chosen:
                        jitted, spec = ways(function, mesh)[way]
                        counts = []
                        for _ in range(2):
                            x = jax.device_put(examples, NamedSharding(mesh, spec))
                            before = len(compiles)
                            got = jitted(x)
                            counts.append(len(compiles) - before)
                        found[f"{name}, {way}, {kind.name}, x64={x64}"] = {
                            "equal": (got.shape, got.dtype) == (want.shape, want.dtype) and bits(got) == bits(want),
                            "spec": str(got.sharding.spec[0] if len(got.sharding.spec) else None),
                            "compiles": counts,
                        }
            if kind != AxisType.Explicit:
                continue
            x = jax.device_put(examples, NamedSharding(mesh, P("x")))
            with jax.set_mesh(mesh):
                got = jax.vmap(function)(x)
            found[f"{name}, eager vmap in the mesh, {kind.name}"] = {"equal": bits(got) == bits(want)}
    function, examples = FUNCTIONS["preprocess_frames"]
    want = np.stack([np.asarray(function(x)) for x in examples])
    for kinds in itertools.product((AxisType.Explicit, AxisType.Auto), repeat=2):
        mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=kinds)
        x = jax.device_put(examples, NamedSharding(mesh, P(("x", "y"))))
        name = "-".join(kind.name for kind in kinds)
        found[f"two axes, {name}"] = {"equal": bits(jax.jit(jax.vmap(function))(x)) == bits(want)}
        over_x = jax.shard_map(jax.vmap(function), mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
        found[f"one of two axes manual, {name}"] = {"equal": bits(jax.jit(over_x)(x)) == bits(want)}
    for name, function in LEADING_AXES.items():
        mesh = jax.make_mesh((8,), ("x",))
        x = jax.device_put(examples, NamedSharding(mesh, P("x")))
        got = jax.jit(function)(x)
        found[f"{name} of leading axes"] = {
            "equal": bits(got) == bits(function(examples)) and got.sharding.spec[0] == "x"
        }
    batch = kjp.preprocess(list(noise(2, 50, 60, 3)), config=SMALL)
    even = np.concatenate([batch.pixel_values, np.zeros((-len(batch.pixel_values) % 8, 3, 14, 14), np.float32)])
    for kind in (AxisType.Explicit, AxisType.Auto):
        rows = NamedSharding(jax.make_mesh((8,), ("x",), axis_types=(kind,)), P("x"))
        packed = dataclasses.replace(batch, pixel_values=jax.device_put(even, rows)).pack(capacity=64)
        found[f"pack, {kind.name}"] = {
            "equal": bits(packed.pixel_values) == bits(batch.pack(capacity=64).pixel_values)
            and packed.pixel_values.sharding == rows
        }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
