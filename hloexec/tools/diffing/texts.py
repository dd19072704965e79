"""Where the texts of two modules differ in their meaning: found from the roots down, without running them.

Two values are the same if the same operations lead to them from the same parameters. Names, metadata, the order of
instructions and what nothing uses say nothing. Where modules are built alike, but for a few places, these are found;
where they are not, as before and after an optimization, nothing is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hloexec.core.ir import ArrayShape, Computation, Instruction, Module
from hloexec.core.structs import frozen
from hloexec.engine.plan.schedule import after_dependencies
from hloexec.language.text.shapes import literal_text
from hloexec.ops.attributes import computation_names, without_computations
from hloexec.ops.registry import Role, role_of, traits_of
from hloexec.tools.diffing.findings import Finding

_MOST = 4
"""Modules that differ in more places are not built alike."""
_MOST_CONSTANTS = 2
"""Of more, none is worth a note."""
_OF_AN_INVERSE = 2.0**-7
"""How far the product of a number and its inverse may be from 1, both rounded to bf16: 2^-9 each, relative."""


@frozen
class TextChange:
    """An instruction of `after` that does not say what its counterpart in `before` says, of the same values."""

    after: tuple[str, str]
    """Computation and instruction."""
    before: tuple[str, str]
    reason: str
    """Empty where the two lines of HLO say it."""
    is_of_constant: bool = False


class _Value(NamedTuple):
    """A value, by how it is computed: equal numbers are equal values."""

    own: int
    operands: tuple[int, ...]
    called: tuple[int, ...]


class _Meanings:
    """The values of modules, by numbers that are the same where the values are."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._known: dict[tuple[int, str], dict[str, _Value]] = {}
        self.numbers: dict[tuple[int, str], dict[str, int]] = {}
        """Of each computation, by the `id` of its module and its name, those of its instructions: what a computation
        calls depends on its module."""

    def of(self, side: _Side) -> dict[str, _Value]:
        """The values of a computation's instructions."""
        key, module, computation = side.key, side.module, side.computation
        if key not in self._known:
            values: dict[str, _Value] = {}
            numbers: dict[str, int] = {}
            for instruction in after_dependencies(computation, computation.instructions):
                names = computation_names(instruction.attributes)
                called = tuple([self._number_of(_Side(module, module.by_name[name])) for name in names])
                own = self._number(_said_by(instruction))
                values[instruction.name] = _Value(own, tuple([numbers[name] for name in instruction.operands]), called)
                numbers[instruction.name] = self._number(values[instruction.name])
            self._known[key], self.numbers[key] = values, numbers
        return self._known[key]

    def _number_of(self, side: _Side) -> int:
        """That of what a computation gives."""
        self.of(side)
        return self.numbers[side.key][side.computation.root_name]

    def _number(self, value: object) -> int:
        return self._numbers.setdefault(value, len(self._numbers))


def _said_by(instruction: Instruction) -> object:
    """What an instruction says itself, but for its operands and what it calls."""
    attributes = instruction.attributes
    kind: type = type(attributes)
    said = None if attributes is None else without_computations(kind)(attributes)
    # Boundaries of manual regions read shardings, their own and those of their operands.
    partition = instruction.sharding, instruction.frontend_attributes
    return (
        *(instruction.opcode, instruction.shape, said, partition),
        *(instruction.backend_config, instruction.unknown_attributes),
    )


class _Side(NamedTuple):
    module: Module
    computation: Computation

    @property
    def key(self) -> tuple[int, str]:
        return id(self.module), self.computation.name

    def at(self, name: str) -> Instruction:
        return self.computation.by_name[name]


def scalar_constants(module: Module) -> set[str]:
    """The fractions that constants of a module are, as the text has them: whole numbers, NaN and infinities come and go
    as modules are rewritten."""
    texts = {
        _constant_text(instruction)
        for computation in module
        for instruction in computation
        if role_of(instruction) is Role.CONSTANT
        and isinstance(instruction.shape, ArrayShape)
        and not instruction.shape.dimensions
        and instruction.shape.element_type.is_floating
        and not instruction.attributes.literal.is_elided
    }
    return {text for text in texts if math.isfinite(float(text)) and not float(text).is_integer()}


class _Place(NamedTuple):
    """Two values that differ themselves, or of which one is used where the other should be."""

    theirs: _Side
    their: str
    ours: _Side
    our: str
    users: list[tuple[str, str]]
    """What uses them, by both names; nothing where they are the roots."""


def text_changes(before: Module, after: Module) -> list[TextChange]:
    """The places, at most a few; nothing where there are more."""
    changes = _Changes()
    try:
        is_alike = changes.compare(_Side(before, before.entry), _Side(after, after.entry))
    except RecursionError:
        return []
    return changes.found() if is_alike and len(changes.places) <= _MOST else []


class _Changes:
    def __init__(self) -> None:
        self._meanings = _Meanings()
        self._seen: set[tuple[str, str, str, str]] = set()
        self.places: dict[tuple[str, str, str, str], _Place] = {}
        """By the computation and the name of either value."""

    def compare(self, theirs: _Side, ours: _Side) -> bool:
        """Compare what two computations give; False where they are not built alike."""
        values = [self._meanings.of(side) for side in (theirs, ours)]
        numbers = [self._meanings.numbers[side.key] for side in (theirs, ours)]
        their_numbers = {*numbers[0].values()}
        pending = [(theirs.computation.root_name, ours.computation.root_name, ("", ""))]
        while pending and len(self.places) <= _MOST:
            their, our, user = pending.pop()
            if numbers[0][their] == numbers[1][our]:
                continue
            key = theirs.computation.name, their, ours.computation.name, our
            one, other = values[0][their], values[1][our]
            is_alike = one.own == other.own and len(one.operands) == len(other.operands)
            is_known = numbers[1][our] in their_numbers
            if is_known or not is_alike:
                is_other_parameter = not is_known and role_of(ours.at(our)) is Role.PARAMETER
                if is_other_parameter or not their_numbers.issuperset(other.operands):
                    return False
                place = self.places.setdefault(key, _Place(theirs, their, ours, our, []))
                place.users.extend([user] if user[0] else [])
                continue
            if key in self._seen:
                continue
            self._seen.add(key)
            names = zip(theirs.at(their).operands, ours.at(our).operands, strict=True)
            pending += [(*pair, (their, our)) for pair in names]
            if one.called != other.called and not self._compare_called(theirs, ours, (their, our)):
                return False
        return True

    def _compare_called(self, theirs: _Side, ours: _Side, pair: tuple[str, str]) -> bool:
        names = [computation_names(side.at(name).attributes) for side, name in zip((theirs, ours), pair, strict=True)]
        return len(names[0]) == len(names[1]) and all(
            self.compare(_Side(theirs.module, theirs.module.by_name[one]), _Side(ours.module, ours.module.by_name[two]))
            for one, two in zip(*names, strict=True)
        )

    def found(self) -> list[TextChange]:
        """A change for each place."""
        return [self._change(*place) for place in self.places.values()]

    def _change(self, theirs: _Side, their: str, ours: _Side, our: str, users: list[tuple[str, str]]) -> TextChange:
        one, other = theirs.at(their), ours.at(our)
        numbers = [self._meanings.numbers[side.key] for side in (theirs, ours)]
        order = {instruction.name: place for place, instruction in enumerate(ours.computation)}
        user = min(users, key=lambda pair: order[pair[1]], default=None)
        is_of_constant = role_of(one) is role_of(other) is Role.CONSTANT
        if is_of_constant:
            used = _first_user(theirs.computation, their), _first_user(ours.computation, our)
            text = f"it uses {_constant_text(other)}, where the module before uses {_constant_text(one)}"
        elif user is not None and numbers[1][our] in numbers[0].values():
            used, text = user, f"it uses %{our}, where the module before uses %{their}"
        elif numbers[0][their] in numbers[1].values():
            used, text = (their, our), f"the module before has %{their} in its place"
        else:
            used, text = (their, our), ""
        after, before = (ours.computation.name, used[1]), (theirs.computation.name, used[0])
        return TextChange(after, before, text, is_of_constant)


def _first_user(computation: Computation, name: str) -> str:
    """What uses a constant first, but for what only repeats or converts it; the constant itself where nothing does."""
    same = {name}
    for instruction in computation:
        if same.intersection(instruction.operands):
            if not repeats(instruction):
                return instruction.name
            same.add(instruction.name)
    return name


def _constant_text(instruction: Instruction) -> str:
    """The number of a scalar constant, else the constant's name."""
    shape = instruction.shape
    if isinstance(shape, ArrayShape) and not shape.dimensions and not instruction.attributes.literal.is_elided:
        return literal_text(instruction.attributes.literal)
    return f"%{instruction.name}"


def repeats(instruction: Instruction) -> bool:
    """Whether a result is the only operand's elements, perhaps several times, in another order or in another format."""
    traits = traits_of(instruction)
    return len(instruction.operands) == 1 and (traits.converts or traits.moves == (0,))


def notes_on_texts(
    changes: Sequence[TextChange], findings: Sequence[Finding], modules: tuple[Module, Module]
) -> list[str]:
    """That constants differ is worth a note, whatever follows from it, unless it is a finding; where the texts of
    `modules`, after and before, are not alike, which of the few that only one has, unless the finding is certain.
    Where nothing is found, only what may stand for each other is: one on either side, and not its inverse."""
    reasons = {finding.reason for finding in findings}
    others = [change for change in changes if change.is_of_constant and change.reason not in reasons]
    if changes or (findings and findings[0].is_certain):
        return [f"the texts differ in a constant: %{change.after[1]}: {change.reason}" for change in others]
    ours, theirs = (scalar_constants(module) for module in modules)
    if not findings:
        pair = ours - theirs, theirs - ours
        is_replaced = all(len(side) == 1 for side in pair) and not _are_inverse(*(float(*side) for side in pair))
        return (
            [
                f"the module after has the constant {', '.join(pair[0])}, where the module before has "
                f"{', '.join(pair[1])}"
            ]
            if is_replaced
            else []
        )
    sides = {"after": sorted(ours - theirs), "before": sorted(theirs - ours)}
    return [
        f"a constant that only the module {side} has: {', '.join(numbers)}"
        for side, numbers in sides.items()
        if 0 < len(numbers) <= _MOST_CONSTANTS
    ]


def _are_inverse(one: float, other: float) -> bool:
    return abs(one * other - 1) <= _OF_AN_INVERSE
