"""The modules of programs, and what XLA:CPU makes of them with the numerics and faults written out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import attrs
import numpy as np

import hloexec
from evaluation.explaining.operations.arithmetic import NARROW_OPERATIONS, Arithmetic, Narrow
from evaluation.explaining.operations.functions import FUNCTIONS
from evaluation.explaining.operations.halves import PROGRAMS
from evaluation.faults.planting import without_calls
from hloexec.core.ir import ArrayShape, Module


@attrs.frozen(eq=False)
class Lowered:
    """A module without calls, and its operations by their numbers: what each is, and its instruction."""

    module: Module
    sites: Mapping[int, tuple[str, str]]
    uncovered: frozenset[str]
    """Kinds of which the module has operations that have no number: not all of them can be given a policy."""

    def numbers(self, kind: str) -> list[int]:
        """Of the operations of a kind."""
        return [number for number, (each, _) in self.sites.items() if each == kind]


@cache
def lowered(name: str) -> Lowered:
    """Lower a program; raises ImportError without JAX."""
    import jax

    arithmetic = Arithmetic(jax)
    program = PROGRAMS[name]
    module = without_calls(hloexec.from_jax(_function(name, arithmetic), *program.arguments))
    names = {}
    for number, (kind, opcode) in enumerate(arithmetic.sites):
        (site,) = (
            f"{computation.name}/{instruction.name}"
            for computation in module
            for instruction in computation
            if instruction.opcode == opcode and f"site{number}_" in (instruction.op_name or "")
        )
        names[number] = (kind, site)
    return Lowered(module, names, _uncovered(module, {site for _, site in names.values()}))


def _uncovered(module: Module, sites: set[str]) -> frozenset[str]:
    """The kinds of operations that are in the module besides those that have numbers."""
    reducers = {each.attributes.to_apply for c in module for each in c if each.opcode == "reduce"}
    kinds = set()
    for computation in module:
        for instruction in computation:
            if f"{computation.name}/{instruction.name}" in sites or not isinstance(instruction.shape, ArrayShape):
                continue
            element_type = instruction.shape.element_type.name
            if instruction.opcode in ("dot", "convolution"):
                kinds.add("product" if element_type == "f32" else "sum")
            elif element_type == "f32" and instruction.opcode in FUNCTIONS.values():
                kinds.add("function")
            elif element_type in ("bf16", "f16") and instruction.opcode == "reduce":
                kinds.add("sum")
            elif element_type in ("bf16", "f16") and instruction.opcode in NARROW_OPERATIONS.values():
                kinds |= {"elementwise"} if computation.name not in reducers else set()
    return frozenset(kinds)


def by_xla(
    name: str,
    how: Mapping[int | str, str],
    fault: str = "",
    *,
    is_exact: bool = False,
    is_plain: bool = False,
    is_otherwise: bool = False,
) -> list[Any]:
    """The leaves that XLA:CPU gives, if operations have these policies and the program has this fault; if `is_plain`,
    what it makes of the module as it is, with its own simplifications; if `is_otherwise`, with sums in the other
    direction, functions rounded correctly, and no fused multiply-adds."""
    return _by_xla(name, tuple(how.items()), fault, is_exact, is_plain, is_otherwise)


@cache
def _by_xla(
    name: str, how: tuple[tuple[int | str, str], ...], fault: str, is_exact: bool, is_plain: bool, is_otherwise: bool
) -> list[Any]:
    import jax

    program = PROGRAMS[name]
    arithmetic = Arithmetic(jax, not is_plain, dict(how), fault, is_exact, is_otherwise)
    jitted = jax.jit(_function(name, arithmetic)).lower(*program.arguments)
    options: dict[str, bool | int] = {"xla_allow_excess_precision": False}
    if is_otherwise:
        # Multiply-adds are fused by LLVM's optimizations.
        options["xla_backend_optimization_level"] = 0
    compiled = jitted.compile(compiler_options=options)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(compiled(*program.arguments))]


def _function(name: str, arithmetic: Arithmetic) -> Any:
    import jax

    def function(*arguments: Any) -> Any:
        arithmetic.sites.clear()
        found = PROGRAMS[name].function(arithmetic, *map(jax.numpy.asarray, arguments))
        return jax.tree.map(arithmetic.left, found, is_leaf=lambda each: isinstance(each, Narrow))

    function.__name__ = name
    return function
