"""What integers of a module may be: between which bounds they lie and, of few, what they are sums of.

Of small arrays each element is a constant plus multiples of *unknowns*, which are elements of inputs and of whatever is
not followed further, each with bounds of its own. So the running sums of lengths are known to grow by a length each,
through scatters, slices and selections whose places are constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, inf, isnan
from typing import Any, TypeAlias

import attrs
import numpy as np

from hloexec.analysis.dataflow import Fact, ForwardAnalysis
from hloexec.core.dtypes import Kind
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module, Shape, TupleShape
from hloexec.core.ir.editing import change_computations, change_entry
from hloexec.core.ir.shape import elements_of
from hloexec.core.structs import define, frozen
from hloexec.core.tree import fold
from hloexec.core.values import Array, Inputs, Value
from hloexec.engine.exec.running import repeated_run
from hloexec.engine.options import Options
from hloexec.engine.plan.schedule import callees_first
from hloexec.errors import EvaluationError, UnsupportedError
from hloexec.ops.attributes import computation_names
from hloexec.ops.control.flow import make_parameter
from hloexec.ops.intervals import UNBOUNDED, UNKNOWN, Bounds, Use
from hloexec.ops.reduction.reducers import recognise
from hloexec.ops.registry import Role, entry_of, exchanges, find_opcode, traits_of
from hloexec.ops.relations import GroupSizes, Place, Requirement, RunningSums, Starts, Within

_MOST_UNKNOWNS = 64
"""Elements of an array of which each is an unknown."""
_MOST_CONSTANTS = 4096
"""Elements of an array that is computed from constants."""
_LARGEST = 2.0**52
"""Beyond it bounds are not exact, and tell nothing."""

_Run: TypeAlias = Callable[[Inputs], list[Value]]

Ends: TypeAlias = tuple[Array, Array]
"""The lowest and the highest number that each element may be."""


@frozen(eq=False)
class Terms:
    """The elements of an array: each a constant, and a factor for each of some unknowns."""

    constant: Array
    factors: Mapping[int, Array] = attrs.field(factory=dict)
    """By unknown."""

    def equals(self, other: Terms | None) -> bool:
        return (
            other is not None
            and np.array_equal(self.constant, other.constant)
            and self.factors.keys() == other.factors.keys()
            and all(np.array_equal(factor, other.factors[unknown]) for unknown, factor in self.factors.items())
        )

    def minus(self, other: Terms) -> Terms:
        """The differences of as many elements."""
        factors = {
            unknown: self.factors.get(unknown, 0) - other.factors.get(unknown, np.zeros_like(other.constant))
            for unknown in {**self.factors, **other.factors}
        }
        return Terms(self.constant - other.constant, factors)

    def plus(self, other: Terms) -> Terms:
        return self.minus(Terms(-other.constant, {unknown: -factor for unknown, factor in other.factors.items()}))

    def part(self, index: Any) -> Terms:
        """Some of the elements, as one dimension."""
        return Terms(
            self.constant.reshape(-1)[index],
            {unknown: factor.reshape(-1)[index] for unknown, factor in self.factors.items()},
        )


@frozen
class Numbers(Fact["Numbers"]):
    """What is known of a value: all its elements lie in [low, high]."""

    low: float = -inf
    high: float = inf
    terms: Terms | None = None

    def joined(self, other: Numbers) -> Numbers:
        """What grows from round to round has no bound."""
        return Numbers(
            low=self.low if other.low >= self.low else -inf,
            high=self.high if other.high <= self.high else inf,
            terms=self.terms if self.terms is not None and self.terms.equals(other.terms) else None,
        )

    @property
    def constant(self) -> Array | None:
        """The elements, where they are known."""
        return None if self.terms is None or self.terms.factors else self.terms.constant


_NOTHING = Numbers()


def _limits(shape: ArrayShape) -> tuple[float, float]:
    """The least and the largest number of an integral type or of pred."""
    if shape.element_type.kind is Kind.PRED:
        return 0, 1
    return shape.element_type.integer_range


def _is_counted(shape: Shape) -> bool:
    """Whether a value is an array of numbers that are followed."""
    if not isinstance(shape, ArrayShape) or not shape.is_array or shape.is_dynamic:
        return False
    return shape.element_type.is_integral or shape.element_type.kind is Kind.PRED


@define(eq=False)
class Ranges(ForwardAnalysis[Numbers]):
    """The analysis, and which requirements of a module's instructions hold whatever its inputs are."""

    unknowns: list[tuple[float, float]] = attrs.field(factory=list)
    """The bounds of each."""
    unproven: dict[tuple[Place, Requirement], None] = attrs.field(factory=dict)
    """Requirements that may not hold."""
    constants: dict[tuple[Place, int], Array] = attrs.field(factory=dict)
    """By instruction and operand, what these hold that is read by a requirement and known."""
    _kernels: dict[Place, Any] = attrs.field(factory=dict)
    _runs: dict[object, _Run] = attrs.field(factory=dict)

    @classmethod
    def of(cls, module: Module) -> Ranges:
        ranges = cls(module)
        ranges.run(module.entry, [ranges._unknown_value(parameter.shape) for parameter in module.entry.parameters])
        return ranges

    @property
    def nothing(self) -> Numbers:
        return _NOTHING

    def constant(self, instruction: Instruction, place: Place) -> Numbers:
        array = instruction.attributes.literal.held
        if not _is_counted(instruction.shape) or not isinstance(array, np.ndarray) or not array.size:
            return _NOTHING
        return self._of_array(array)

    def computed(
        self, computation: Computation, instruction: Instruction, operands: list[Numbers], place: Place
    ) -> Numbers:
        shape, shapes = instruction.shape, [operand.shape for operand in computation.operands_of(instruction)]
        self._check(instruction, operands, shapes, place)
        if not isinstance(shape, ArrayShape):
            return self._parts(instruction, operands, place)
        if not _is_counted(shape):
            return _NOTHING
        facts = [
            self._opened(fact, operand_shape) if _is_counted(operand_shape) else fact
            for fact, operand_shape in zip(operands, shapes, strict=True)
        ]
        terms = self._terms(instruction, facts, shapes, place)
        numbers = None if terms is None else self._of_terms(terms, shape)
        return numbers or self._unknown(shape, *self._bounds(instruction, facts, shapes))

    def _parts(self, instruction: Instruction, operands: Sequence[Numbers], place: Place) -> Numbers:
        """Of several arrays, where all that they are computed from is facts."""
        constants = [operand.constant for operand in operands]
        if not isinstance(instruction.shape, TupleShape) or not all(map(_is_counted, instruction.shape.elements)):
            return _NOTHING
        arrays = [array for array in constants if array is not None and array.size <= _MOST_CONSTANTS]
        results = self._result(instruction, arrays, place) if operands and len(arrays) == len(operands) else None
        if not isinstance(results, tuple):
            return _NOTHING
        return self._tuple([self._of_array(np.asarray(result)) for result in results])

    def _unknown_value(self, shape: Shape) -> Numbers:
        """That of an input."""
        return fold(shape, elements_of, self._unknown_leaf, lambda _, parts: self._tuple(parts))

    def _unknown_leaf(self, shape: Shape) -> Numbers:
        return self._opened(_NOTHING, shape) if _is_counted(shape) else _NOTHING

    def _opened(self, fact: Numbers, shape: Shape) -> Numbers:
        """A fact with bounds that the type has, and unknowns where there is nothing else."""
        assert isinstance(shape, ArrayShape)
        return fact if fact.terms is not None else self._unknown(shape, fact.low, fact.high)

    def _unknown(self, shape: ArrayShape, low: float, high: float) -> Numbers:
        least, largest = _limits(shape)
        low, high = max(low, least), min(high, largest)
        count, terms = shape.element_count, None
        if count > 0 and low == high and count <= _MOST_CONSTANTS and abs(low) < _LARGEST:
            terms = Terms(np.full(shape.dimensions, low, np.int64))
        elif 0 < count <= _MOST_UNKNOWNS:
            first, places = len(self.unknowns), np.eye(count, dtype=np.int64)
            self.unknowns += [(low, high)] * count
            rows = {first + number: row.reshape(shape.dimensions) for number, row in enumerate(places)}
            terms = Terms(np.zeros(shape.dimensions, np.int64), rows)
        return Numbers(low, high, terms)

    def _of_array(self, array: Array) -> Numbers:
        if not array.size:
            return Numbers(terms=Terms(array.astype(np.int64)))
        low, high = float(array.min()), float(array.max())
        is_small = array.size <= _MOST_CONSTANTS and max(-low, high) < _LARGEST
        return Numbers(low, high, Terms(array.astype(np.int64)) if is_small else None)

    def _of_terms(self, terms: Terms, shape: ArrayShape) -> Numbers | None:
        """None where elements may not be numbers of the type, so that they may have wrapped."""
        low, high = self.ends(terms)
        least, largest = _limits(shape)
        lowest, highest = low.min(initial=largest), high.max(initial=least)
        if not least <= lowest or not highest <= largest or max(-lowest, highest) > _LARGEST:
            return None
        return Numbers(float(lowest), float(highest), terms)

    def ends(self, terms: Terms) -> Ends:
        low = terms.constant.astype(np.float64)
        high = low.copy()
        for unknown, factor in terms.factors.items():
            least, largest = self.unknowns[unknown]
            with np.errstate(invalid="ignore"):
                ends = [np.where(factor == 0, 0.0, factor * float(end)) for end in (least, largest)]
            low, high = low + np.minimum(*ends), high + np.maximum(*ends)
        return low, high

    def _bounds(
        self, instruction: Instruction, operands: Sequence[Numbers], shapes: Sequence[Shape]
    ) -> tuple[float, float]:
        """Between which numbers the elements of a result lie."""
        arrays = [shape for shape in shapes if isinstance(shape, ArrayShape)]
        bounds = self._bounds_by_rule(instruction, operands, arrays) if len(arrays) == len(shapes) else UNKNOWN
        if isnan(bounds.low) or isnan(bounds.high):
            return -inf, inf
        low, high = _limits(instruction.shape)  # type: ignore[arg-type]
        if bounds.low < low or bounds.high > high:
            return -inf, inf  # integers may have wrapped
        return ceil(bounds.low), floor(bounds.high)

    def _bounds_by_rule(
        self, instruction: Instruction, operands: Sequence[Numbers], shapes: Sequence[ArrayShape]
    ) -> Bounds:
        traits = traits_of(instruction)
        additions = None if traits.additions is None else traits.additions(instruction, self.module, shapes)
        if additions is not None:
            base, added = (self._hull(operands, numbers) for numbers in (additions.base, additions.added))
            return Bounds(
                base.low + additions.terms * min(added.low, 0), base.high + additions.terms * max(added.high, 0)
            )
        use = Use(
            instruction,
            tuple(shapes),
            tuple(
                Bounds(operand.low, operand.high) if _is_counted(shape) else UNBOUNDED
                for operand, shape in zip(operands, shapes, strict=True)
            ),
            self.module,
        )
        for rule in (traits.integer_bounds, traits.bounds):
            bounds = UNKNOWN if rule is None else rule(use, *use.bounds)
            if not isnan(bounds.low):
                return bounds
        moved = traits.moved_operands(len(operands))
        if not moved or any(shapes[number].element_type != use.shape.element_type for number in moved):
            return UNKNOWN
        hull = self._hull(operands, moved)
        return Bounds(min(hull.low, 0), max(hull.high, 0)) if traits.fills else hull

    def _hull(self, operands: Sequence[Numbers], numbers: Sequence[int]) -> Bounds:
        chosen = [operands[number] for number in numbers]
        if not chosen:
            return Bounds(0, 0)
        return Bounds(min(one.low for one in chosen), max(one.high for one in chosen))

    def _terms(
        self, instruction: Instruction, operands: Sequence[Numbers], shapes: Sequence[Shape], place: Place
    ) -> Terms | None:
        """What the elements of a result are sums of; None where that is not known."""
        shape = instruction.shape
        assert isinstance(shape, ArrayShape)
        if exchanges(instruction) or shape.element_count > _MOST_CONSTANTS or not operands:
            return None
        traits, terms = traits_of(instruction), [operand.terms for operand in operands]
        if traits.converts and terms[0] is not None and self._of_terms(terms[0], shape) is not None:
            return terms[0]
        constants = [operand.constant is not None for operand in operands]
        added = () if all(constants) else self._linear_in(instruction, constants, shapes)
        if added is None or not all(is_known or number in added for number, is_known in enumerate(constants)):
            return None
        of_operands = [one for one in terms if one is not None]
        if len(of_operands) < len(terms) or (added and shape.element_count > _MOST_UNKNOWNS):
            return None
        first = self._column(instruction, of_operands, None, added, place)
        unknowns = {unknown: None for one in of_operands for unknown in one.factors}
        if first is None:
            return None
        factors = {}
        for unknown in unknowns:
            factor = self._column(instruction, of_operands, unknown, added, place)
            if factor is None:
                return None
            factors[unknown] = factor
        return Terms(first, {unknown: factor for unknown, factor in factors.items() if factor.any()})

    def _linear_in(
        self, instruction: Instruction, constants: Sequence[bool], shapes: Sequence[Shape]
    ) -> tuple[int, ...] | None:
        """The operands of whose elements those of the result are sums, with factors that the other operands give."""
        traits, arrays = traits_of(instruction), [shape for shape in shapes if isinstance(shape, ArrayShape)]
        additions = None if traits.additions is None else traits.additions(instruction, self.module, arrays)
        if additions is not None:
            return (*additions.base, *additions.added)
        if traits.cancels:
            return tuple(range(len(shapes)))
        if traits.is_product and any(constants):
            return tuple(number for number, is_known in enumerate(constants) if not is_known)
        return traits.moved_operands(len(shapes)) or None

    def _column(
        self, instruction: Instruction, terms: Sequence[Terms], unknown: int | None, added: Sequence[int], place: Place
    ) -> Array | None:
        """The constants of a result, or its factors of an unknown."""
        arrays = [
            one.constant
            if unknown is None or number not in added
            else one.factors.get(unknown, np.zeros_like(one.constant))
            for number, one in enumerate(terms)
        ]
        result = self._result(instruction, arrays, place)
        if not isinstance(result, np.ndarray):
            return None
        if unknown is not None and result.dtype.kind == "u":
            result = result.view(f"i{result.dtype.itemsize}")
        return result.astype(np.int64)

    def _result(self, instruction: Instruction, arrays: Sequence[Array], place: Place) -> Any:
        """What an instruction gives; None where it takes more than its operands to say so."""
        kernel = self._kernels.get(place)
        if kernel is None and place not in self._kernels:
            kernel = self._kernels[place] = self._kernel(instruction, place)
        try:
            return None if kernel is None else kernel(arrays)
        except (EvaluationError, UnsupportedError):
            return None

    def _kernel(self, instruction: Instruction, place: Place) -> Any:
        entry = find_opcode(instruction.opcode)
        computation = self.module.by_name[place[0]]
        shapes = [operand.shape for operand in computation.operands_of(instruction)]
        if entry is None or entry.role is not Role.KERNEL or not entry.is_pure or entry.evaluate is None:
            return None
        types = [shape.element_type.storage for shape in shapes if isinstance(shape, ArrayShape)]
        if "computations" not in entry.evaluate.needs and not computation_names(instruction.attributes):
            evaluate = entry.evaluate
            options = {
                "attributes": instruction.attributes,
                "shape": instruction.shape,
                "operand_shapes": tuple(shapes),
            }

            def direct(arrays: Sequence[Array]) -> Any:
                with np.errstate(all="ignore"):
                    return evaluate(*map(_cast, arrays, types), **options)

            return direct
        outputs = self._alone(instruction, shapes)
        return lambda arrays: outputs([list(map(_cast, arrays, types))])[0]

    def _alone(self, instruction: Instruction, shapes: Sequence[Shape]) -> _Run:
        """A run of the module that is one instruction with the computations that it calls; one run for all that add up
        or choose in the same way."""
        called = [self.module.by_name[name] for name in computation_names(instruction.attributes)]
        kinds = [recognise(computation) for computation in called]
        key = None
        if len(kinds) == 1 and kinds[0] is not None and hasattr(instruction.attributes, "to_apply"):
            attributes = attrs.evolve(instruction.attributes, to_apply=kinds[0])
            key = instruction.opcode, attributes, instruction.shape, tuple(shapes)
            if key in self._runs:
                return self._runs[key]
        parameters = [make_parameter(f"operand.{number}", shape, number) for number, shape in enumerate(shapes)]
        operands = tuple(parameter.name for parameter in parameters)
        alone = attrs.evolve(instruction, name="result", operands=operands, control_predecessors=(), span=None)
        entry = Computation(name="alone", instructions=(*parameters, alone), root_name=alone.name)
        below = {one.name: one for computation in called for one in callees_first(self.module, computation)}
        computations = (*below.values(), entry)
        module = change_entry(change_computations(self.module, computations), entry.name)
        run = repeated_run(attrs.evolve(module, replica_count=1, num_partitions=1), _PLAIN)
        if key is not None:
            self._runs[key] = run
        return run

    def _check(
        self, instruction: Instruction, operands: Sequence[Numbers], shapes: Sequence[Shape], place: Place
    ) -> None:
        """Take note of what an instruction requires of operands, where that may not hold."""
        for requirement in requirements_of(instruction, shapes):
            read = operands_read(requirement)
            facts = {
                number: self._opened(operands[number], shapes[number]) for number in read if _is_counted(shapes[number])
            }
            if len(facts) < len(read) or not self._holds(requirement, facts):
                self.unproven[place, requirement] = None
            for number, fact in facts.items():
                if fact.constant is not None:
                    self.constants[place, number] = fact.constant

    def _holds(self, requirement: Requirement, facts: Mapping[int, Numbers]) -> bool:
        terms = facts[requirement.operand].terms
        match requirement:
            case Within(operand=operand, low=low, high=high):
                return low <= facts[operand].low and facts[operand].high <= high
            case RunningSums(count=count, most=most):
                return terms is not None and self._most(_steps(terms, count)) <= most
            case GroupSizes(room=room):
                if terms is None or self._least(terms) < 0:
                    return False
                size = terms.constant.shape[-1]
                groups = [terms.part(slice(first, first + size)) for first in range(0, terms.constant.size, size)]
                return all(self._most(_sum(group)) <= room for group in groups)
            case Starts():
                lengths = facts[requirement.lengths].terms
                return terms is not None and lengths is not None and self._starts_hold(requirement, terms, lengths)

    def _starts_hold(self, requirement: Starts, terms: Terms, lengths: Terms) -> bool:
        count, unit = requirement.count, requirement.unit
        sizes = _steps(lengths, count) if requirement.are_sums else lengths.part(slice(count))
        starts = terms.part(slice(count))
        ends = starts.plus(Terms(sizes.constant * unit, {key: factor * unit for key, factor in sizes.factors.items()}))
        room = requirement.room * unit
        if requirement.may_be_empty:
            pieces = np.flatnonzero(self.ends(sizes)[1] > 0)
            starts, ends = starts.part(pieces), ends.part(pieces)
        return self._least(starts) >= 0 and self._most(starts) <= room and self._most(ends) <= room

    def _least(self, terms: Terms) -> float:
        return float(self.ends(terms)[0].min(initial=inf))

    def _most(self, terms: Terms) -> float:
        return float(self.ends(terms)[1].max(initial=-inf))


_PLAIN = Options(planner=False, verify=False)


def _cast(array: Array, storage: Any) -> Array:
    return np.asarray(array.astype(storage, order="C"))


def _steps(terms: Terms, count: int) -> Terms:
    """By how much each of so many elements after the first one is larger than that before."""
    return terms.part(slice(1, count + 1)).minus(terms.part(slice(count)))


def _sum(terms: Terms) -> Terms:
    return Terms(
        terms.constant.sum(keepdims=True),
        {unknown: factor.sum(keepdims=True) for unknown, factor in terms.factors.items()},
    )


def operands_read(requirement: Requirement) -> tuple[int, ...]:
    """The numbers of the operands that a requirement is of."""
    if isinstance(requirement, Starts):
        return requirement.operand, requirement.lengths
    return (requirement.operand,)


def requirements_of(instruction: Instruction, shapes: Sequence[Shape]) -> tuple[Requirement, ...]:
    """What an instruction requires of its operands; nothing where it cannot run."""
    entry = entry_of(instruction)
    if entry is None or entry.requires is None or entry.reason_against(instruction) is not None:
        return ()
    options: dict[str, Any] = {
        "attributes": instruction.attributes,
        "shape": instruction.shape,
        "operand_shapes": tuple(shapes),
    }
    if entry.config is not None:
        options["config"] = entry.config(instruction)
    return tuple(one for one in entry.requires(**options) if _is_readable(one, shapes))


def _is_readable(requirement: Requirement, shapes: Sequence[Shape]) -> bool:
    """Whether operands are integers, as many as a requirement is of; the instruction fails where they are not."""
    read = [shapes[number] for number in operands_read(requirement)]
    counts = [shape.element_count for shape in read if isinstance(shape, ArrayShape) and _is_counted(shape)]
    match requirement, counts:
        case RunningSums(count=count), [first]:
            return first > count
        case Starts(count=count, are_sums=are_sums), [first, second]:
            return first >= count and second >= count + are_sums
    return isinstance(requirement, Within | GroupSizes) and bool(counts)


def has_requirements(module: Module) -> bool:
    """Whether a module has instructions that require something of integers."""
    entries = (entry_of(instruction) for computation in module for instruction in computation)
    return any(entry is not None and entry.requires is not None for entry in entries)
