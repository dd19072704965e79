"""The modules of the reserve's programs, and what XLA:CPU makes of them: with the numerics and faults that JAX writes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import attrs
import numpy as np

import hloexec
from evaluation.explaining.reserve.programs import PROGRAMS
from evaluation.explaining.reserve.written import Written
from evaluation.faults.planting import without_calls
from hloexec.core.ir import Module


@attrs.frozen(eq=False)
class Lowered:
    """A module without calls, and the names of its products by their numbers."""

    module: Module
    sites: Mapping[int, str]


@cache
def lowered(name: str) -> Lowered:
    """Lower a program; raises ImportError without JAX."""
    program = PROGRAMS[name]
    module = without_calls(hloexec.from_jax(_function(name, {}, ""), *program.arguments))
    sites = {}
    for number in range(program.products):
        (sites[number],) = (
            f"{computation.name}/{instruction.name}"
            for computation in module
            for instruction in computation
            if instruction.opcode in ("dot", "convolution") and f"site{number}_" in (instruction.op_name or "")
        )
    return Lowered(module, sites)


def by_xla(name: str, how: Mapping[int, str], fault: str = "") -> list[Any]:
    """The leaves that XLA:CPU gives, if products are written so and the program has this fault."""
    import jax

    program = PROGRAMS[name]
    jitted = jax.jit(_function(name, how, fault)).lower(*program.arguments)
    compiled = jitted.compile(compiler_options={"xla_allow_excess_precision": False})
    return [np.asarray(leaf) for leaf in jax.tree.leaves(compiled(*program.arguments))]


def _function(name: str, how: Mapping[int, str], fault: str) -> Any:
    import jax

    def function(*arguments: Any) -> Any:
        return PROGRAMS[name].function(Written(jax, how, fault), *map(jax.numpy.asarray, arguments))

    function.__name__ = name
    return function
