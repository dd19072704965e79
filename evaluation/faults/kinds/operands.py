"""Faults in what is computed of what: operands, opcodes, what is left out or done twice."""

from __future__ import annotations

from random import Random

from evaluation.faults.editing import Draft
from evaluation.faults.kinds.kind import Kind, array_of, is_float, named, of, pairs_with, same, where
from evaluation.faults.planting import Fault, becomes, doubled, dropped, swapped, with_attributes
from hloexec.core.ir import Instruction
from hloexec.ops.registry import OPCODES, Role

_NOT_COMMUTATIVE = tuple("subtract divide power remainder atan2 dot shift-left shift-right-logical".split())
_OPCODES = {
    "another sum or product": "add subtract, subtract add, multiply add, divide multiply",
    "another function": (
        "sine cosine, cosine sine, exponential exponential-minus-one, exponential-minus-one exponential, "
        "log log-plus-one, log-plus-one log, tanh logistic, logistic tanh, rsqrt sqrt, sqrt rsqrt, "
        "erf tanh, negate abs, abs negate, sign abs, not negate"
    ),
    "another extremum": "maximum minimum, minimum maximum",
    "another rounding": (
        "floor ceil, ceil floor, round-nearest-even floor, round-nearest-afz round-nearest-even, "
        "shift-right-arithmetic shift-right-logical, shift-right-logical shift-right-arithmetic"
    ),
    "another connective": "and or, or and, xor or",
}
_DIRECTIONS = {"LT": "LE", "LE": "LT", "GT": "GE", "GE": "GT", "EQ": "NE", "NE": "EQ"}
_REVERSED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}
_KEPT = {"select": (1, 2), "clamp": (1,)}
"""Which operands an instruction may be left out for."""
_MOVEMENT = tuple("reverse transpose dynamic-update-slice reduce-window".split())


def _swapping(name: str, first: int, second: int, *opcodes: str) -> Kind:
    def fault(draft: Draft, site: Instruction, random: Random) -> Fault:
        return swapped(site.opcode, where=named(site.name), first=first, second=second)

    def holds(draft: Draft, instruction: Instruction) -> bool:
        has_both = instruction.opcode in opcodes and len(instruction.operands) > second
        return has_both and same(draft.operand(instruction, first), draft.operand(instruction, second))

    return Kind(name, where(holds), fault)


def _becoming(name: str, table: dict[str, str]) -> Kind:
    def fault(draft: Draft, site: Instruction, random: Random) -> Fault:
        return becomes(site.opcode, table[site.opcode], where=named(site.name))

    return Kind(name, of(*table), fault)


def _turned(name: str, table: dict[str, str]) -> Kind:
    """A comparison in another direction."""

    def fault(draft: Draft, site: Instruction, random: Random) -> Fault:
        return with_attributes("compare", 0, named(site.name), direction=table[site.attributes.direction])

    return Kind(name, where(lambda d, i: i.opcode == "compare" and i.attributes.direction in table), fault)


def _kept(draft: Draft, instruction: Instruction) -> list[int]:
    """The operands that may stand for an instruction."""
    numbers = _KEPT.get(instruction.opcode, (0, 1))
    return [n for n in numbers if n < len(instruction.operands) and same(instruction, draft.operand(instruction, n))]


def _dropping(name: str, *opcodes: str) -> Kind:
    def fault(draft: Draft, site: Instruction, random: Random) -> Fault:
        return dropped(site.opcode, where=named(site.name), keeps=random.choice(_kept(draft, site)))

    def holds(draft: Draft, instruction: Instruction) -> bool:
        return (instruction.opcode in opcodes if opcodes else _is_elementwise(instruction)) and bool(
            _kept(draft, instruction)
        )

    return Kind(name, where(holds), fault)


def _is_elementwise(instruction: Instruction) -> bool:
    entry = OPCODES[instruction.opcode]
    return entry.role is Role.KERNEL and entry.attributes is None and instruction.opcode not in ("select", "copy")


def _applied_twice(draft: Draft, site: Instruction, random: Random) -> Fault:
    return doubled(site.opcode, where=named(site.name), operand=1)


def _another_value(draft: Draft, site: Instruction, random: Random) -> Fault:
    """An operand is some other value of the same shape."""

    def fault(draft: Draft) -> None:
        instruction = draft[site.name]
        numbers = list(range(len(instruction.operands)))
        random.shuffle(numbers)
        near = pairs_with(draft, instruction)
        for number in numbers:
            operand = draft.operand(instruction, number)
            fitting = [name for name in near if same(draft[name], operand)]
            if fitting and draft.scalar(operand.name) is None:
                operands = [*instruction.operands]
                operands[number] = random.choice(fitting[-6:])
                draft.change(instruction.name, operands=tuple(operands))
                return
        raise LookupError(f"{site.name} may take nothing else")

    return fault


def _sign(draft: Draft, site: Instruction, random: Random) -> Fault:
    """An operand has the other sign."""

    def fault(draft: Draft) -> None:
        operands = [*site.operands]
        number = random.randrange(len(operands))
        operands[number] = draft.add(site.name, "negate", [operands[number]], draft[operands[number]].shape)
        draft.change(site.name, operands=tuple(operands))

    return fault


def _negated(draft: Draft, site: Instruction, random: Random) -> Fault:
    """A predicate is the other way round."""

    def fault(draft: Draft) -> None:
        shape = draft.operand(site).shape
        negated = draft.add(site.name, "not", [site.operands[0]], shape)
        draft.change(site.name, operands=(negated, *site.operands[1:]))

    return fault


def _table(text: str) -> dict[str, str]:
    return dict(zip(text.replace(",", "").split()[::2], text.replace(",", "").split()[1::2], strict=True))


def _is_signed(draft: Draft, instruction: Instruction) -> bool:
    return instruction.opcode in ("add", "subtract", "exponential", "dot", "tanh") and is_float(instruction)


def _takes_predicate(draft: Draft, instruction: Instruction) -> bool:
    if instruction.opcode not in ("select", "convert"):
        return False
    shape = array_of(draft.operand(instruction))
    return shape is not None and shape.element_type.name == "pred"


KINDS = (
    _swapping("operands exchanged", 0, 1, *_NOT_COMMUTATIVE),
    _swapping("branches of a select exchanged", 1, 2, "select"),
    _swapping("concatenated in another order", 0, 1, "concatenate"),
    _swapping("indices exchanged", 1, 2, "dynamic-slice"),
    *(_becoming(name, _table(text)) for name, text in _OPCODES.items()),
    _turned("strictness of a comparison", _DIRECTIONS),
    _turned("direction of a comparison", _REVERSED),
    _dropping("left out"),
    _dropping("select or clamp left out", "select", "clamp"),
    _dropping("movement left out", *_MOVEMENT),
    Kind("applied twice", of("add", "multiply", "subtract", "divide"), _applied_twice),
    Kind("another value", where(lambda d, i: bool(i.operands) and i.opcode != "copy"), _another_value),
    Kind("sign", where(_is_signed), _sign),
    Kind("predicate negated", where(_takes_predicate), _negated),
)
