"""Two processes over loopback: each prepares its share of a batch, and the global array is right in both."""

import socket
import subprocess
import sys

import numpy as np
from bits import assert_bit_equal

from kimi_jax_prep import KIMI_K25, reference

PROCESS = """
import sys
import jax
number, address = int(sys.argv[1]), sys.argv[2]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(address, num_processes=2, process_id=number, initialization_timeout=60)
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import kimi_jax_prep as kjp

media = [np.random.default_rng(i).integers(0, 256, (40, 70 + i, 3), np.uint8) for i in range(8)]
mine = media[number * 4 : number * 4 + 4]
pack = kjp.preprocess(mine, config=kjp.KIMI_K25, dtype="uint8").pack(capacity=128, max_media=4)

mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
rows = NamedSharding(mesh, P("data"))
patches = jax.make_array_from_process_local_data(rows, pack.pixel_values)
assert patches.shape == (256, 3, 14, 14), patches.shape
lut = kjp.normalize_lut(kjp.KIMI_K25)
normalized = jax.jit(lambda x: kjp.normalize(x, lut), out_shardings=NamedSharding(mesh, P()))(patches)
np.save(f"{number}.npy", np.asarray(normalized.addressable_data(0)))
ids = jax.make_array_from_process_local_data(rows, pack.segment_ids)
used = jax.jit(lambda ids: (ids > 0).sum(), out_shardings=NamedSharding(mesh, P()))(ids)
np.save(f"{number}.used.npy", np.asarray(used.addressable_data(0)))
jax.distributed.shutdown()
"""


def test_each_process_prepares_its_share(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(i), address], cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )
        for i in range(2)
    ]
    try:
        errors = [process.communicate(timeout=180)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], errors
    media = [np.random.default_rng(i).integers(0, 256, (40, 70 + i, 3), np.uint8) for i in range(8)]
    want = np.full((256, 3, 14, 14), -1, np.float32)  # byte 0
    for share in range(2):
        patches = reference.preprocess(media[share * 4 : share * 4 + 4], KIMI_K25).pixel_values
        want[share * 128 : share * 128 + len(patches)] = patches
    for i in range(2):
        assert_bit_equal(np.load(tmp_path / f"{i}.npy"), want, what=f"process {i}")
        assert int(np.load(tmp_path / f"{i}.used.npy")) == reference.preprocess(media, KIMI_K25).pixel_values.shape[0]
