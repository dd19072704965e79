"""Converting a sort's comparator to keys.

Almost every comparator is lexicographic: it compares some quantity computed from the left elements with the same
quantity computed from the right ones, then another. Such a comparator is recognized independently of how it is written:
its comparisons of left with right quantities (its *atoms*) are replaced by every possible outcome, and its result is
evaluated in each case. The quantities, evaluated on the whole arrays, become integer keys.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hloexec.core.dtypes import Kind, element_type_of
from hloexec.core.ir import ArrayShape, Computation, Instruction, Literal
from hloexec.core.lifetimes import remembered
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.common import widen
from hloexec.ops.elementwise.selection import DIRECTIONS, total_order_key
from hloexec.ops.registry import OPCODES, Role

_MOST_ATOMS = 5
_OUTCOMES = (-1, 0, 1)
_LOGICAL: dict[str, Callable[..., Any]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "not": np.logical_not,
    "select": np.where,
}


def order_key(array: Array) -> Array:
    """Signed or unsigned integers in the total order of the elements, of floats as compare's TOTALORDER has it."""
    element_type = element_type_of(array.dtype)
    if element_type.kind is Kind.PRED:
        return array.view(np.uint8)
    if not element_type.is_floating:
        return widen(array)
    return total_order_key(widen(array) if element_type.bits < 16 else array)


Keys = Callable[[Sequence[Array]], list[Array] | None]


@remembered
def keys_of(computation: Computation) -> Keys:
    """Sort keys of operands, the most significant first, whose ascending lexicographic order is a comparator's.

    None where the comparator is no such order on these operands: it is of another form, or NaNs make it inconsistent.
    """
    analysis = _Analysis(computation)
    graph = analysis.boolean_graph()
    if graph is None or not 0 < len(analysis.atoms) <= _MOST_ATOMS:
        return lambda operands: None
    return partial(_keys, analysis, graph)


def _keys(analysis: _Analysis, graph: list[_Node], operands: Sequence[Array]) -> list[Array] | None:
    keys: list[Array] = []
    number_of_atom: list[int] = []
    for atom in analysis.atoms:
        key = _atom_key(analysis, atom, operands)
        if key is None:
            return None
        # Quantities that order these very elements alike (a float, and its bits made sortable) count as one.
        is_known = (key.dtype == known.dtype and np.array_equal(key, known) for known in keys)
        number = next((n for n, same in enumerate(is_known) if same), len(keys))
        if number == len(keys):
            keys.append(key)
        number_of_atom.append(number)
    order = analysis.priorities(graph, tuple(number_of_atom))
    return None if order is None else [~keys[number] if descending else keys[number] for number, descending in order]


@frozen
class _Atom:
    """A comparison of a left quantity with the same right one."""

    quantity: Instruction
    """The left quantity."""
    is_total_order: bool


@frozen
class _Node:
    """An instruction on the way from atoms to the answer: `function` of other nodes, or of one atom's outcomes."""

    name: str
    function: Callable[..., Any]
    operands: tuple[str, ...] = ()
    atom: int | None = None


class _Analysis:
    """One comparator, decomposed."""

    def __init__(self, computation: Computation) -> None:
        self.computation = computation
        self.atoms: list[_Atom] = []
        self._forms: dict[str, tuple[int | None, int]] = {}
        self._numbers: dict[Any, int] = {}
        self._priorities: dict[tuple[int, ...], list[tuple[int, bool]] | None] = {}
        self._needed_of: dict[str, list[Instruction]] = {}

    def boolean_graph(self) -> list[_Node] | None:
        """The nodes, operands first, the root last; None for an unknown form."""
        nodes: list[_Node] = []
        needed = {self.computation.root_name}
        for instruction in reversed(self.computation.instructions):
            if instruction.name in needed:
                node = self._node(instruction)
                if node is None:
                    return None
                nodes.append(node)
                needed.update(node.operands)
        return nodes[::-1]

    def _node(self, instruction: Instruction) -> _Node | None:
        operands = self.computation.operands_of(instruction)
        if instruction.opcode == "constant":
            literal: Literal = instruction.attributes.literal
            return None if literal.is_elided else _Node(instruction.name, lambda: np.asarray(literal.value))
        is_compare = instruction.opcode == "compare"
        if not all(map(_is_predicate, operands)):
            return self._atom_node(instruction) if is_compare else None
        function = DIRECTIONS[instruction.attributes.direction] if is_compare else _LOGICAL.get(instruction.opcode)
        return None if function is None else _Node(instruction.name, function, instruction.operands)

    def _atom_node(self, comparison: Instruction) -> _Node | None:
        left, right = self.computation.operands_of(comparison)
        (left_side, left_form), (right_side, right_form) = self.form(left), self.form(right)
        if {left_side, right_side} != {0, 1} or left_form != right_form:
            return None
        quantity, sign = (left, 1) if left_side == 0 else (right, -1)
        total = comparison.attributes.type == "TOTALORDER"
        known = (atom.is_total_order == total and self.form(atom.quantity)[1] == left_form for atom in self.atoms)
        number = next((n for n, is_same in enumerate(known) if is_same), len(self.atoms))
        if number == len(self.atoms):
            self.atoms.append(_Atom(quantity, total))
        direction = DIRECTIONS[comparison.attributes.direction]
        return _Node(comparison.name, lambda outcomes: direction(sign * outcomes, 0), atom=number)

    def form(self, root: Instruction) -> tuple[int | None, int]:
        """Which side an instruction depends on (0 left, 1 right, None neither, -1 both), and its expression's number.

        A left quantity and its right counterpart are one expression.
        """
        if root.name not in self._forms:
            for instruction in self._needed(root):
                operands = [self._forms[name] for name in instruction.operands]
                self._forms[instruction.name] = self._form_of(instruction, operands)
        return self._forms[root.name]

    def _form_of(self, instruction: Instruction, operands: list[tuple[int | None, int]]) -> tuple[int | None, int]:
        if instruction.opcode == "parameter":
            number = instruction.attributes.number
            side, expression = number % 2, ("parameter", number // 2)
            return side, self._numbers.setdefault(expression, len(self._numbers))
        sides = {operand_side for operand_side, _ in operands} - {None}
        parts = tuple(form for _, form in operands)
        whole = (instruction.opcode, instruction.shape, instruction.attributes, parts)
        form = self._numbers.setdefault(whole, len(self._numbers))
        return next(iter(sides)) if len(sides) == 1 else -1 if sides else None, form

    def priorities(self, graph: list[_Node], number_of_atom: tuple[int, ...]) -> list[tuple[int, bool]] | None:
        """The order of the keys that atoms compare, for the number of each atom's key (see `_lexicographic_order`)."""
        if number_of_atom not in self._priorities:
            outcomes = np.array(list(itertools.product(_OUTCOMES, repeat=1 + max(number_of_atom))), np.int8).T
            answers = _answers(graph, [outcomes[number] for number in number_of_atom])
            self._priorities[number_of_atom] = _lexicographic_order(
                outcomes, np.broadcast_to(answers, outcomes.shape[1:])
            )
        return self._priorities[number_of_atom]

    def evaluate(self, quantity: Instruction, operands: Sequence[Array]) -> Array | None:
        """A left quantity on the whole operands; None where an instruction cannot be evaluated elementwise."""
        values: dict[str, Array] = {}
        needed = self._needed(quantity)
        last_user = {operand: user.name for user in needed for operand in user.operands}
        for instruction in needed:
            entry = OPCODES[instruction.opcode]
            shape = instruction.shape
            if not isinstance(shape, ArrayShape) or shape.rank:
                return None
            if entry.role is Role.PARAMETER:
                values[instruction.name] = operands[instruction.attributes.number // 2]
                continue
            if entry.role is Role.CONSTANT:
                literal: Literal = instruction.attributes.literal
                if literal.is_elided:
                    return None
                values[instruction.name] = np.broadcast_to(np.asarray(literal.value), operands[0].shape)
                continue
            # A scalar's bitcast keeps its width: the bits are read anew, as by bitcast-convert.
            entry = OPCODES["bitcast-convert"] if instruction.opcode == "bitcast" else entry
            if entry.evaluate is None or not (entry.is_elementwise or entry.name == "bitcast-convert"):
                return None
            given = [values[name] for name in instruction.operands]
            if "computations" in entry.evaluate.needs:
                return None
            values[instruction.name] = entry.evaluate(
                *given,
                attributes=instruction.attributes,
                shape=ArrayShape(shape.element_type, operands[0].shape),
                operand_shapes=tuple(ArrayShape(element_type_of(a.dtype), a.shape) for a in given),
            )
            del given
            for name in {*instruction.operands}:
                if last_user[name] == instruction.name:
                    del values[name]
        return values[quantity.name]

    def _needed(self, quantity: Instruction) -> list[Instruction]:
        """The instructions a quantity depends on, in an order in which they can be evaluated."""
        if quantity.name not in self._needed_of:
            needed = {quantity.name}
            for instruction in reversed(self.computation.instructions):
                if instruction.name in needed:
                    needed.update(instruction.operands)
            self._needed_of[quantity.name] = [entry for entry in self.computation if entry.name in needed]
        return self._needed_of[quantity.name]


def _answers(graph: list[_Node], outcomes: list[Array]) -> Array:
    """What the comparator answers for the atoms' outcomes, -1 for less, 0 for equal, 1 for greater."""
    values: dict[str, Array] = {}
    for node in graph:
        operands = [outcomes[node.atom]] if node.atom is not None else [values[name] for name in node.operands]
        values[node.name] = node.function(*operands)
    return values[graph[-1].name]


def _is_predicate(instruction: Instruction) -> bool:
    shape = instruction.shape
    return isinstance(shape, ArrayShape) and shape.element_type.kind is Kind.PRED and instruction.opcode != "parameter"


def _atom_key(analysis: _Analysis, atom: _Atom, operands: Sequence[Array]) -> Array | None:
    quantity = analysis.evaluate(atom.quantity, operands)
    if quantity is None:
        return None
    element_type = element_type_of(quantity.dtype)
    if element_type.is_complex:
        return None
    if element_type.is_floating and not atom.is_total_order:
        quantity = widen(quantity)
        if np.isnan(quantity).any():
            return None
        quantity = quantity + quantity.dtype.type(0)  # -0 equals +0 here
    return order_key(quantity)


def _lexicographic_order(outcomes: Array, answers: Array) -> list[tuple[int, bool]] | None:
    """The keys by priority, each with whether it descends, or None where the answers are no strict lexicographic order.

    The most significant key is one whose inequality alone decides the answer; then the cases in which it is equal are
    looked at.
    """
    order: list[tuple[int, bool]] = []
    while answers.any():
        for number, outcome in enumerate(outcomes):
            less, greater = answers[outcome < 0], answers[outcome > 0]
            if less.size and less.all() != greater.all() and less.any() != greater.any():
                order.append((number, bool(greater.all())))
                break
        else:
            return None
        equal = outcome == 0
        outcomes, answers = outcomes[:, equal], answers[equal]
    return order
