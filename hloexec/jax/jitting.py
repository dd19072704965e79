"""`hx.jit`: a function of JAX that hloexec runs, where `jax.jit` stands."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar

from hloexec.core.ir import Module
from hloexec.core.structs import frozen
from hloexec.core.values import Value
from hloexec.engine.exec.running import RunOptions, resolve_options, run_with
from hloexec.errors import InputError
from hloexec.jax.lowering import Lowering, Program, is_traced, is_tracing, replaying

if TYPE_CHECKING:
    from hloexec.tools.diffing import Diff
    from hloexec.tools.nan_search import NanSearch
    from hloexec.tools.shadowing import ShadowRun
    from hloexec.tools.tracing import Trace

_Result = TypeVar("_Result")
_RUN_OPTIONS = frozenset(RunOptions.__annotations__) - {"replicas", "partitions", "computation"}


@frozen
class Call:
    """A call of a function: its arguments, the module for them, and their values as the module takes them."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    program: Program
    inputs: tuple[Value, ...]


class Jitted:
    """A function of JAX that hloexec runs; `jit` makes it. Tools look at its last call."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self._run_options = {name: options.pop(name) for name in _RUN_OPTIONS & options.keys()}
        self._resolved = resolve_options("jit", self._run_options)
        self._lowering = Lowering(function, options)
        self._last: Call | None = None

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the function; returns arrays of JAX, in the structure that the function returns."""
        leaves = self._lowering.leaves(arguments, keywords)
        if is_traced(leaves):
            return self._inlined(arguments, keywords)
        program = self._lowering.program(arguments, keywords)
        self._last = call = Call(arguments, keywords, program, program.inputs(leaves))
        return program.outputs(run_with(program.module, call.inputs, self._resolved)[0], leaves)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def _inlined(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """A part of another function that hloexec runs; JAX must not be the one that computes it."""
        if is_tracing():
            return self._lowering.jitted(*arguments, **keywords)
        name = getattr(self, "__name__", "f")
        raise InputError(
            f"{name}, which hloexec runs, cannot be traced by JAX: transform first, as in hx.jit(jax.grad({name})), "
            "and call it outside of jax.jit"
        )

    def module(self, *arguments: Any, **keywords: Any) -> Module:
        """The module for arguments, of which arrays may be `jax.ShapeDtypeStruct`; without any, that of the last call.

        It is the one before optimization and, for several devices, before partitioning.
        """
        if arguments or keywords or self._last is None:
            return self._lowering.program(arguments, keywords).module
        return self._last.program.module

    def nan(self, **options: Any) -> NanSearch:
        """`hloexec.find_nan` in the last call: the instruction and the line where numbers become NaN or infinite."""
        from hloexec.tools.nan_search import find_nan

        return self._look(find_nan, options)

    def trace(self, folder: str | os.PathLike[str], **options: Any) -> Trace:
        """`hloexec.trace` of the last call: all its values, in a new folder."""
        from hloexec.tools.tracing import trace

        return self._look(trace, options, folder)

    def shadow(self, **options: Any) -> ShadowRun:
        """`hloexec.shadow` of the last call: where it loses digits."""
        from hloexec.tools.shadowing import shadow

        return self._look(shadow, options)

    def _look(self, tool: Callable[..., _Result], options: dict[str, Any], *more: Any) -> _Result:
        call = self._last_call()
        with replaying():
            return tool(call.program.module, call.inputs, *more, **(self._run_options | options))

    def diff(self, other: Any, **options: Any) -> Diff:
        """`hloexec.diff` of the last call with another function or module on the same inputs.

        `other` is a function of JAX that takes the same arguments, one of `jit`'s, whose `numerics` are its own, or a
        `Module`.
        """
        from hloexec.tools.diffing import diff

        call = self._last_call()
        of_diff = inspect.signature(diff).parameters
        options = {name: value for name, value in self._run_options.items() if name in of_diff} | options
        if isinstance(other, Jitted):
            ours, theirs = (side._resolved.numerics for side in (self, other))
            options.setdefault("numerics", (ours, theirs))
        if not isinstance(other, Module):
            lowering = other._lowering if isinstance(other, Jitted) else Lowering(other, {})
            other = lowering.program(call.arguments, call.keywords).module
        with replaying():
            return diff(call.program.module, other, call.inputs, **options)

    def _last_call(self) -> Call:
        if self._last is None:
            name = getattr(self, "__name__", "the function")
            raise InputError(f"{name} has not been called yet; nan, trace, shadow and diff look at its last call")
        return self._last


def jit(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """A function of JAX that hloexec runs instead of XLA; a `Jitted`.

    `options` are those of `hloexec.run_devices` (`numerics`, `seed`, `max_iterations`, …; see `hloexec.RunOptions`) and
    those of `jax.jit` (`static_argnums`, `static_argnames`, `in_shardings`, …). Without a function, it is a decorator.

    The function is lowered once for each structure and type of its arguments. Arguments and results are arrays of JAX,
    NumPy arrays or numbers, in pytrees, and typed keys. Python functions that it calls back (`jax.pure_callback`,
    `jax.experimental.io_callback`, `jax.debug.print`) are called during the run; when a tool runs the call again, those
    that return nothing are not. Arguments that are to be donated stay
    valid. On several devices, by shardings of the arguments or `jax.shard_map`, the devices run in lockstep, each
    collective with the values of all; results are whole arrays.

    It cannot be transformed: take `hx.jit(jax.grad(f))`, not `jax.grad(hx.jit(f))`. Inside of a function that `jit`
    runs, it is a part of that, with the options of that.

    Raises UnsupportedError without JAX and for what hloexec cannot run, InputError for invalid options, and whatever
    the function and `hloexec.run_devices` raise.
    """
    if function is None:
        return functools.partial(jit, **options)
    if not callable(function):
        raise InputError(f"hx.jit needs a function of JAX, not {type(function).__name__}")
    return Jitted(function, options)
