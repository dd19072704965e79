"""Modules of JAX functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hloexec.core.arguments import described, wrong
from hloexec.core.ir import Module
from hloexec.errors import InputError, UnsupportedError
from hloexec.language.interop.exports import chosen_platform, module_of_export
from hloexec.language.interop.through_jaxlib import has_unknown_sizes, text_of_mlir, text_of_module
from hloexec.language.text import parse

_NAME = "<jax>"


def from_jax(function: Callable[..., Any] | Any, *arguments: object, **keywords: object) -> Module:
    """The module of a JAX function for the given arguments, before optimization.

    `function` is any callable that `jax.jit` accepts, or the result of `jax.jit`; arguments are arrays, pytrees of
    arrays, or `jax.ShapeDtypeStruct`. It may also be the result of `.trace(…)`, `.lower(…)` or `.compile()` of a jitted
    function (for the last, the module *after* optimization), of `.compiler_ir(…)`, or of `jax.make_jaxpr`; these take
    no arguments. A `jax.export.Exported` takes none, or those that its symbolic sizes are to fit.

    The module's parameters are the leaves of the arguments in the order of `jax.tree.leaves`; its result is the tuple
    of the result's leaves, or the only leaf. A function that the caller has jitted drops unused arguments, as `jax.jit`
    does by default. A typed PRNG key is an array of its words.

    Raises UnsupportedError without JAX, InputError for something that has no single module, and whatever the function
    itself raises during tracing.
    """
    try:
        import jax
        from jax.export import Exported
        from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
        from jax.stages import Compiled, Lowered, Traced
    except ImportError as error:
        raise UnsupportedError("from_jax needs JAX: install hloexec[jax]") from error
    has_arguments = bool(arguments or keywords)
    if isinstance(function, Exported):
        if not has_arguments:
            text = text_of_mlir(function.mlir_module_serialized, "what is exported")
            return module_of_export(text, function.platforms, _NAME)
        traced = jax.jit(function.call).trace(*arguments, **keywords)
        staged = traced.lower(lowering_platforms=(chosen_platform(function.platforms),))
    elif isinstance(function, (ClosedJaxpr, Compiled, Lowered, Traced)) or _is_ir(function):
        if has_arguments:
            raise InputError(f"{described(function)} has its arguments already; from_jax takes no more")
        staged = function.lower() if isinstance(function, Traced) else function
        if isinstance(function, ClosedJaxpr):
            staged = jax.jit(jaxpr_as_fun(function), keep_unused=True).lower(*function.in_avals)
    elif callable(function) and hasattr(function, "lower"):
        staged = function.lower(*arguments, **keywords)
    elif callable(function):
        staged = jax.jit(function, keep_unused=True).lower(*arguments, **keywords)
    else:
        expected = "a function of JAX, or what .trace(), .lower(), .compile(), jax.make_jaxpr or jax.export gave"
        raise wrong("function", expected, function)
    return parse(_text(staged), filename=_NAME)


def _is_ir(staged: object) -> bool:
    """Whether it is what `.compiler_ir()` gives: a module of MLIR, or with "hlo" a computation of XLA."""
    return hasattr(staged, "get_hlo_module") or (hasattr(staged, "operation") and hasattr(staged, "body"))


def _text(staged: Any) -> str:
    """The HLO text of a stage, or of what `.compiler_ir()` of one gives."""
    if hasattr(staged, "runtime_executable"):
        return text_of_module(_compiled_module(staged))
    if hasattr(staged, "get_hlo_module"):
        return text_of_module(staged.get_hlo_module())
    if hasattr(staged, "operation"):
        return text_of_mlir(staged.operation.get_asm(enable_debug_info=True), _NAME)
    text = text_of_module(_lowered_module(staged))
    return _text(staged.compiler_ir()) if has_unknown_sizes(text) else text


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
