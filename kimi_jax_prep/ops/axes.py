"""Mesh axes: the pure functions on arrays that are sharded over explicit, auto or manual axes.

Programs here reshape and gather. On explicit axes, JAX asks for the sharding of every such step; on auto axes the
compiler finds it. So each function is computed with the explicit axes of its inputs switched to auto, and states the
sharding of its result alone. Inside `shard_map`, axes are manual and values may vary over them; initial values of loops
and branches must vary likewise.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array, Shaped


def over_auto_axes(
    function: Callable[..., Array], *args: Any, out_spec: Callable[[Sequence[Any]], PartitionSpec]
) -> Shaped[Array, "..."]:
    """Call `function(*args)` with explicit mesh axes switched to auto axes.

    Args:
      function: a function of arrays.
      *args: its arguments. The first decides the mesh, and its partition spec that of the result. None is allowed.
      out_spec: partition spec of the result, from one entry per axis of the first argument.
    """
    sharding: Any = getattr(jax.typeof(args[0]), "sharding", None)
    mesh: Any = getattr(sharding, "mesh", None)
    explicit = _explicit_axes(mesh)
    if not explicit:
        return function(*args)
    spec = [*sharding.spec, *[None] * (len(args[0].shape) - len(sharding.spec))]
    with jax.sharding.use_abstract_mesh(mesh):
        over_auto: Any = jax.sharding.auto_axes(function, axes=explicit, out_sharding=out_spec(spec))
        return over_auto(*args)


def varying_like(value: Shaped[Array, "..."], axes: frozenset[Any]) -> Shaped[Array, "..."]:
    """Mark a value as varying over manual mesh axes, to match a loop's body or another branch."""
    missing = tuple(axes - varying_axes(value))
    return jax.lax.pcast(value, missing, to="varying") if missing else value


def varying_axes(value: Any) -> frozenset[Any]:
    """Return the manual mesh axes that a value, or its `jax.ShapeDtypeStruct`, varies over."""
    of_type = value if isinstance(value, jax.ShapeDtypeStruct) else jax.typeof(value)
    manual = getattr(of_type, "manual_axis_type", None)  # `vma` before JAX 0.10
    return getattr(manual, "varying", None) or getattr(of_type, "vma", None) or frozenset()


def _explicit_axes(mesh: Any) -> tuple[Any, ...]:
    if mesh is None or mesh.empty:
        return ()
    return tuple(n for n, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit)
