"""A function of JAX for given arguments as a module that hloexec runs, and what leads from the one's values to the
other's.

`jax.jit(f).trace` decides what is a new signature: JAX gives the same jaxpr for arguments of the same structure, types
and static values. On several devices, the module is that before partitioning: each device has the whole arrays, and
regions of shard_map take their shards of them.
"""

from __future__ import annotations

import inspect
import itertools
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import Computation, Instruction, Module, Shape, TupleShape, flat_arrays
from hloexec.core.ir.editing import map_instructions
from hloexec.core.structs import frozen
from hloexec.core.values import TOKEN, Array, Token, Value, arrays_of
from hloexec.errors import UnsupportedError
from hloexec.jax import internals
from hloexec.language.interop.through_jaxlib import from_jax
from hloexec.ops.library_calls.user_calls import register_custom_call, unregister_custom_call
from hloexec.ops.registry import Role, role_of

DONATED = ("donate_argnums", "donate_argnames")
"""The options of `jax.jit` by which arguments are overwritten."""
_INDEX = re.compile(r"index = (\d+)")
_numbers = itertools.count()
_is_tracing: ContextVar[bool] = ContextVar("_is_tracing", default=False)
_is_replaying: ContextVar[bool] = ContextVar("_is_replaying", default=False)


@contextmanager
def _within(state: ContextVar[bool]) -> Iterator[None]:
    token = state.set(True)
    try:
        yield
    finally:
        state.reset(token)


def is_tracing() -> bool:
    """Whether JAX traces a function that hloexec is to run."""
    return _is_tracing.get()


def replaying() -> AbstractContextManager[None]:
    """Runs of a call that has been made: within, what it called back only to tell (`jax.debug.print`) is not called."""
    return _within(_is_replaying)


def is_traced(leaves: Sequence[Any]) -> bool:
    """Whether a value is JAX's stand-in for one while it traces a function."""
    from jax.core import Tracer

    return any(isinstance(leaf, Tracer) for leaf in leaves)


@frozen
class Program:
    """A function of JAX for one signature of its arguments."""

    lowered: Module
    """What JAX lowers it to, before optimization and partitioning."""
    module: Module
    """The same, with callbacks that hloexec calls."""
    in_types: tuple[Any, ...]
    """The abstract values of its leaves, in the order of `jax.tree.leaves`."""
    out_tree: Any
    """The structure of its result."""
    out_types: tuple[Any, ...]
    """`jax.ShapeDtypeStruct` of each leaf of the result."""
    is_weak: tuple[bool, ...]
    """Whether each of them gives way to the type of what it meets, as numbers of Python's do."""
    captured: tuple[Any, ...]
    """Mutable arrays (`jax.new_ref`) that the function closes over: they come behind its leaves."""
    written: tuple[int, ...]
    """Which of both are mutable arrays that the last results are written to."""

    def inputs(self, leaves: Sequence[Any]) -> tuple[Value, ...]:
        """The module's inputs: tokens, then the leaves as arrays; Python's numbers have the types that JAX gives them,
        and typed keys become their words."""
        types = zip((*leaves, *self.captured), self.in_types, strict=True)
        arrays = [_array(leaf, of_type) for leaf, of_type in types]
        tokens = len(self.module.entry.parameters) - len(arrays)
        return (*[TOKEN] * tokens, *arrays)

    def outputs(self, result: Value, leaves: Sequence[Any]) -> Any:
        """What the function returns, as JAX's arrays, from the module's result; mutable arrays take theirs."""
        import jax

        arrays, variables = list(arrays_of(result)), (*leaves, *self.captured)
        for number in reversed(self.written):
            variables[number][...] = arrays.pop()
        types = zip(arrays, self.out_types, self.is_weak, strict=True)
        typed = [_of_jax(array, of_type, is_weak) for array, of_type, is_weak in types]
        return jax.tree.unflatten(self.out_tree, typed)

    def arrays(self, result: Any) -> list[Array]:
        """What the function returned, as the arrays of the module's result."""
        import jax

        return [_array(leaf, of_type) for leaf, of_type in zip(jax.tree.leaves(result), self.out_types, strict=True)]


def _array(leaf: Any, of_type: Any) -> Array:
    import jax

    if jax.dtypes.issubdtype(of_type.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    if of_type.dtype == jax.dtypes.float0:
        return np.zeros(of_type.shape, np.bool_)  # as which JAX lowers what has no derivative
    return np.asarray(leaf[...] if internals.is_reference(of_type) else leaf, of_type.dtype)


def _of_jax(array: Array, of_type: Any, is_weak: bool) -> Any:
    import jax

    if jax.dtypes.issubdtype(of_type.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(array, impl=internals.key_implementation(of_type.dtype))
    if of_type.dtype == jax.dtypes.float0:
        return np.zeros(of_type.shape, jax.dtypes.float0)
    result = jax.device_put(array, of_type.sharding) if of_type.sharding is not None else jax.numpy.asarray(array)
    return internals.weakly_typed(result) if is_weak else result


class Lowering:
    """A function of JAX, lowered once for each signature; `options` are those of `jax.jit`, but nothing is donated."""

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        internals.jax_version()
        import jax

        function, of_jit = internals.unjitted(function)
        options = {name: value for name, value in {**of_jit, **options}.items() if name not in DONATED}
        self.jitted = jax.jit(function, **{**options, "keep_unused": True})
        self._static = _static_parameters(function, options)
        self._programs: dict[Any, Program] = {}

    def leaves(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
        """The leaves of the arguments that are not static, in the order of the module's parameters."""
        import jax

        numbers, names = self._static
        dynamic = tuple(value for number, value in enumerate(arguments) if number not in numbers)
        leaves: list[Any] = jax.tree.leaves(
            (dynamic, {name: value for name, value in keywords.items() if name not in names})
        )
        return leaves

    def program(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Program:
        """The module for the arguments' signature."""
        with _within(_is_tracing):
            traced = self.jitted.trace(*arguments, **keywords)
        shardings = tuple(getattr(leaf, "sharding", None) for leaf in self.leaves(arguments, keywords))
        key = (traced.jaxpr, shardings)
        if key not in self._programs:
            self._programs[key] = lower(traced)
        return self._programs[key]


def _static_parameters(function: Callable[..., Any], options: Mapping[str, Any]) -> tuple[set[int], set[str]]:
    """Numbers and names of static parameters: where one of the two options is not given, it follows from the other."""
    numbers, names = (_as_set(options.get(option)) for option in ("static_argnums", "static_argnames"))
    try:
        parameters = [
            parameter.name
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        return numbers, names
    numbers = {number % len(parameters) if number < 0 else number for number in numbers}
    if not names:
        names = {parameters[number] for number in numbers if number < len(parameters)}
    elif not numbers:
        numbers = {number for number, name in enumerate(parameters) if name in names}
    return numbers, names


def _as_set(option: Any) -> set[Any]:
    return set() if option is None else {option} if isinstance(option, (int, str)) else set(option)


def lower(traced: Any) -> Program:
    """The program of a function that JAX has traced."""
    import jax

    lowered = traced.lower()
    module = from_jax(lowered)
    targets = _targets(module)
    if internals.PARTITIONED in targets:
        lowered = internals.lower_unpartitioned(traced)
        module = from_jax(lowered)
    text_module = module
    if not targets.isdisjoint(internals.CALLBACKS):
        module = _with_callbacks(module, internals.callbacks_of(lowered))
    jaxpr = traced.jaxpr
    captured = tuple(value for value in jaxpr.consts if internals.is_reference(jax.typeof(value)))
    in_types = (*jaxpr.in_avals, *map(jax.typeof, captured))
    written = internals.written_by(lowered) if any(map(internals.is_reference, in_types)) else ()
    # JAX does not expect the results that are written to mutable arrays among those of a lowered function.
    types, tree = jax.tree.flatten(traced.out_info if written else lowered.out_info)
    is_weak = tuple(bool(getattr(of_type, "weak_type", False)) for of_type in jaxpr.out_avals)
    return Program(text_module, module, in_types, tree, tuple(types), is_weak, captured, written)


def _targets(module: Module) -> set[str]:
    return {
        instruction.attributes.custom_call_target
        for computation in module
        for instruction in computation
        if role_of(instruction) is Role.CUSTOM_CALL
    }


def _with_callbacks(module: Module, functions: Sequence[Callable[..., Any]]) -> Module:
    """The module with a target of its own for the Python functions that it calls back, as long as it lives."""
    target = f"hloexec.jax.callback.{next(_numbers)}"

    def call(*operands: Any, backend_config: Any, shape: Shape) -> Any:
        return _call_back(functions[_index(backend_config)], operands, shape)

    def changed(_: Computation, instruction: Instruction) -> Instruction:
        if role_of(instruction) is not Role.CUSTOM_CALL:
            return instruction
        attributes = instruction.attributes
        if attributes.custom_call_target not in internals.CALLBACKS:
            return instruction
        return attrs.evolve(instruction, attributes=attrs.evolve(attributes, custom_call_target=target))

    register_custom_call(target, call)
    edited = map_instructions(module, changed)
    weakref.finalize(edited, unregister_custom_call, target)
    return edited


def _index(backend_config: Any) -> int:
    number = _INDEX.search(str(backend_config))
    if number is None:
        raise UnsupportedError(f"a callback whose configuration has no index: {backend_config}")
    return int(number[1])


def _call_back(function: Callable[..., Any], operands: Sequence[Any], shape: Shape) -> Any:
    """A token comes before the other operands and results of a function whose effects are ordered."""
    if _is_replaying.get() and not flat_arrays(shape):
        return tuple(TOKEN for _ in shape.elements) if isinstance(shape, TupleShape) else TOKEN
    result = tuple(part if isinstance(part, Token) else np.asarray(part) for part in function(*operands))
    return result if isinstance(shape, TupleShape) else result[0]
