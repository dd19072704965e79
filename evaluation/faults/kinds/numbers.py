"""Faults in constants, reducers and precision."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np

from evaluation.faults.editing import Draft
from evaluation.faults.kinds.kind import Kind, array_of, called_by, is_float, named, of, where
from evaluation.faults.planting import Fault, constant_becomes, reducer_becomes, with_attributes
from evaluation.faults.rounding import (
    accumulated_in,
    flushed,
    nan_is_lost,
    operands_of_few_bits,
    rounded,
    wraps_at,
)
from hloexec.core.ir import Instruction
from hloexec.ops.attributes import computation_names

_REDUCERS = {"add": "maximum", "maximum": "minimum", "minimum": "maximum", "multiply": "add", "and": "or", "or": "and"}
_FOLDS = ("reduce", "reduce-window", "all-reduce")
_ROUNDED = tuple(
    "add subtract multiply divide exponential tanh logistic rsqrt sqrt log dot reduce maximum select".split()
)
_COMPARED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}


def _numbers(draft: Draft, instruction: Instruction, holds: Callable[[float], bool]) -> list[int]:
    """The operands that are a constant of which something holds."""
    found = ((n, draft.scalar(name)) for n, name in enumerate(instruction.operands))
    return [n for n, number in found if number is not None and holds(number)]


def _constant(
    name: str, holds: Callable[[float], bool], change: Callable[[float], float], *types: str, opcodes: str = ""
) -> Kind:
    """A constant operand of some element type is another number."""

    def fits(draft: Draft, instruction: Instruction, number: int) -> bool:
        shape = array_of(draft.operand(instruction, number))
        return shape is not None and shape.element_type.name in types

    def site(draft: Draft, instruction: Instruction) -> bool:
        if opcodes and instruction.opcode not in opcodes.split():
            return False
        if not opcodes and instruction.opcode in ("broadcast", "reshape", "convert", "copy", "bitcast", "fusion"):
            return False
        return any(fits(draft, instruction, n) for n in _numbers(draft, instruction, holds))

    def fault(draft: Draft, site: Instruction, random: Random) -> Fault:
        number = random.choice([n for n in _numbers(draft, site, holds) if fits(draft, site, n)])
        value = draft.scalar(site.operands[number])
        assert value is not None
        return constant_becomes(site.opcode, number, change(value), where=named(site.name))

    return Kind(name, where(site), fault)


def _reducer(draft: Draft, site: Instruction) -> str:
    """The opcode by which it combines, or nothing."""
    if site.opcode not in (*_FOLDS, "scatter", "reduce-scatter"):
        return ""
    (callee,) = computation_names(site.attributes)
    root = draft[draft.roots[callee]]
    kinds = {draft.operand(root, number).opcode for number in range(len(root.operands))}
    return root.opcode if kinds == {"parameter"} and len(root.operands) == 2 else ""


def _folding(name: str, *opcodes: str) -> Kind:
    def fault(draft: Draft, site: Instruction, random: Random) -> Fault:
        return reducer_becomes(site.opcode, _REDUCERS[_reducer(draft, site)], where=named(site.name))

    return Kind(name, where(lambda d, i: i.opcode in opcodes and _reducer(d, i) in _REDUCERS), fault)


def _combiner(draft: Draft, site: Instruction, random: Random) -> Fault:
    old = _reducer(draft, site)
    other = random.choice(["second", "maximum"]) if old == "add" else "add"
    return reducer_becomes("scatter", other, where=named(site.name))


def _comparators(draft: Draft) -> list[Instruction]:
    homes = set(called_by(draft, "sort")) | {
        name
        for each in draft.instructions()
        if each.opcode == "reduce" and len(each.operands) > 2
        for name in computation_names(each.attributes)
    }
    return [
        each
        for home in sorted(homes)
        for each in draft.computations[home].values()
        if each.opcode == "compare" and each.attributes.direction in _COMPARED
    ]


def _comparator(draft: Draft, site: Instruction, random: Random) -> Fault:
    return with_attributes("compare", 0, named(site.name), direction=_COMPARED[site.attributes.direction])


def _kept_in(element_type: str) -> Callable[[Draft, Instruction, Random], Fault]:
    return lambda draft, site, random: rounded(site.opcode, element_type, where=named(site.name))


def _sum_in_bf16(draft: Draft, site: Instruction, random: Random) -> Fault:
    return accumulated_in(site.opcode, "bf16", where=named(site.name))


def _is_sum(draft: Draft, instruction: Instruction) -> bool:
    if not is_float(instruction, "f32"):
        return False
    is_reduce = instruction.opcode == "reduce" and _reducer(draft, instruction) == "add"
    return is_reduce or (instruction.opcode == "dot" and is_float(draft.operand(instruction), "f32"))


def _few_bits(draft: Draft, site: Instruction, random: Random) -> Fault:
    return operands_of_few_bits(where=named(site.name))


def _inexact(draft: Draft, site: Instruction, random: Random) -> Fault:
    """A function's values are a thousandth too large."""

    def fault(draft: Draft) -> None:
        factor = draft.filled(site.name, 1 + 2**-10 if is_float(site, "f32") else 1 + 2**-4, site.shape)
        draft.insert_after(site.name, draft.add(site.name, "multiply", [site.name, factor], site.shape))

    return fault


def _rounded_first(draft: Draft, site: Instruction, random: Random) -> Fault:
    """A number is rounded to the nearest where a conversion cuts its fraction off."""

    def fault(draft: Draft) -> None:
        source = draft.operand(site)
        draft.change(site.name, operands=(draft.add(site.name, "round-nearest-even", [source.name], source.shape),))

    return fault


def _cuts(draft: Draft, instruction: Instruction) -> bool:
    shape = array_of(instruction)
    is_integer = shape is not None and shape.element_type.name in ("s32", "s8", "u8", "u32")
    return instruction.opcode == "convert" and is_integer and is_float(draft.operand(instruction))


def _narrow(draft: Draft, site: Instruction, random: Random) -> Fault:
    return wraps_at(site.opcode, random.choice(["s8", "s16"]), where=named(site.name))


def _is_integer(draft: Draft, instruction: Instruction) -> bool:
    shape = array_of(instruction)
    is_wide = shape is not None and shape.element_type.name in ("s32", "u32")
    return is_wide and instruction.opcode in ("add", "multiply", "subtract", "xor")


_FLOATS = ("f32", "bf16")
_INTEGERS = ("s32", "s64", "s8", "u8", "u32")

KINDS = (
    _constant("constant scaled", lambda x: 1e-3 < abs(x) < 1e4, lambda x: 1.25 * x, *_FLOATS),
    _constant("constant's sign", lambda x: 1e-3 < abs(x) < 1e4, lambda x: -x, *_FLOATS),
    _constant("another epsilon", lambda x: 0 < x <= 1e-3, lambda x: 1e4 * x, *_FLOATS),
    _constant("zero is one", lambda x: x == 0, lambda x: 1.0, *_FLOATS),
    _constant("integer off by one", lambda x: abs(x) < 1000, lambda x: x + 1, *_INTEGERS),
    _constant("another key", lambda x: x > 1000, lambda x: float(int(x) ^ 2), "u32", "s32"),
    _constant("bound of a clamp", lambda x: True, lambda x: x - 1 if x else 0.5, *_FLOATS, *_INTEGERS, opcodes="clamp"),
    _constant(
        "start of a reduction",
        lambda x: True,
        lambda x: 1.0 if x == 0 else 0.5 if np.isinf(x) else 0.0,
        *_FLOATS,
        *_INTEGERS,
        opcodes="reduce reduce-window",
    ),
    _folding("another reducer", *_FOLDS),
    Kind("another combiner", of("scatter"), _combiner),
    Kind("another comparator", _comparators, _comparator),
    Kind("kept in bf16", where(lambda d, i: i.opcode in _ROUNDED and is_float(i, "f32")), _kept_in("bf16")),
    Kind("kept in f16", where(lambda d, i: i.opcode in _ROUNDED and is_float(i, "f32")), _kept_in("f16")),
    Kind("summed in bf16", where(_is_sum), _sum_in_bf16),
    Kind("operands in TF32", where(lambda d, i: i.opcode == "dot" and is_float(i, "f32")), _few_bits),
    Kind(
        "denormals flushed",
        where(lambda d, i: i.opcode in ("multiply", "exponential") and is_float(i, "f32")),
        lambda draft, site, random: flushed(site.opcode, where=named(site.name)),
    ),
    Kind(
        "NaN lost",
        where(lambda d, i: i.opcode == "maximum" and is_float(i)),
        lambda draft, site, random: nan_is_lost(where=named(site.name)),
        wants_nan=True,
    ),
    Kind("inexact function", where(lambda d, i: i.opcode in _ROUNDED[4:10] and is_float(i)), _inexact),
    Kind("rounded instead of cut", where(_cuts), _rounded_first),
    Kind("integer in fewer bits", where(_is_integer), _narrow),
)
