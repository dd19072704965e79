"""Modules of JAX functions."""

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
    """The module of a JAX function for the given arguments, before optimization.

    `function` is any callable that `jax.jit` accepts, or the result of `jax.jit`; arguments are arrays, pytrees of
    arrays, or `jax.ShapeDtypeStruct`. It may also be the result of `.lower(…)` or `.compile()` of a jitted function
    (for the latter, the module *after* optimization); these take no arguments.

    The module's parameters are the leaves of the arguments in the order of `jax.tree.leaves`; its result is the tuple
    of the result's leaves, or the only leaf. A function that the caller has jitted drops unused arguments, as `jax.jit`
    does by default. A typed PRNG key is an array of its words.

    Raises UnsupportedError without JAX, InputError for something that has no single module, and whatever the function
    itself raises during tracing.
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
