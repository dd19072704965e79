"""Bounds on the rounding error of each element of a value, relative to values that both runs have in common.

The error that an instruction itself adds follows from its operands, for each element:

- A rounded result is off by its own magnitude times u (functions by a few u more).
- A sum of n terms is off by at most γₙ Σ|tᵢ|, to first order n u Σ|tᵢ| (Higham, Accuracy and Stability of Numerical
  Algorithms, section 4.2), and, if errors are independent, by λ √(n/3) u Σ|tᵢ| except for one sum in 1.7 million (λ =
  5; Higham and Mary, 2019); the smaller of both is used. Σ|tᵢ| is the result of the same instruction for the absolute
  values of its operands, which costs one more product or sum. Partial sums in a narrow type, whose errors are not
  independent, have the first one (`InstructionChains`).
- For terms with factors of either sign (transforms), and for library calls, the magnitude of the terms is measured, by
  how much results change if each operand element changes by the same small relative amount with a random sign.

Errors of the operands are propagated: through sums and products as through those of absolute values, through everything
else by how much the result changes if the operand changes by that much in either direction."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Container, Iterator, Mapping
from typing import TypeAlias

import attrs
import numpy as np

from hloexec.analysis.numerics.tolerances import LAMBDA, Chain, chains_of, own_chain, summing, worst
from hloexec.core.dtypes import element_type_of, largest_number, smallest_normal, unit_roundoff
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module, flat_shapes
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.attributes import computation_names
from hloexec.ops.common import narrow, wide
from hloexec.ops.policies.policy import NumericsPolicy, numerics_policy
from hloexec.ops.registry import Entry, find_opcode, traits_of
from hloexec.tools.diffing.graph import Graph, Instance, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.recording.arrays import is_worth_it
from hloexec.tools.diffing.recording.held import Holding, Windowed
from hloexec.tools.diffing.replaying.evaluation import Evaluator, Overlay, Values, window_of

NO_CHAIN = Chain()


class InstructionChains:
    """How much each instruction of a module rounds by itself."""

    def __init__(self, module: Module, policy: str | NumericsPolicy) -> None:
        self._known: dict[object, Chain] = {}
        """By the identity of the instruction, and by all that it depends on where that is its opcode and shapes, which
        instructions of one text share."""
        self._called: dict[str, dict[str, Chain]] = {}
        self._module, self._policy = module, policy
        self._bits = numerics_policy(policy).coarsest_operand_bits

    def of(self, node: Node) -> Chain:
        """What the instruction that gave a node adds."""
        key = id(node.instruction)
        chain = self._known.get(key)
        if chain is None:
            chain = self._known[key] = self._alike(node.instruction, node.instance.computation)
        return chain

    def _alike(self, instruction: Instruction, computation: Computation) -> Chain:
        if instruction.attributes is not None:
            return self._own(instruction, computation)
        shapes = (operand.shape for operand in computation.operands_of(instruction))
        key = (instruction.opcode, id(instruction.shape), *map(id, shapes))
        if key not in self._known:
            self._known[key] = self._own(instruction, computation)
        return self._known[key]

    def _own(self, instruction: Instruction, computation: Computation) -> Chain:
        shapes = [operand.shape for operand in computation.operands_of(instruction)]
        if traits_of(instruction).converts:
            types = [getattr(shape, "element_type", None) for shape in (shapes[0], instruction.shape)]
            if all(kind is not None and kind.is_floating for kind in types) and unit_roundoff(
                types[1]
            ) <= unit_roundoff(types[0]):
                return NO_CHAIN
        own = own_chain(instruction, shapes, self._bits)
        chain = NO_CHAIN
        names = list(computation_names(instruction.attributes))
        for name in names:
            if name not in self._called:
                self._called |= chains_of(self._module, self._policy, [name])
            called = worst(self._called[name].values())
            if own.terms and called.linear >= LIMITS.narrow_unit:
                # A reducer in a narrow type may round every partial sum, or the last one alone: both are meant.
                called = _summing_in_steps(own.terms, _coarsest(self._module.by_name[name]))
            chain = chain.then(called)
        if own.terms and names and not chain.linear:
            # A reducer that rounds nothing, as one that finds the largest number.
            return NO_CHAIN
        return chain.then(own)


def _summing_in_steps(terms: float, unit: float) -> Chain:
    """A sum of which each partial sum is rounded to a narrow type.

    Its errors are not independent, as those of the probabilistic bound are: behind one large term, all that are less
    than half a unit of it are lost, so that the errors of equal terms add up. No step is off by more than its term,
    since the sum before it is a number of the type. The sum of squares is such that the bound is min(n u, 1) Σ|t|.
    """
    return attrs.evolve(summing(terms, unit), sum_squares=3 * (min(terms * unit, 1) / LAMBDA) ** 2)


def _coarsest(computation: Computation) -> float:
    """The coarsest unit roundoff of what a computation computes."""
    shapes = flat_shapes(*(instruction.shape for instruction in computation))
    types = [leaf.element_type for leaf in shapes if isinstance(leaf, ArrayShape)]
    return max((unit_roundoff(entry) for entry in types if entry.is_floating), default=0.0)


def steps_from(node: Node, ends: Container[int], most: int) -> int:
    """How many nodes lie between those in `ends` and a node, that one included; more than `most` are not counted."""
    seen = {node.number}
    pending = [node]
    for current in pending:
        for entry in current.instance.inputs:
            if entry.number not in ends and entry.number not in seen:
                seen.add(entry.number)
                pending.append(entry)
        if len(seen) > most:
            break
    return len(seen)


def path_chain(node: Node, ends: Container[int], chains: InstructionChains) -> Chain:
    """The worst chain from nodes in `ends` to a node."""
    worst_chains: dict[int, Chain] = {}
    for current, inputs in on_the_way(node, ends):
        worst_chains[current.number] = worst(worst_chains[entry.number] for entry in inputs).then(chains.of(current))
    return worst_chains[node.number]


def on_the_way(node: Node, ends: Container[int]) -> Iterator[tuple[Node, list[Node]]]:
    """The nodes that lie between those in `ends` and a node, that one last, each behind its inputs among them.

    Of very many, the farthest are left out.
    """
    done: set[int] = set()
    stack = [node]
    while stack:
        current = stack[-1]
        if current.number in done:
            stack.pop()
            continue
        inputs = [entry for entry in current.instance.inputs if entry.number not in ends]
        missing = [entry for entry in inputs if entry.number not in done]
        if missing and len(done) + len(stack) < LIMITS.chain_steps:
            stack.extend(missing)
            continue
        stack.pop()
        yield current, [entry for entry in inputs if entry.number in done]
        done.add(current.number)


Bound: TypeAlias = Array | Windowed


@frozen
class _Called:
    """A called computation, as an opcode's `summed` is asked about it."""

    computation: Computation


def relative_bound(chain: Chain) -> float:
    """By what part of what was computed with the errors on a chain may put a result off."""
    return min(chain.linear, LAMBDA * math.sqrt((chain.rounding_squares + chain.sum_squares) / 3))


class Bounds:
    """The bounds of one run's values."""

    def __init__(self, graph: Graph, evaluator: Evaluator, chains: InstructionChains) -> None:
        self._module = graph.module
        self._evaluator = evaluator
        self._chains = chains
        self._absolute: dict[tuple[str, str], bool] = {}

    def of(self, node: Node, raw: Holding, values: Holding, inherited: Mapping[int, Bound]) -> Bound:
        """By how much each element of a node's result, which is in `raw`, may be off (f64), computed from `values`.

        `inherited` has the bounds of operands that may be off themselves, by the number of their node.
        """
        overwritten = self._overwritten(node.instance, values, inherited)
        if overwritten is not None:
            return overwritten
        return self._of(node, raw[node.number], values, {number: whole(entry) for number, entry in inherited.items()})

    def _overwritten(self, instance: Instance, values: Holding, inherited: Mapping[int, Bound]) -> Windowed | None:
        """The bounds of what is another value but for a window, if that is large: those of both."""
        place = window_of(instance, values)
        if place is None:
            return None
        operand, update = (part[0].number for part in instance.operands[:2])
        sizes, part = values.of(operand).shape, values.of(update).shape
        if not is_worth_it(8 * math.prod(sizes), 8 * math.prod(part)):
            return None
        base = inherited.get(operand, np.broadcast_to(0.0, sizes))
        value = whole(inherited.get(update, np.broadcast_to(0.0, part)))
        return Windowed(sizes, np.dtype(np.float64), base, place, value)

    def _of(self, node: Node, result: Array, values: Values, inherited: Mapping[int, Array]) -> Array:
        if not element_type_of(result.dtype).is_inexact:
            return np.zeros(result.shape)
        with np.errstate(all="ignore"):
            bound = self._own(node, result, values)
            for number, errors in inherited.items():
                bound = bound + self._passed_on(node, result, values, number, errors)
        return bound

    def _own(self, node: Node, result: Array, values: Values) -> Array:
        """What the instruction itself adds."""
        chain = self._chains.of(node)
        if not chain.linear:
            return np.zeros(result.shape)
        sizes = _sizes(result)
        in_sums = min(chain.linear, math.sqrt(chain.sum_squares * chain.terms))
        rounded = min(chain.linear - in_sums, LAMBDA * math.sqrt(chain.rounding_squares / 3)) * sizes
        if not in_sums:
            return rounded
        # Σ|tᵢ| of each element, or its substitute.
        if not self._adds_sizes(node.instance):
            sizes = np.maximum(sizes, self._sensitivity(node, result, values))
        elif (largest := self._result(node, Overlay(values, _magnitudes(node.instance, values)))) is not None:
            sizes = np.maximum(sizes, _sizes(largest))
        return rounded + min(in_sums, LAMBDA * math.sqrt(chain.sum_squares / 3)) * sizes

    def _adds_sizes(self, instance: Instance) -> bool:
        """Whether an instruction adds up its operands' elements, or products of them, with no factors of its own."""
        if instance.static not in self._absolute:
            self._absolute[instance.static] = self._is_plain_sum(instance, find_opcode(instance.opcode))
        return self._absolute[instance.static]

    def _is_plain_sum(self, instance: Instance, entry: Entry | None) -> bool:
        if entry is None:
            return False
        names = computation_names(instance.instruction.attributes)
        called = tuple(_Called(self._module.by_name[name]) for name in names)
        if entry.summed is None:
            return entry.exchange is not None and bool(called)
        shapes = tuple(operand.shape for operand in instance.computation.operands_of(instance.instruction))
        summation = entry.summed(
            attributes=instance.instruction.attributes,
            shape=instance.instruction.shape,
            operand_shapes=shapes,
            computations=called,
        )
        return summation is not None and not summation.is_product and not summation.transformed

    def _sensitivity(self, node: Node, result: Array, values: Values) -> Array:
        """How far results move for operands that each move by a part of themselves, in units of that part."""
        inputs = _fractional(node.instance, values)
        types = [element_type_of(values[number].dtype) for number in inputs]
        part = math.sqrt(max(map(unit_roundoff, types), default=1.0))
        sensitivity = np.zeros(result.shape)
        for draw in range(LIMITS.draws):
            random = np.random.default_rng(draw)
            changes = {}
            for number in inputs:
                operand = wide(values[number])
                signs = random.integers(0, 2, operand.shape) * 2 - 1
                changes[number] = _as(operand * (1 + part * signs), values[number])
            moved = self._result(node, Overlay(values, changes))
            if moved is not None:
                sensitivity = np.maximum(sensitivity, _distance(moved, result) / part)
        return sensitivity

    def _passed_on(self, node: Node, result: Array, values: Values, number: int, errors: Array) -> Array:
        """The propagated errors of an operand."""
        if not errors.any():
            return np.zeros(result.shape)
        operand = values[number]
        occurrences = sum(entry.number == number for part in node.instance.operands for entry in part)
        if occurrences == 1 and not node.instance.others and self._adds_sizes(node.instance):
            sizes = _magnitudes(node.instance, values)
            most, least = (
                self._result(node, Overlay(values, {**sizes, number: _as(value, operand)}))
                for value in (errors, np.zeros_like(errors))
            )
            if most is not None and least is not None:
                return _distance(most, least)
        passed = np.zeros(result.shape)
        step = LIMITS.moves * errors * (math.sqrt(0.5) * (1 + 1j) if operand.dtype.kind == "c" else 1.0)
        for sign in (1, -1):
            moved = self._result(node, Overlay(values, {number: _as(wide(operand) + sign * step, operand)}))
            if moved is None:
                # It cannot be run again: as an elementwise operation at its steepest would be taken.
                return errors if errors.shape == result.shape else np.full(result.shape, errors.max())
            passed = np.maximum(passed, _distance(moved, result) / LIMITS.moves)
        return passed

    def _result(self, node: Node, values: Values) -> Array | None:
        arrays = self._evaluator.results(node.instance, values)
        return None if arrays is None or len(arrays) <= node.leaf else arrays[node.leaf]


class PathBounds:
    """The bounds of recorded values, from the nearest ones that the other run has."""

    def __init__(self, graph: Graph, bounds: Bounds) -> None:
        self._values = Holding(graph.arrays, graph.columns.array)
        self._bounds = bounds
        self._known: OrderedDict[int, tuple[frozenset[int], frozenset[int], Bound]] = OrderedDict()

    def behind(self, node: Node, inherited: Mapping[int, Bound]) -> Bound:
        """By how much the elements of a node may be off, where some of its operands are by so much."""
        return self._bounds.of(node, self._values, self._values, inherited)

    def of(self, node: Node, ends: Container[int]) -> Array:
        """By how much the elements of a node may be off, where the nodes in `ends` are what they should be."""
        cached = self._known.get(node.number)
        if cached is not None and all(map(ends.__contains__, cached[0])) and not any(map(ends.__contains__, cached[1])):
            return whole(cached[2])
        bounds: dict[int, Bound] = {}
        met: set[int] = set()
        for current, inputs in on_the_way(node, ends):
            met.update(entry.number for entry in current.instance.inputs if entry.number in ends)
            inherited = {entry.number: bounds[entry.number] for entry in inputs}
            bounds[current.number] = self.behind(current, inherited)
        inside = frozenset(bounds) - {node.number}
        self._known[node.number] = (frozenset(met), inside, bounds[node.number])
        if len(self._known) > LIMITS.known_bounds:
            self._known.popitem(last=False)
        return whole(bounds[node.number])


def whole(bound: Bound) -> Array:
    """Bounds as an array."""
    return bound.array() if isinstance(bound, Windowed) else bound


def _fractional(instance: Instance, values: Values) -> list[int]:
    """The numbers of the operands that are floats or complex numbers."""
    return [entry.number for entry in instance.inputs if element_type_of(values[entry.number].dtype).is_inexact]


def _sizes(values: Array) -> Array:
    """|x|, but no less than the smallest normal number, below which errors are absolute; infinity is the largest."""
    entry = element_type_of(values.dtype)
    sizes = np.abs(wide(values)).astype(np.float64, copy=False)
    # Of NaN and a number, the number.
    return np.asarray(np.fmin(np.fmax(sizes, smallest_normal(entry)), largest_number(entry)))


def _magnitudes(instance: Instance, values: Values) -> dict[int, Array]:
    """The absolute values of the operands that are floats or complex numbers."""
    return {
        number: np.abs(wide(values[number])).astype(values[number].dtype) for number in _fractional(instance, values)
    }


def _as(values: Array, like: Array) -> Array:
    """f64 or c128 numbers in the type of another array."""
    entry = element_type_of(like.dtype)
    return values.astype(like.dtype) if entry.is_complex else narrow(values, entry)


def _distance(first: Array, second: Array) -> Array:
    """|x − y|; zero where neither is finite, and the largest number where one is."""
    x, y = wide(first), wide(second)
    distances = np.asarray(np.abs(x - y).astype(np.float64, copy=False))
    finite = np.isfinite(distances)
    if finite.all():
        return distances
    largest = largest_number(element_type_of(second.dtype))
    return np.where(np.isfinite(x) | np.isfinite(y), np.where(finite, distances, largest), 0.0)
