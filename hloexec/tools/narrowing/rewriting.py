"""A module with some of its instructions in narrower types, which of them can be, and what they cost.

Which instructions can be narrowed, and what they cost.

Contractions and elementwise operations on floats can. Everything else keeps its type: sums would accumulate in it,
collectives and library calls state theirs elsewhere, and what moves elements follows its operands anyway.

A module with some of its instructions in narrower types.

An elementwise instruction takes and gives the narrow type. A contraction takes it, and gives what the products are
added up in: f32, as matrix units do. Operands are converted where they are not narrow yet, once for all that use them,
and what is wide takes narrow results converted back. What only moves or selects elements that are narrow stays narrow,
which changes no value; parameters, results, and what loops carry keep their types.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.analysis.calls import applied_computations, entered_computations
from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.ir import ArrayShape, Computation, Instruction, Literal, Module
from hloexec.core.ir.editing import change_computations, take_name
from hloexec.core.structs import frozen
from hloexec.engine.plan.schedule import after_dependencies
from hloexec.ops.attributes import attribute_fields, computation_names
from hloexec.ops.control.flow import make_conversion
from hloexec.ops.costs import contraction_of
from hloexec.ops.elementwise.selection import Convert, convert
from hloexec.ops.registry import Entry, Role, find_opcode, role_of, traits_of
from hloexec.ops.relations import Place
from hloexec.ops.traits import Rounding

CONTRACTION = "contraction"
ELEMENTWISE = "elementwise"
KINDS = (CONTRACTION, ELEMENTWISE)

_ROUNDS_PLAINLY = (Rounding.NONE, Rounding.ONCE, Rounding.FUNCTION)
_NUMBER = re.compile(r"\d+")


@frozen(eq=False)
class Candidate:
    """An instruction that could compute in a narrower type."""

    computation: Computation
    instruction: Instruction
    kind: str
    """`CONTRACTION` or `ELEMENTWISE`."""
    element_type: ElementType
    """Of its operands that are floats."""
    flops: int
    """Of one run: two per product of a contraction, one per element of an elementwise operation."""
    narrowed_bytes: int
    """Of one run, in its own type: what it reads and writes that is narrowed. The result of a contraction is not."""
    other_bytes: int
    """What else it reads and writes."""

    @property
    def place(self) -> Place:
        return self.computation.name, self.instruction.name

    def can_be(self, narrow: ElementType) -> bool:
        return narrow.bits < self.element_type.bits

    @property
    def likeness(self) -> tuple[Any, ...]:
        """Equal for instructions that do the same, as in layers of one network."""
        operands = self.computation.operands_of(self.instruction)
        name = _NUMBER.sub("", self.instruction.op_name or "")
        shapes = tuple(str(operand.shape) for operand in operands)
        return self.instruction.opcode, str(self.instruction.shape), shapes, repr(self.instruction.attributes), name


def candidates_of(module: Module, kinds: Collection[str] = KINDS) -> list[Candidate]:
    """The instructions of these kinds that can be narrowed, in the order of the text."""
    candidates = []
    for computation in _program(module):
        for instruction in computation:
            candidate = _candidate(computation, instruction)
            if candidate is not None and candidate.kind in kinds:
                candidates.append(candidate)
    return candidates


def static_array(instruction: Instruction) -> ArrayShape | None:
    """The shape of an array of known size; None for tuples and others."""
    shape = instruction.shape
    return shape if isinstance(shape, ArrayShape) and shape.is_array and not shape.is_dynamic else None


def _program(module: Module) -> list[Computation]:
    """The computations that are the program, and no part of an instruction such as a reduction as well."""
    entered = entered_computations(module)
    inner = {
        name for computation in entered for instruction in computation for name in applied_computations(instruction)
    }
    names = {computation.name for computation in entered} - inner
    return [computation for computation in module if computation.name in names]


def _candidate(computation: Computation, instruction: Instruction) -> Candidate | None:
    entry = find_opcode(instruction.opcode)
    shape = static_array(instruction)
    if entry is None or shape is None or not shape.element_type.is_floating or not _is_plain(entry, instruction):
        return None
    operands = [static_array(operand) for operand in computation.operands_of(instruction)]
    arrays = [operand for operand in operands if operand is not None]
    if len(arrays) < len(operands) or not arrays:
        return None
    traits = entry.traits
    cost = contraction_of(instruction, arrays) if traits.contraction is not None else None
    if cost is not None:
        types = {operand.element_type for operand in arrays if not _is_exact_kind(operand)}
        kind, flops, result_bytes = CONTRACTION, cost.flops, 0
    elif entry.is_elementwise and entry.rounding in _ROUNDS_PLAINLY and not traits.converts:
        types = {operand.element_type for operand in arrays if not _is_exact_kind(operand)} | {shape.element_type}
        kind, flops, result_bytes = ELEMENTWISE, shape.element_count, shape.byte_size
    else:
        return None
    if len(types) > 1 or not all(element_type.is_floating for element_type in types):
        return None
    narrowed = result_bytes + sum(operand.byte_size for operand in _narrowed(kind, arrays))
    total = shape.byte_size + sum(operand.byte_size for operand in arrays)
    return Candidate(computation, instruction, kind, types.pop(), flops, narrowed, total - narrowed)


def _is_plain(entry: Entry, instruction: Instruction) -> bool:
    return entry.role is Role.KERNEL and entry.is_pure and not any(computation_names(instruction.attributes))


def _is_exact_kind(shape: ArrayShape) -> bool:
    """Whether elements are integers or booleans, which stay as they are."""
    return not shape.element_type.is_inexact


def _narrowed(kind: str, operands: Sequence[ArrayShape]) -> list[ArrayShape]:
    return (
        list(operands[:2])
        if kind == CONTRACTION
        else [operand for operand in operands if operand.element_type.is_floating]
    )


@frozen(eq=False)
class Rewritten:
    """A module with narrow instructions."""

    module: Module
    origins: Mapping[Place, Place]
    """For each instruction whose result is narrower than in the original, the one whose value it holds."""


def rewritten(module: Module, chosen: Mapping[Place, ElementType], *, is_portable: bool = False) -> Rewritten:
    """The module with the chosen instructions (see `candidates_of`) in the types that they are to have.

    If it is to be portable, contractions take their narrow operands converted back, for implementations that multiply
    f32 only. The products are the same, as f32 has those of any narrower type exactly.
    """
    by_computation: dict[str, dict[str, ElementType]] = defaultdict(dict)
    for (home, name), element_type in chosen.items():
        by_computation[home][name] = element_type
    computations: list[Computation] = []
    origins: dict[Place, Place] = {}
    for computation in module:
        types = by_computation.get(computation.name)
        if types is None:
            computations.append(computation)
            continue
        rewriting = _Rewriting(computation, types, is_portable=is_portable)
        computations.append(rewriting.rewritten())
        for name, origin in rewriting.origins.items():
            origins[computation.name, name] = computation.name, origin
    return Rewritten(change_computations(module, computations), origins)


class _Rewriting:
    """One computation, instruction by instruction."""

    def __init__(self, computation: Computation, chosen: Mapping[str, ElementType], *, is_portable: bool) -> None:
        self._computation = computation
        self._chosen = chosen
        self._names = {instruction.name for instruction in computation}
        self._is_portable = is_portable
        self._widened: dict[str, str] = {}
        """Narrow operands of contractions, converted back."""
        self._made: list[Instruction] = []
        self._forms: dict[str, dict[ElementType, str]] = {}
        """For each array of the original, the instructions that hold it, by their types; the first one computes it."""
        self.origins: dict[str, str] = {}

    def rewritten(self) -> Computation:
        computation = self._computation
        for instruction in _in_order(computation):
            self._add(instruction)
        root = computation.root
        root_name = root.name if static_array(root) is None else self._form(root.name, _declared(root))
        kept = self._used(root_name)
        present = {instruction.name for instruction in kept}
        final = [
            attrs.evolve(
                each, control_predecessors=tuple(name for name in each.control_predecessors if name in present)
            )
            for each in kept
        ]
        return attrs.evolve(computation, instructions=tuple(final), root_name=root_name, span=None)

    def _add(self, instruction: Instruction) -> None:
        chosen = self._chosen.get(instruction.name)
        if chosen is not None:
            self._narrow(instruction, chosen)
            return
        if static_array(instruction) is None:
            self._emit(instruction, tuple(map(self._declared_form, instruction.operands)))
            return
        source = self._converted_from(instruction)
        if source is not None:
            # What it converts is there in its own type, or a narrower one that it only would widen.
            native = self._native(source)
            self._forms[instruction.name] = {native: self._forms[source][native]}
            self._names.discard(instruction.name)
            return
        followed = self._followed_type(instruction)
        if followed is None:
            operands = tuple(map(self._declared_form, instruction.operands))
            self._emit(instruction, operands)
            self._forms[instruction.name] = {_declared(instruction): instruction.name}
        else:
            self._emit_narrow(instruction, followed, followed)

    def _narrow(self, instruction: Instruction, narrow: ElementType) -> None:
        """A chosen instruction: elementwise all in its narrow type, a contraction with a result as wide as its sums."""
        if traits_of(instruction).contraction is None:
            self._emit_narrow(instruction, narrow, narrow)
            return
        sums = element_type_of(narrow.accumulate)
        declared = _declared(instruction)
        result = declared if declared.bits <= sums.bits else sums
        usual = attrs.evolve(instruction, attributes=_usual(instruction.attributes))
        self._emit_narrow(usual, narrow, result, widens=self._is_portable)

    def _emit_narrow(
        self, instruction: Instruction, narrow: ElementType, result: ElementType, *, widens: bool = False
    ) -> None:
        by_name = self._computation.by_name
        operands = tuple(
            self._form(name, narrow if _is_float(by_name[name]) else _declared(by_name[name]))
            for name in instruction.operands
        )
        if widens:
            pairs = zip(instruction.operands, operands, strict=True)
            operands = tuple(
                self._back(name, form, result) if _is_float(by_name[name]) else form for name, form in pairs
            )
        shape = instruction.shape
        assert isinstance(shape, ArrayShape)
        new_shape = shape.with_element_type(result)
        unknown: dict[str, Any] = dict.fromkeys(("backend_config", "statistics", "original_value"))
        self._emit(attrs.evolve(instruction, shape=new_shape, **unknown), operands)
        self._forms[instruction.name] = {result: instruction.name}
        if result.bits < _declared(instruction).bits:
            self.origins[instruction.name] = instruction.name

    def _emit(self, instruction: Instruction, operands: tuple[str, ...]) -> None:
        self._made.append(attrs.evolve(instruction, operands=operands, span=None))

    def _declared_form(self, name: str) -> str:
        """An operand in the type that the original has it in."""
        operand = self._computation.by_name[name]
        return name if static_array(operand) is None else self._form(name, _declared(operand))

    def _form(self, name: str, wanted: ElementType) -> str:
        """The name of the instruction that holds a value of the original in a type; it is made where there is none."""
        forms = self._forms[name]
        if wanted in forms:
            return forms[wanted]
        original = self._computation.by_name[name]
        shape = original.shape
        assert isinstance(shape, ArrayShape)
        made = self._unused_name(name, wanted)
        narrower = wanted.bits < _declared(original).bits
        literal = _array_literal(original)
        common: dict[str, Any] = {
            "shape": shape.with_element_type(wanted),
            "metadata": original.metadata,
            "sharding": original.sharding,
        }
        if literal is not None and narrower:
            attributes = attrs.evolve(original.attributes, literal=_converted(literal, wanted))
            self._made.append(Instruction(name=made, opcode=original.opcode, attributes=attributes, **common))
        elif narrower and _repeats(original):
            operands = (self._form(original.operands[0], wanted), *map(self._declared_form, original.operands[1:]))
            self._emit(attrs.evolve(original, name=made, **common), operands)
        else:
            operand = next(iter(forms.values()))
            self._made.append(make_conversion(made, operand=operand, **common))
        forms[wanted] = made
        if narrower:
            self.origins[made] = name
        return made

    def _back(self, name: str, form: str, wide: ElementType) -> str:
        """A narrow form of a value, converted back."""
        if form not in self._widened:
            original = self._computation.by_name[name]
            assert isinstance(original.shape, ArrayShape)
            made = self._widened[form] = self._unused_name(form, wide)
            shape = original.shape.with_element_type(wide)
            common: dict[str, Any] = {"metadata": original.metadata, "sharding": original.sharding}
            self._made.append(make_conversion(made, shape, form, **common))
        return self._widened[form]

    def _unused_name(self, name: str, wanted: ElementType) -> str:
        """A name for another form of a value: its own, where no instruction has that any more."""
        return take_name(f"{name}.{wanted.name}" if name in self._names else name, self._names)

    def _native(self, name: str) -> ElementType:
        return next(iter(self._forms[name]))

    def _converted_from(self, instruction: Instruction) -> str | None:
        """The operand of a conversion that its narrow value makes needless."""
        entry = find_opcode(instruction.opcode)
        if entry is None or entry.evaluate is None or entry.evaluate.function is not Convert.evaluate:
            return None
        if not _is_float(instruction):
            return None
        (operand,) = instruction.operands
        if not _is_float(self._computation.by_name[operand]):
            return None
        native, declared = self._native(operand), _declared(instruction)
        was_narrowed = native.bits < _declared(self._computation.by_name[operand]).bits
        is_there = was_narrowed and native is declared
        return operand if is_there or (native is not declared and _holds(declared, native)) else None

    def _followed_type(self, instruction: Instruction) -> ElementType | None:
        """The narrow type in which an instruction computes the same, as it only moves or selects what is narrow."""
        entry = find_opcode(instruction.opcode)
        if entry is None or entry.role is not Role.KERNEL or not _is_float(instruction) or entry.evaluate is None:
            return None
        if entry.traits.crosses_devices or any(computation_names(instruction.attributes)):
            return None
        operands = self._computation.operands_of(instruction)
        if any(static_array(operand) is None for operand in operands):
            return None
        if entry.is_elementwise and entry.rounding is Rounding.NONE:
            moved = [operand for operand in operands if not _is_exact(operand)]
        else:
            moved = [operands[number] for number in entry.traits.moved_operands(len(operands))]
        if not moved or any(_declared(operand) is not _declared(instruction) for operand in moved):
            return None
        narrow = {self._native(operand.name) for operand in moved} - {_declared(instruction)}
        if len(narrow) != 1:
            return None
        wanted = narrow.pop()
        fits = wanted.bits < _declared(instruction).bits
        return wanted if fits and all(self._is_exactly(operand, wanted) for operand in moved) else None

    def _is_exactly(self, instruction: Instruction, wanted: ElementType) -> bool:
        """Whether a value is narrow already, or a constant that a type has exactly."""
        while _repeats(instruction) and self._native(instruction.name) is not wanted:
            instruction = self._computation.by_name[instruction.operands[0]]
        if self._native(instruction.name) is wanted:
            return True
        literal = _array_literal(instruction)
        if literal is None:
            return False
        narrow = _converted(literal, wanted)
        assert isinstance(narrow.value, np.ndarray) and isinstance(literal.value, np.ndarray)
        return bool(np.array_equal(convert(narrow.value, _declared(instruction)), literal.value))

    def _used(self, root_name: str) -> list[Instruction]:
        """What was made, without what only the original used."""
        users = self._computation.users
        used = {root_name}
        kept = []
        for instruction in reversed(self._made):
            was_unused = not users.get(instruction.name, True)
            can_go = role_of(instruction) in (Role.KERNEL, Role.CONSTANT) and not was_unused
            if instruction.name in used or not can_go:
                kept.append(instruction)
                used.update(instruction.operands)
        return kept[::-1]


def _in_order(computation: Computation) -> list[Instruction]:
    """The instructions, each behind its operands; as in the text, where they are."""
    seen: set[str] = set()
    for instruction in computation:
        if not seen.issuperset(instruction.operands):
            return after_dependencies(computation, computation.instructions)
        seen.add(instruction.name)
    return list(computation)


def _declared(instruction: Instruction) -> ElementType:
    shape = instruction.shape
    assert isinstance(shape, ArrayShape)
    return shape.element_type


def _is_float(instruction: Instruction) -> bool:
    shape = static_array(instruction)
    return shape is not None and shape.element_type.is_floating


def _is_exact(instruction: Instruction) -> bool:
    return not _declared(instruction).is_inexact


def _repeats(instruction: Instruction) -> bool:
    """Whether it repeats the elements of its first operand: better done with narrow ones than to convert its result."""
    traits = traits_of(instruction)
    return traits.repeats and traits.keeps_all and traits.moves == (0,) and not traits.crosses_devices


def _holds(wide: ElementType, narrow: ElementType) -> bool:
    """Whether a type has all numbers of another."""
    return (
        narrow.mantissa_bits <= wide.mantissa_bits
        and narrow.exponent_bits < wide.exponent_bits
        and narrow.has_inf <= wide.has_inf
        and narrow.has_nan <= wide.has_nan
    ) or (narrow.exponent_bits == wide.exponent_bits and narrow.mantissa_bits <= wide.mantissa_bits and wide.has_inf)


def _array_literal(instruction: Instruction) -> Literal | None:
    """The literal of a constant that is an array whose elements the text gives."""
    if role_of(instruction) is not Role.CONSTANT:
        return None
    literal = instruction.attributes.literal
    return literal if isinstance(literal.value, np.ndarray) else None


def _converted(literal: Literal, element_type: ElementType) -> Literal:
    shape = literal.shape
    assert isinstance(shape, ArrayShape) and isinstance(literal.value, np.ndarray)
    return Literal.from_array(convert(literal.value, element_type), shape.with_element_type(element_type))


def _usual(attributes: Any) -> Any:
    """Attributes of a contraction that asks for no precision: its operands are narrow by now."""
    fields = attribute_fields(type(attributes))
    names = ("operand_precision", "algorithm")
    return attrs.evolve(attributes, **{name: fields[name].default for name in names if name in fields})
