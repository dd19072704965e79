"""Modules straight from JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hloexec.arguments import wrong
from hloexec.errors import InputError, UnsupportedError
from hloexec.interop.through_jaxlib import text_of_module
from hloexec.ir import Module
from hloexec.text import parse

__all__ = ["from_jax"]


def from_jax(function: Callable[..., Any] | Any, *arguments: object, **keywords: object) -> Module:
    """The module of a JAX function at these arguments, as it is before optimization.

    `function` is any callable that `jax.jit` takes, or the result of `jax.jit` with options of its own; arguments are
    arrays, pytrees of them, or `jax.ShapeDtypeStruct`. It may also be what `.lower(…)` or `.compile()` of a jitted
    function gave (the latter is the module *after* optimization); those take no arguments.

    The module's parameters are the leaves of the arguments in `jax.tree.leaves`' order, its result the tuple of the
    result's leaves, or the only leaf. A function jitted by the caller drops the arguments that it does not use, as
    `jax.jit` does by default. A typed PRNG key is an array of its words.

    Raises UnsupportedError without JAX, InputError for what has no single module; what the function itself raises while
    it is traced passes through.
    """
    try:
        import jax
        from jax.stages import Compiled, Lowered
    except ImportError as error:
        raise UnsupportedError("from_jax needs JAX: install hloexec[jax]") from error
    if isinstance(function, (Compiled, Lowered)):
        if arguments or keywords:
            raise InputError(f"a {type(function).__name__} function has its arguments already; from_jax takes no more")
        staged = function
    elif callable(function) and hasattr(function, "lower"):
        staged = function.lower(*arguments, **keywords)
    elif callable(function):
        staged = jax.jit(function, keep_unused=True).lower(*arguments, **keywords)
    else:
        raise wrong("function", "a function, or what .lower() or .compile() of a jitted one gave", function)
    text = text_of_module(_compiled_module(staged) if isinstance(staged, Compiled) else _lowered_module(staged))
    return parse(text, filename="<jax>")


def _lowered_module(lowered: Any) -> Any:
    try:
        return lowered.compiler_ir("hlo").get_hlo_module()
    except Exception as error:
        raise InputError(f"XLA cannot turn what JAX lowered into HLO: {error}") from error


def _compiled_module(compiled: Any) -> Any:
    executable = compiled.runtime_executable()
    modules = [] if executable is None else executable.hlo_modules()
    if len(modules) != 1:
        raise InputError(f"the compiled function has {len(modules)} modules; from_jax takes one")
    return modules[0]
