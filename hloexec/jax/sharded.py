"""`hx.compare_sharded`: one device against many, for a function of JAX.

The function for one device is the same function, traced with every shard_map over a mesh of one device, or what the
caller gives as `reference`. For the mesh, XLA compiles it and dumps the module on both sides of its partitioner.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hloexec.core.ir import Module
from hloexec.engine.devices.manual_regions import is_boundary
from hloexec.errors import HloError, InputError, UnsupportedError
from hloexec.jax import internals
from hloexec.jax.lowering import Lowering
from hloexec.ops.registry import Role, role_of

if TYPE_CHECKING:
    from hloexec.tools.diffing.sharded import ShardedDiff, ShardedModules

_DUMPED = {
    "xla_backend_optimization_level": 0,  # what LLVM makes of it is not run
    "xla_dump_hlo_as_text": True,
    "xla_dump_large_constants": True,
    "xla_dump_hlo_pass_re": "spmd-partitioning",
}


def compare_sharded(
    step: Callable[..., Any],
    mesh: Any,
    /,
    *arguments: Any,
    reference: Callable[..., Any] | None = None,
    **keywords: Any,
) -> ShardedDiff:
    """Run a function of JAX for one device and for a mesh, both by hloexec on the same whole arrays, and name what
    makes the results differ: a collective, its groups, a slice, padding, with the source line.

    `step` takes `arguments` and `keywords`, whole arrays or arrays that are sharded over `mesh`. It says by shardings
    or `jax.shard_map` how it is divided among the mesh's devices, of which XLA's partitioner makes a module. Where that
    differs from the module before it, the partitioner is to blame; else the program is not the same on many devices.

    For one device, each shard_map is over a mesh of the same axes with one device. Where a function cannot be traced
    so, since it counts on a number of devices, or is then another function, as a pipeline is, `reference` is a function
    for one device, with the same arguments and results.

    Raises UnsupportedError without JAX, for a JAX in which the mesh of shard_map cannot be reached, and where XLA wrote
    no dump; InputError where the mesh has one device, `step` cannot be traced on one device, or an array is not divided
    evenly; and whatever the function and `hloexec.diff` raise.
    """
    from hloexec.tools.diffing.sharded import compare_on_devices

    modules, inputs = lower_sharded(step, mesh, arguments, keywords, reference)
    return compare_on_devices(modules, inputs)


def lower_sharded(
    step: Callable[..., Any],
    mesh: Any,
    arguments: Sequence[Any],
    keywords: dict[str, Any],
    reference: Callable[..., Any] | None = None,
) -> tuple[ShardedModules, Sequence[Any]]:
    """The modules of a function for one device and for a mesh, and their inputs."""
    from hloexec.tools.diffing.sharded import ShardedModules

    internals.jax_version()
    _require(step, mesh, reference)
    lowering = Lowering(step, {})
    with _over(mesh):
        program = lowering.program(arguments, keywords)
        before, after = _partitioned(lowering.jitted.trace(*arguments, **keywords).lower())
    inputs = program.inputs(lowering.leaves(arguments, keywords))
    one = None
    if reference is not None:
        whole, named = _whole((arguments, keywords))
        one = Lowering(reference, {}).program(whole, named).module
    elif _has_manual_regions(program.module):
        one = _on_one_device(step, mesh, arguments, keywords)
    return ShardedModules(one, before, after, program.module), inputs


def _require(step: object, mesh: Any, reference: object) -> None:
    import jax

    for name, function in (("step", step), ("reference", reference)):
        if not callable(function) and not (name == "reference" and function is None):
            raise InputError(f"{name} must be a function of JAX, not {type(function).__name__}")
    if not isinstance(mesh, jax.sharding.Mesh):
        raise InputError(f"mesh must be a jax.sharding.Mesh, not {type(mesh).__name__}: compare_sharded(step, mesh, …)")
    if mesh.size < 2:
        raise InputError(
            "the mesh has one device, so there is nothing to compare; on a CPU, "
            "XLA_FLAGS=--xla_force_host_platform_device_count=8, set before JAX starts, makes eight"
        )


def _over(mesh: Any) -> AbstractContextManager[Any]:
    """The context in which functions that name no mesh are traced over this one."""
    import jax

    use = getattr(jax, "set_mesh", None) or jax.sharding.use_mesh
    context: AbstractContextManager[Any] = use(mesh)
    return context


def _partitioned(lowered: Any) -> tuple[Module, Module]:
    """The module before and behind XLA's partitioner."""
    from hloexec.language.loading import load

    with tempfile.TemporaryDirectory() as folder:
        lowered.compile(compiler_options={"xla_dump_to": folder, **_DUMPED})
        dumped = [sorted(Path(folder).glob(f"*{stage}_spmd-partitioning*.txt")) for stage in ("before", "after")]
        if not all(dumped):
            raise UnsupportedError(
                "XLA has dumped no module before and after its pass spmd-partitioning: a compilation cache may have "
                "had the function (JAX_ENABLE_COMPILATION_CACHE=false), or the mesh is not partitioned by XLA"
            )
        before, after = (load(paths[-1]) for paths in dumped)
    return before, after


def _has_manual_regions(module: Module) -> bool:
    calls = (call for part in module for call in part if role_of(call) is Role.CUSTOM_CALL)
    return any(map(is_boundary, calls))


def _on_one_device(step: Callable[..., Any], mesh: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Module:
    """The function with its shard_maps over a mesh of the same axes with one device each.

    Shardings over `mesh` may stay where shard_map is over an abstract mesh. Where types have shardings, or a function
    takes the mesh from its context, all is on one device.
    """
    ways = [_abstractly, _concretely]
    if any("Explicit" in str(kind) for kind in mesh.axis_types):
        ways.reverse()
    errors = []
    for way in ways:
        try:
            with way(mesh) as moved:
                whole, named = moved((arguments, keywords))
                return Lowering(step, {}).program(whole, named).module
        except HloError:
            raise
        except Exception as error:
            errors.append(error)
    raise InputError(
        "the function cannot be traced on a mesh of one device "
        f"({type(errors[0]).__name__}: {str(errors[0]).partition(chr(10))[0]}); give one for one device, with the same "
        "arguments: compare_sharded(…, reference=f)"
    ) from errors[0]


@contextmanager
def _abstractly(mesh: Any) -> Iterator[Callable[[Any], Any]]:
    """Where shard_maps are over an abstract mesh of one device; gives what moves arguments there."""
    from jax.experimental.xla_metadata import set_xla_metadata

    small = _small(mesh).abstract_mesh
    # What is traced here must not be found by the same calls elsewhere: metadata are a part of the key.
    with set_xla_metadata(hloexec="one device"), internals.shard_maps_over(small):
        yield _whole


@contextmanager
def _concretely(mesh: Any) -> Iterator[Callable[[Any], Any]]:
    """Where all is on a mesh of one device; gives what moves arguments there."""
    import jax
    from jax.sharding import NamedSharding

    small = _small(mesh)

    def moved(leaf: Any) -> Any:
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(sharding, NamedSharding):
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(small, sharding.spec))

    with _over(small), internals.shard_maps_over(small):
        yield lambda tree: jax.tree.map(moved, tree)


def _small(mesh: Any) -> Any:
    import numpy as np
    from jax.sharding import Mesh

    first = np.array(mesh.devices.flat[0]).reshape((1,) * mesh.devices.ndim)
    return Mesh(first, mesh.axis_names, axis_types=mesh.axis_types)


def _whole(tree: Any) -> Any:
    """The same arguments on no device in particular."""
    import jax

    def moved(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if isinstance(leaf, jax.Array) else leaf

    return jax.tree.map(moved, tree)
