"""sort and topk, on integer keys that a comparator is converted to.

Almost every comparator is lexicographic: it compares some quantity computed from the left elements with the same
quantity computed from the right ones, then another. Such a comparator is recognized independently of how it is written:
its comparisons of left with right quantities (its *atoms*) are replaced by every possible outcome, and its result is
evaluated in each case. The quantities, evaluated on the whole arrays, become integer keys.

A sort whose comparator is not a lexicographic order of keys is a merge
sort that evaluates the comparator on whole arrays of pairs at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, Kind, element_type_of
from hloexec.core.ir import ArrayShape, ArrayShapes, Computation, Instruction, Literal, Shape, TupleShape
from hloexec.core.process import remembered
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import (
    array_shape,
    as_integers,
    operand_shapes,
    require,
    reshaped,
    same_dimensions,
    stable_order,
    widen,
)
from hloexec.ops.elementwise.selection import DIRECTIONS, total_order_key
from hloexec.ops.movement.dynamic_shapes import cut_to_common_extents
from hloexec.ops.policies.backends import flushed
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.registry import ANY, OPCODES, Callee, Callees, Programs, Role, opcode
from hloexec.ops.relations import Relating, pointwise
from hloexec.ops.resources import empty, in_blocks
from hloexec.ops.signatures import one_or_tuple, require_scalar_comparison
from hloexec.ops.traits import COMPARATOR, Probe

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
        is_known = (key.dtype == other.dtype and np.array_equal(key, other) for other in keys)
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
        self._priorities: dict[Dimensions, list[tuple[int, bool]] | None] = {}
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
        same = (atom.is_total_order == total and self.form(atom.quantity)[1] == left_form for atom in self.atoms)
        number = next((n for n, is_same in enumerate(same) if is_same), len(self.atoms))
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
            arguments = [values[name] for name in instruction.operands]
            if "computations" in entry.evaluate.needs:
                return None
            values[instruction.name] = entry.evaluate(
                *arguments,
                attributes=instruction.attributes,
                shape=ArrayShape(shape.element_type, operands[0].shape),
                operand_shapes=tuple(ArrayShape(element_type_of(a.dtype), a.shape) for a in arguments),
            )
            del arguments
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


_BLOCK_ELEMENTS = 1 << 15


@frozen
class SortAttributes:
    dimension: int = attribute(Grammar.INT_IN_LIST, name="dimensions")
    is_stable: bool = attribute(default=False)
    to_apply: str = attribute(Grammar.COMPUTATION)


@frozen
class TopKAttributes:
    k: int = attribute()
    largest: bool = attribute(default=True, always_printed=True)
    is_stable: bool = attribute(default=True)


@opcode("sort", operands=(1, ANY), attributes=SortAttributes, any_order=True, is_leafwise=True)
class Sort:
    """Sorts the operands together along a dimension: element a comes before b where to_apply(a0, b0, a1, b1, …).

    Always stable, even if `is_stable` is false. A comparator that is not a strict weak order gives some permutation.
    Source: XLA, Sort.
    """

    probe = Probe("T[2] sort(a0), dimensions={0}, to_apply=c", ("T[2]",), COMPARATOR)

    @staticmethod
    def relate(use: Relating) -> None:
        pointwise(use)
        use.same_leaf_units(len(use.operands))

    @staticmethod
    def infer(*operands: Shape, attributes: SortAttributes, computations: Programs) -> Shape:
        arrays = operand_shapes(operands, "sort")
        for array in arrays[1:]:
            same_dimensions(arrays[0], array, "the operands of sort")
        rank = arrays[0].rank
        require(
            0 <= attributes.dimension < rank,
            f"the sort dimension {attributes.dimension} is out of range for operands of rank {rank}",
        )
        require_scalar_comparison(computations[0], arrays, "to_apply of sort")
        return one_or_tuple(arrays)

    @staticmethod
    def evaluate(
        *operands: Array,
        attributes: SortAttributes,
        operand_shapes: ArrayShapes,
        computations: Callees,
        numerics: NumericsPolicy = REFERENCE,
    ) -> Array | tuple[Array, ...]:
        comparator, dimension = computations[0], attributes.dimension
        uncut_operands, operands = operands, tuple(cut_to_common_extents(operands, operand_shapes))
        if operands[0].size == 0 or operands[0].shape[dimension] < 2:
            return uncut_operands if len(uncut_operands) > 1 else uncut_operands[0]
        transposed = [np.moveaxis(operand, dimension, -1) for operand in operands]
        length = transposed[0].shape[-1]
        rows = [reshaped(operand, (operands[0].size // length, length)) for operand in transposed]
        targets = [empty(row.shape, row.dtype) for row in rows]
        keys = partial(_keys_under, numerics, comparator)
        for start, stop in _sort_by_keys(keys, rows, targets):
            sorted_rows = _merge_sorted(comparator, [row[start:stop] for row in rows])
            for target, row in zip(targets, sorted_rows, strict=True):
                target[start:stop] = row
        results = tuple(
            _beside_rest(np.moveaxis(target.reshape(transposed[0].shape), -1, dimension), operand)
            for target, operand in zip(targets, uncut_operands, strict=True)
        )
        return results if len(results) > 1 else results[0]

    @staticmethod
    def order(
        *operands: Array, attributes: SortAttributes, computations: Callees, numerics: NumericsPolicy = REFERENCE
    ) -> tuple[int, Array]:
        dimension = attributes.dimension
        rows = [np.moveaxis(operand, dimension, -1) for operand in operands]
        length = rows[0].shape[-1]
        if operands[0].size == 0 or length < 2:
            return dimension, np.zeros(operands[0].shape, np.int64)
        flat = [np.ascontiguousarray(row).reshape(-1, length) for row in rows]
        places = first_indices(computations[0], flat, length, numerics)
        return dimension, np.moveaxis(places.reshape(rows[0].shape), -1, dimension)


def relate_chosen(use: Relating, count: int) -> None:
    """How the dimensions of an operand, and of values and indices that are chosen along its last one, depend."""
    operand = use.operands[0].axes
    for axes in use.result.leaves.values():
        use.same(operand[:-1], axes[:-1])
        use.keep(axes[-1:], "it is how many elements are chosen")
    use.at_least(operand[-1], count)
    use.result_positions(1, operand[-1])


@opcode("topk", operands=1, attributes=TopKAttributes, any_order=True)
class TopK:
    """(values, indices) of the k largest or smallest elements of the last dimension, the best first.

    operand [..., n] gives values [..., k] and s32 indices [..., k], k ≤ n. Elements are compared in total order (-NaN
    first, +NaN last, -0 before +0); among equal ones the lower index comes first, even if `is_stable` is false. Source:
    XLA, TopK.
    """

    probe = Probe("(T[2,1], s32[2,1]) topk(a0), k=1", ("T[2,3]",))

    @staticmethod
    def relate(use: Relating) -> None:
        relate_chosen(use, use.attributes.k)

    @staticmethod
    def infer(operand: Shape, *, attributes: TopKAttributes) -> Shape:
        array = array_shape(operand, "the operand of topk")
        require(array.rank > 0, "the operand of topk must have at least one dimension, but is a scalar")
        require(
            not array.element_type.is_complex, f"topk compares its elements, which {array.element_type} does not allow"
        )
        extent, k = array.dimensions[-1], attributes.k
        require(0 <= k <= extent, f"k of topk must be between 0 and the last dimension's size, {extent}, but is {k}")
        sizes = (*array.dimensions[:-1], k)
        dynamic = (*array.dynamic_dimensions[:-1], False) if array.is_dynamic else ()
        values = ArrayShape(array.element_type, sizes, dynamic_dimensions=dynamic if any(dynamic) else ())
        return TupleShape((values, values.with_element_type(ELEMENT_TYPES["s32"])))

    @staticmethod
    def evaluate(operand: Array, *, attributes: TopKAttributes) -> tuple[Array, Array]:
        rows = reshaped(operand, (prod(operand.shape[:-1]), operand.shape[-1]))
        values = np.empty((len(rows), attributes.k), operand.dtype)
        indices = np.empty(values.shape, np.int32)

        def select(start: int, stop: int) -> None:
            key = order_key(rows[start:stop])
            order = stable_order([~key if attributes.largest else key], attributes.k)
            indices[start:stop] = order
            _take_all([rows[start:stop]], order, [values[start:stop]])

        in_blocks(select, len(rows), _block(rows))
        sizes = (*operand.shape[:-1], attributes.k)
        return values.reshape(sizes), indices.reshape(sizes)

    @staticmethod
    def order(operand: Array, *, attributes: TopKAttributes) -> tuple[int, Array]:
        return operand.ndim - 1, TopK.evaluate(operand, attributes=attributes)[1].astype(np.int64)


def _beside_rest(first: Array, operand: Array) -> Array:
    """A static operand whose elements within the extents of dynamic ones are sorted; those behind them stay."""
    if first.shape == operand.shape:
        return first
    result = operand.copy()
    result[tuple(map(slice, first.shape))] = first
    return result


def _keys_under(numerics: NumericsPolicy, comparator: Callee, rows: Sequence[Array]) -> list[Array] | None:
    """Keys as `keys_of` has them, which is without a policy; None where that makes a difference: a comparator that
    flushes denormals finds them equal to zero, and keys do not."""
    if numerics.flushes_denormals and not all(np.array_equal(row, flushed(row), equal_nan=True) for row in rows):
        return None
    return keys_of(comparator.computation)(rows)


def first_indices(comparator: Callee, rows: Sequence[Array], count: int, numerics: NumericsPolicy = REFERENCE) -> Array:
    """The indices along the last axis of the `count` elements that come first by a comparator, in its order.

    The comparator takes pairs of elements of each row, as sort's does. Of equal elements the lower index comes first.
    """
    keys = _keys_under(numerics, comparator, rows)
    if keys is not None:
        return stable_order(keys, count)
    index = np.broadcast_to(np.arange(rows[0].shape[-1]), rows[0].shape)
    # The comparator does not see the pairs of indices, which come last.
    return _merge_sorted(
        lambda *pairs: comparator(*pairs[:-2]), [*map(np.ascontiguousarray, rows), np.ascontiguousarray(index)]
    )[-1][..., :count]


def _sort_by_keys(keys_of_rows: Keys, rows: Sequence[Array], targets: Sequence[Array]) -> list[tuple[int, int]]:
    """Sort `[batch, n]` rows into `targets`, and give the ranges of the batch that have no keys to sort by."""
    unsorted: list[tuple[int, int]] = []

    def sort(start: int, stop: int) -> None:
        part = [row[start:stop] for row in rows]
        keys = keys_of_rows(part)
        if keys is None:
            unsorted.append((start, stop))
            return
        sorted_part = [target[start:stop] for target in targets]
        if len(part) > 1 or len(keys) > 1 or not _sort_alone(part[0], keys[0], sorted_part[0]):
            _take_all(part, stable_order(keys), sorted_part)

    in_blocks(sort, len(rows[0]), _block(rows[0]))
    return unsorted


def _sort_alone(rows: Array, key: Array, target: Array) -> bool:
    """Sort `[batch, n]` rows into `target` if the key is the own order of elements, or its reverse; say whether it is.

    No index needs to tell elements apart then: those that the key orders alike are the same.
    """
    element_type, own = element_type_of(rows.dtype), order_key(rows)
    is_reversed = not np.array_equal(key, own)
    if element_type.bits != 8 * own.itemsize or (is_reversed and not np.array_equal(~key, own)):
        return False
    bits = target.view(own.dtype)
    bits[...] = key
    # NumPy sorts single bytes digit by digit.
    bits.sort(axis=-1, kind="stable" if bits.itemsize == 1 else None)
    if is_reversed:
        np.invert(bits, out=bits)
    if element_type.is_floating:
        bits[...] = total_order_key(bits)
    return True


def _block(rows: Array) -> int:
    """How many rows to sort at a time, so that what is made of them stays in the cache."""
    length: int = rows.shape[-1]
    return max(1, _BLOCK_ELEMENTS // max(1, length))


def _take_all(rows: Sequence[Array], order: Array, targets: Sequence[Array]) -> None:
    """Each row's elements in the given order, which is lost."""
    if len(order) > 1:
        order += (np.arange(len(order)) * rows[0].shape[-1])[:, None]
    for row, target in zip(rows, targets, strict=True):
        # Indices are in range: `wrap` is what NumPy does fastest.
        as_integers(row).reshape(-1).take(order, mode="wrap", out=as_integers(target))


def _merge_sorted(comparator: Callable[..., Any], rows: Sequence[Array]) -> list[Array]:
    """Merge sort with any comparator, which is asked about one pair of each merge at a time.

    Each pass merges neighbouring runs of `width` elements. An element of the left run goes behind as many elements of
    the right run as come before it; that number is found by bisection, for all elements at once. Elements of the right
    run fill the gaps. O(n log² n) comparisons in O(log² n) calls.
    """
    shape, length = rows[0].shape, rows[0].shape[-1]
    batch = rows[0].size // length
    columns = [as_integers(row).reshape(batch, length) for row in rows]
    position = np.arange(length)
    width = 1
    while width < length:
        start = position - position % (2 * width)
        middle = np.minimum(start + width, length)
        end = np.minimum(start + 2 * width, length)
        left = np.flatnonzero((position < middle) & (middle < end))
        behind = _count_before(comparator, columns, rows, left, middle[left], end[left])
        # A comparator that contradicts itself must not lose elements: targets keep growing whatever it said.
        targets = left + np.maximum.accumulate(start[left] + behind, axis=-1) - start[left]
        columns = [_merged(column, left, targets) for column in columns]
        width *= 2
    return [column.view(row.dtype).reshape(shape) for column, row in zip(columns, rows, strict=True)]


def _count_before(
    comparator: Callable[..., Any],
    columns: Sequence[Array],
    rows: Sequence[Array],
    left: Array,
    middle: Array,
    end: Array,
) -> Array:
    """For each element at `left` of each batch row, how many of the right run [middle, end) come before it."""
    batch = columns[0].shape[0]
    low = np.broadcast_to(middle, (batch, len(left)))
    high = np.broadcast_to(end, (batch, len(left)))
    lines = np.arange(batch)[:, None]
    while (open_ := low < high).any():
        probe = (low + high) >> 1
        safe = np.where(open_, probe, middle)
        arguments: list[Array] = []
        for column, row in zip(columns, rows, strict=True):
            for place in (column[lines, safe], column[:, left]):
                arguments.append(place.view(row.dtype).reshape(-1))
        comes_before = np.asarray(comparator(*arguments)).reshape(batch, len(left))
        low = np.where(open_ & comes_before, probe + 1, low)
        high = np.where(open_ & ~comes_before, probe, high)
    return low - middle


def _merged(column: Array, left: Array, targets: Array) -> Array:
    """A column after one pass: left elements at their targets, all others in their old order in the gaps."""
    is_left = np.zeros(column.shape[-1], np.bool_)
    is_left[left] = True
    taken = np.zeros(column.shape, np.bool_)
    np.put_along_axis(taken, targets, True, -1)
    result = np.empty_like(column)
    result[taken] = column[:, is_left].reshape(-1)
    result[~taken] = column[:, ~is_left].reshape(-1)
    return result
