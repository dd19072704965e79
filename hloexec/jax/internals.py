"""What `hloexec.jax` takes from inside JAX, where its public API has no way to it: all of it stands here.

`VERSIONS` are those that it was tried with. With others, a function that needs the inside says so where it fails to
find what it looks for; everything else stands on the public API.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

_OPTIONS = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")


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


def key_implementation(dtype: Any) -> str:
    """The name of the generator that typed keys of an element type are for, as `jax.random.wrap_key_data` takes it."""
    try:
        return str(dtype._impl.name)
    except AttributeError as error:
        raise missing("the generator of typed keys", error) from error


def unjitted(function: Any) -> tuple[Any, dict[str, Any]]:
    """What `jax.jit` was given: the function and its options; a function that is not jitted, with none."""
    import jax

    if not isinstance(function, type(jax.jit(len))):
        return function, {}
    try:
        info = function._jit_info
        options = {name: getattr(info, name) for name in _OPTIONS}
        for name in ("in_shardings", "out_shardings"):
            leaves, tree = getattr(info, f"{name}_leaves"), getattr(info, f"{name}_treedef")
            options[name] = jax.tree.unflatten(tree, leaves)
        if compiler_options := dict(getattr(info, "compiler_options_kvs", ())):
            options["compiler_options"] = compiler_options
        return function.__wrapped__, options
    except AttributeError as error:
        raise missing("the options of a jitted function", error) from error


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


def weakly_typed(array: Any) -> Any:
    """The array, with a type that gives way to that of what it meets, as numbers of Python do."""
    try:
        from jax._src.lax.lax import _convert_element_type
    except ImportError as error:
        raise missing("weak types", error) from error
    return _convert_element_type(array, weak_type=True)
