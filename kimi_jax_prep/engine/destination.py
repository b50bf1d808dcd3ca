"""Where results go: NumPy arrays, one JAX device, or the devices of a sharding."""

import math
from dataclasses import fields, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from kimi_jax_prep.batch import PatchBatch
from kimi_jax_prep.engine.process import InsideXla
from kimi_jax_prep.errors import PlanError
from kimi_jax_prep.fork import require_jax
from kimi_jax_prep.packed import PackedPatches


class Destination:
    """Puts batches onto devices.

    Args:
      asked: None, a `jax.Device`, a `jax.sharding.Sharding`, or a pair (mesh, partition spec).

    Raises:
      PlanError: something else.
    """

    def __init__(self, asked: Any) -> None:
        if isinstance(asked, tuple):
            if len(asked) != 2 or not isinstance(asked[0], Mesh) or not isinstance(asked[1], PartitionSpec):
                raise PlanError(f"`device` is {asked!r}; a pair is (jax.sharding.Mesh, jax.sharding.PartitionSpec).")
            asked = NamedSharding(*asked)
        if asked is not None and not isinstance(asked, jax.Device | Sharding):
            raise PlanError(
                f"`device` is {asked!r}; expected None, a jax.Device, a jax.sharding.Sharding, or a pair (mesh, "
                "partition spec)."
            )
        self.asked = asked

    def put(self, batch: PatchBatch) -> PatchBatch:
        """The batch on the devices; grids are int32, or int64 under `jax_enable_x64`.

        Raises:
          RuntimeError: the process was forked after JAX had started.
        """
        if self.asked is None:
            return batch
        require_jax("`device`")
        patches = batch.pixel_values
        rows = -len(patches) % self._row_shards()
        if rows:
            patches = np.concatenate([patches, np.zeros((rows, *patches.shape[1:]), patches.dtype)])
        wide = jax.config.jax_enable_x64  # type: ignore[attr-defined]  # set by JAX at run time
        grids = batch.grid_thws if wide else batch.grid_thws.astype(np.int32)
        with InsideXla():
            return replace(
                batch,
                pixel_values=jax.device_put(patches, self.asked),
                grid_thws=jax.device_put(grids, self._replicated()),
            )

    def put_packed(self, packed: PackedPatches) -> PackedPatches:
        """The pack on the devices: fields with `capacity` rows as the sharding says, the others replicated.

        Raises:
          PlanError: the capacity does not divide evenly among the devices.
          RuntimeError: the process was forked after JAX had started.
        """
        if self.asked is None:
            return packed
        require_jax("`device`")
        shards, capacity = self._row_shards(), packed.capacity
        if capacity % shards:
            raise PlanError(f"`capacity` is {capacity}; expected a multiple of {shards}, the shards of the first axis.")
        rows: Any = self.asked
        if isinstance(self.asked, NamedSharding):
            rows = NamedSharding(self.asked.mesh, PartitionSpec(*self.asked.spec[:1]))

        def place(name: str) -> Any:
            if name == "pixel_values":
                return self.asked
            value = getattr(packed, name)
            return rows if value.ndim and len(value) == capacity else self._replicated()

        names = [field.name for field in fields(packed)]
        with InsideXla():
            return replace(packed, **{name: jax.device_put(getattr(packed, name), place(name)) for name in names})

    def _row_shards(self) -> int:
        """How many pieces the first axis of `pixel_values` is cut into."""
        if not isinstance(self.asked, NamedSharding):
            return self.asked.num_devices if isinstance(self.asked, Sharding) else 1
        first = self.asked.spec[0] if len(self.asked.spec) else None
        axes = () if first is None else first if isinstance(first, tuple) else (first,)
        return math.prod(self.asked.mesh.shape[axis] for axis in axes)

    def _replicated(self) -> Any:
        if not isinstance(self.asked, Sharding):
            return self.asked
        mesh = self.asked.mesh if isinstance(self.asked, NamedSharding) else None
        if mesh is None:
            mesh = Mesh(np.array(sorted(self.asked.device_set, key=lambda device: device.id)), ("devices",))
        return NamedSharding(mesh, PartitionSpec())

    def __reduce__(self) -> tuple[Any, ...]:
        # Devices belong to a process: another one looks for those of the same platform and number.
        if isinstance(self.asked, NamedSharding):
            mesh: Any = self.asked.mesh
            named = [(device.platform, device.id) for device in mesh.devices.flat]
            layout = (mesh.devices.shape, mesh.axis_names, mesh.axis_types)
            return _found_sharding, (named, layout, tuple(self.asked.spec))
        if isinstance(self.asked, Sharding):
            raise TypeError(
                f"a Preprocessor with a {type(self.asked).__name__} cannot be pickled; use a NamedSharding."
            )
        return _found_device, ((self.asked.platform, self.asked.id) if self.asked is not None else None,)


def _found_device(named: tuple[str, int] | None) -> Destination:
    return Destination(None if named is None else _device(*named))


def _found_sharding(
    named: list[tuple[str, int]], layout: tuple[tuple[int, ...], Any, Any], spec: tuple[Any, ...]
) -> Destination:
    shape, names, types = layout
    devices = np.empty(len(named), object)
    devices[:] = [_device(*one) for one in named]
    mesh = Mesh(devices.reshape(shape), names, axis_types=types)
    return Destination(NamedSharding(mesh, PartitionSpec(*spec)))


def _device(platform: str, number: int) -> Any:
    for device in jax.devices(platform):
        if device.id == number:
            return device
    raise RuntimeError(f"this process has no {platform} device number {number}, which the Preprocessor was made with.")
