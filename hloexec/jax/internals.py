"""What `hloexec.jax` takes from inside JAX, where its public API has no way to it: all of it stands here.

`VERSIONS` are those that it was tried with. With others, a function that needs the inside says so where it fails to
find what it looks for; everything else stands on the public API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hloexec.errors import UnsupportedError

VERSIONS = ("0.6.0", "0.10.2")
"""The oldest and the newest version that these were tried with."""

CALLBACKS = frozenset(
    f"xla_{kind}python_{platform}_callback"
    for kind in ("", "ffi_", "ffi_partitioned_", "buffer_")
    for platform in ("cpu", "gpu")
)
"""What calls back Python functions of the process that made a module."""
PARTITIONED = "CustomSPMDPartitioning"
"""What calls a function with a partitioning of its own, on several devices."""


def jax_version() -> str:
    """The version of JAX; UnsupportedError without it."""
    try:
        import jax
    except ImportError as error:
        raise UnsupportedError(f"hloexec.jax needs JAX ({error}): install hloexec[jax]") from error
    return str(jax.__version__)


def missing(what: str, error: Exception) -> UnsupportedError:
    """The error where JAX has not, or no longer, what is looked for inside of it."""
    return UnsupportedError(
        f"{what} cannot be reached inside JAX {jax_version()} ({type(error).__name__}: {error}); it was tried with "
        f"{VERSIONS[0]} to {VERSIONS[1]}"
    )


def callbacks_of(lowered: Any) -> Sequence[Callable[..., Any]]:
    """The Python functions that a lowered function calls back, by the numbers that its text has for them."""
    try:
        return tuple(lowered._lowering.compile_args["host_callbacks"])
    except (AttributeError, KeyError, TypeError) as error:
        raise missing("the callbacks of a function", error) from error


def lower_unpartitioned(traced: Any) -> Any:
    """Lower a function with calls that have a partitioning of their own as what they compute on whole arrays."""
    try:
        from jax._src.custom_partitioning import custom_partitioning_p
        from jax._src.interpreters.mlir import LoweringParameters
    except ImportError as error:
        raise missing("custom_partitioning", error) from error
    from jax.extend.core import jaxpr_as_fun
    from jax.interpreters.mlir import lower_fun

    def inlined(context: Any, *values: Any, call: Any, **_: Any) -> Any:
        return lower_fun(jaxpr_as_fun(call), multiple_results=True)(context, *values)

    rules = ((custom_partitioning_p, inlined),)
    return traced.lower(_private_parameters=LoweringParameters(override_lowering_rules=rules))


@contextmanager
def shard_maps_over(mesh: Any) -> Iterator[None]:
    """Within it, each shard_map that is traced is one over `mesh`, whatever mesh it was written for.

    A function of shard_map keeps the mesh that its checks return, so that these must return its own.
    """
    try:
        primitive, checks = _shard_map_internals()
    except ImportError as error:
        raise missing("the mesh of shard_map", error) from error
    bind = primitive.bind
    check = getattr(checks, "_shmap_checks", None)

    def bind_over(*values: Any, **parameters: Any) -> Any:
        return bind(*values, **{**parameters, "mesh": mesh})

    def check_over(own: Any, *parameters: Any, **keywords: Any) -> Any:
        return (mesh if own is None else own, *check(mesh, *parameters, **keywords)[1:])  # type: ignore[misc]

    primitive.bind = bind_over
    if check is not None:
        checks._shmap_checks = check_over
    try:
        yield
    finally:
        del primitive.bind
        if check is not None:
            checks._shmap_checks = check


def _shard_map_internals() -> tuple[Any, Any]:
    """The primitive, which is given the mesh, and the module of what checks the mesh before."""
    try:
        from jax._src import shard_map
    except ImportError:  # before JAX 0.6.1, which checks nothing
        from jax.experimental import shard_map
    return shard_map.shard_map_p, shard_map
