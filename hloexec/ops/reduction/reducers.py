"""Recognizing what a called computation does, by its structure.

Reductions, scatters and collectives call a computation that combines two values. The common ones are a single binary
operation of the two parameters; kernels that know which one can work on whole arrays instead of step by step. Names are
not used: XLA calls an addition `region_3.17`.
"""

from __future__ import annotations

import attrs

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType, Kind
from hloexec.core.ir import ArrayShape, Computation, Instruction
from hloexec.core.ir.editing import replace_instruction
from hloexec.core.lifetimes import remembered

ANNOTATIONS = (
    "Sharding",
    "InspectSharding",
    "xla.sdy.FuncResultSharding",
    "xla.sdy.PropagationBarrier",
    "LayoutConstraint",
    "annotate_device_placement",
    "MoveToHost",
    "MoveToDevice",
    "PinToDevice",
    "PinToDeviceSram",
    "SetBound",
    "AwsNeuronTransferWithStaticRing",
    "AwsNeuronLNCShardingConstraint",
)
"""Targets: how a value is partitioned, laid out, which memory holds it, or how large it gets (SetBound)."""


def is_annotation(instruction: Instruction) -> bool:
    """Whether an instruction is a custom call whose value is its operand."""
    return (
        instruction.opcode == "custom-call"
        and instruction.attributes.custom_call_target in ANNOTATIONS
        and len(instruction.operands) == 1
    )


_ACTIONS = {
    "add": 2,
    "multiply": 2,
    "minimum": 2,
    "maximum": 2,
    "and": 2,
    "or": 2,
    "xor": 2,
    "subtract": 1,
    "divide": 1,
}
"""Of which operations the first operands may be the value so far, if further ones come in any order."""
_COMMUTATIVE = frozenset({"add", "multiply", "minimum", "maximum", "and", "or", "xor"})
_ORDER_OPCODES = frozenset(
    {"parameter", "compare", "select", "minimum", "maximum", "and", "or", "not", "tuple", "copy"}
)
_LOGICAL_OPCODES = frozenset({"and", "or", "not"})


def recognise(computation: Computation) -> str | None:
    """What a computation of two parameters returns, or None for anything unusual.

    `add`, `multiply`, `minimum`, `maximum`, `and`, `or`, `xor`: that operation on the two parameters, in either order;
    `first`, `second`: parameter 0 or 1 as it is. Both parameters and the result must have one element type. Conversions
    of the parameters to a type that holds all their values, undone on the result, are looked through: the operation on
    the wider type, rounded or wrapped, is what the operation on the narrow type is. So are annotations of values, as
    shardings in the reducers of partly manual regions are.
    """
    parameters = computation.parameters
    if len(parameters) != 2:
        return None
    return recognise_value(computation, computation.root, *parameters)


@remembered
def recognise_components(computation: Computation) -> tuple[str, ...] | None:
    """`recognise` for each component of a variadic reducer, or None where one of them is unusual.

    A reducer of N arrays has 2·N parameters and a tuple of N as its root; component k must combine parameters k and
    N + k only. With N = 1 the root may be the bare value.
    """
    parameters, root = computation.parameters, computation.root
    results = computation.operands_of(root) if root.opcode == "tuple" else (root,)
    count = len(results)
    if len(parameters) != 2 * count:
        return None
    found = tuple(
        recognise_value(computation, result, parameters[k], parameters[count + k]) for k, result in enumerate(results)
    )
    known = tuple(name for name in found if name is not None)
    return known if len(known) == count else None


@remembered
def takes_any_order(computation: Computation) -> bool:
    """Whether a combiner of values so far with further ones gives the same, but for rounding, in whichever order these
    come: each value so far stays as it is, or something is added to it, or it is multiplied by, that does not depend on
    any value so far."""
    parameters, root = computation.parameters, computation.root
    results = computation.operands_of(root) if root.opcode == "tuple" else (root,)
    dependent = {parameter.name for parameter in parameters[: len(results)]}
    for instruction in computation:
        if dependent.intersection(instruction.operands):
            dependent.add(instruction.name)
    return all(
        _is_action(computation, result, parameter.name, dependent)
        for result, parameter in zip(results, parameters, strict=False)
    )


def _is_action(computation: Computation, result: Instruction, current: str, dependent: set[str]) -> bool:
    result = _behind_any_conversions(computation, result)
    operands = [_behind_any_conversions(computation, operand) for operand in computation.operands_of(result)]
    places = [number for number, operand in enumerate(operands) if operand.name == current]
    if result.name == current:
        return True
    if len(operands) != 2 or len(places) != 1 or places[0] >= _ACTIONS.get(result.opcode, 0):
        return False
    return operands[1 - places[0]].name not in dependent


def _behind_any_conversions(computation: Computation, instruction: Instruction) -> Instruction:
    while instruction.opcode in ("convert", "copy") or is_annotation(instruction):
        (instruction,) = computation.operands_of(instruction)
    return instruction


def unrecognised(computation: Computation) -> Computation:
    """A computation with the same parameters that is not recognised, so that kernels call it for each step."""
    return replace_instruction(computation, attrs.evolve(computation.root, opcode="call", operands=()))


def chooses_by_order(computation: Computation) -> bool:
    """Whether a computation only compares its parameters and chooses among them, as argmin and argmax do.

    Such a computation has no constants and no arithmetic, so which parameters it returns depends on nothing but how
    they are ordered, and a few representative values tell all there is to know of it.
    """
    return all(
        (instruction.opcode in _ORDER_OPCODES or is_annotation(instruction))
        and (instruction.opcode not in _LOGICAL_OPCODES or _element_type(instruction) is ELEMENT_TYPES["pred"])
        # A total order tells NaNs and zeros of different sign apart by their bits.
        and not (instruction.opcode == "compare" and instruction.attributes.type == "TOTALORDER")
        for instruction in computation
    )


def recognise_value(computation: Computation, root: Instruction, *parameters: Instruction) -> str | None:
    """What `root`, an instruction, is of two parameters: one of the names of `recognise`, or None."""
    narrow = _element_type(root)
    if narrow is None or any(_element_type(parameter) is not narrow for parameter in parameters):
        return None
    names = [parameter.name for parameter in parameters]
    root = _behind_conversions(computation, root, narrow)
    if root.name in names:
        return ("first", "second")[names.index(root.name)]
    if root.opcode not in _COMMUTATIVE:
        return None
    operands = [_behind_conversions(computation, operand, narrow) for operand in computation.operands_of(root)]
    return root.opcode if sorted(operand.name for operand in operands) == sorted(names) else None


def _element_type(instruction: Instruction) -> ElementType | None:
    return instruction.shape.element_type if isinstance(instruction.shape, ArrayShape) else None


def _behind_conversions(computation: Computation, instruction: Instruction, narrow: ElementType) -> Instruction:
    """The instruction whose value reaches `instruction` as it is, or through conversions that keep all of `narrow`."""
    while instruction.opcode in ("convert", "copy") or is_annotation(instruction):
        (operand,) = computation.operands_of(instruction)
        if not all(_holds(_element_type(end), narrow) for end in (operand, instruction)):
            break
        instruction = operand
    return instruction


def _holds(wide: ElementType | None, narrow: ElementType) -> bool:
    """Whether `wide` represents every value of `narrow`."""
    if wide is narrow:
        return True
    if wide is None or wide.bits <= narrow.bits:
        return False
    if wide.is_floating and narrow.is_floating:
        return wide.mantissa_bits >= narrow.mantissa_bits and wide.exponent_bits >= narrow.exponent_bits
    if wide.is_integral and narrow.is_integral:
        return wide.kind is narrow.kind or wide.kind is Kind.SIGNED
    return False
