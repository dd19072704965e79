"""Random modules that are well-formed whatever is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from types import FunctionType, MappingProxyType

import hypothesis
from hypothesis import strategies as st

from hloexec.core.arguments import require_integer, texts
from hloexec.core.dtypes import ElementType
from hloexec.core.ir import Module
from hloexec.errors import InputError
from hloexec.language.element_types import accepted_element_types
from hloexec.language.text import parse
from hloexec.ops import LATEST
from hloexec.ops.registry import OPCODES
from hloexec.testing import steps
from hloexec.testing.arrays import ARRAY_TYPES, element_types_of
from hloexec.testing.bodies import Body, Program, Step


def modules(
    opcodes: Iterable[str] | None = None,
    element_types: str | ElementType | Iterable[str | ElementType] | None = None,
    *,
    min_instructions: int = 1,
    max_instructions: int = 8,
    max_rank: int = 3,
    min_size: int = 1,
    max_size: int = 5,
    max_elements: int = 200,
    max_depth: int = 1,
) -> st.SearchStrategy[Module]:
    """Modules for one device that verify, print and run, and end soon.

    An entry computation consists of `min_instructions` to `max_instructions` instructions of the `opcodes`, on values
    of the `element_types`, all that can be drawn by default, but for opcodes that only the latest XLA has. The result
    is the last of their values, or those that no other instruction takes; at times there are instructions of which no
    result is made.

    Parameters and constants come with what takes them, and so do tuples and counters of loops, indices (s32),
    predicates, and computations that combine two numbers. Ranks, sizes and numbers of elements keep to their bounds,
    but for what a convolution needs; computations call others `max_depth` levels deep. Opcodes that draw random
    numbers, communicate, call libraries or solve equations are not drawn.

    A failing test shows the text of its module. Examples shrink towards few instructions on one small parameter.

    Raises InputError for an opcode that is unknown or cannot be drawn, or that takes none of the element types.
    """
    require_integer("min_instructions", min_instructions, 1)
    require_integer("max_instructions", max_instructions, min_instructions)
    require_integer("max_elements", max_elements, 1)
    for name, value in (("max_rank", max_rank), ("min_size", min_size), ("max_depth", max_depth)):
        require_integer(name, value, 0)
    require_integer("max_size", max_size, min_size)
    types = element_types_of(element_types)
    chosen = _chosen(None if opcodes is None else texts("opcodes", opcodes), types)

    @st.composite
    def drawn(draw: st.DrawFn) -> Module:
        bounds = (max_rank, min_size, max_size, max_elements)
        program = Program(draw, types, chosen, _steps(), max_depth, draw(st.booleans()), *bounds)
        return _module(program, min_instructions, max_instructions)

    return drawn()


def _module(program: Program, min_instructions: int, max_instructions: int) -> Module:
    entry = Body(program)
    entry.fill(min_instructions, max_instructions)
    results = [entry.result()]
    if program.draw(st.booleans()):
        results = entry.unread()
    root = results[0].name
    if len(results) > 1:
        shape = f"({', '.join(str(value.shape) for value in results)})"
        root = entry.line("t", shape, f"tuple({', '.join(value.name for value in results)})")
    text = program.text(entry.finish("main", root))
    hypothesis.note(text)
    return parse(text)


@cache
def _steps() -> Mapping[str, Step]:
    """What writes each opcode: functions are named after theirs."""
    found = {name: step for name in OPCODES if (step := steps.elementwise_step(name))}
    for module in (steps, steps, steps, steps):
        for name, function in vars(module).items():
            opcode = name.rstrip("_").replace("_", "-")
            if isinstance(function, FunctionType) and function.__module__ == module.__name__ and opcode in OPCODES:
                found[opcode] = Step(function, nests=module is steps)
    return MappingProxyType(dict(sorted(found.items())))


@lru_cache(maxsize=64)
def _chosen(given: tuple[str, ...] | None, types: tuple[ElementType, ...]) -> Mapping[str, tuple[ElementType, ...]]:
    """The opcodes that may come, each with those of the types that it takes."""
    kinds_by_opcode = {}
    for name in [name for name in _steps() if name not in LATEST] if given is None else given:
        if name not in _steps():
            raise InputError(f"opcode {name!r} cannot be drawn; there are {', '.join(_steps())}")
        accepted = accepted_element_types(OPCODES[name]) or ARRAY_TYPES
        kinds = tuple(kind for kind in types if kind in accepted)
        if kinds:
            kinds_by_opcode[name] = kinds
        elif given is not None:
            raise InputError(f"{name} takes none of the element types {', '.join(kind.name for kind in types)}")
    if not kinds_by_opcode:
        raise InputError("opcodes is empty: name at least one")
    return kinds_by_opcode
