"""What a search keeps of every value, and which elements lost their value in an instruction, and how.

The history that a search keeps: the ranges of recent values, and the findings that their NaNs come from.

Values are identified by an instruction on a call path, and an index into its value. Memory is bounded by their number,
not by trip counts: only the last few executions of each instruction on each path are kept.

Symptoms: which elements of the result of one run of an instruction lost their value there, and how.

- *overflow*, *pole*, *invalid*: the element is an infinity or NaN, and every operand's element at its place is finite
  (for instructions that are not elementwise: all elements of all operands). A pole is a place where the function itself
  is infinite: x/0, log 0, rsqrt 0; every other infinity is an overflow. Where an operand is infinite already, an
  infinity does not count: masks and initial values of reductions are intended.
- *nan*: the element is NaN, no operand's is, but some are infinite: ∞ − ∞, 0 · ∞, a softmax over nothing but −∞.
- *literal*: an elementwise instruction, mostly a select, brings the NaN of a constant among values: no operand's
  element is NaN but those of operands that constants alone have made. So frameworks say that a factorization failed.
- *saturation*: a convert gives the largest (least) value of its result type for an operand beyond it.
- *underflow*: the element is zero though what it approximates is not: a convert, reduce-precision, exponential,
  multiply, divide or power of operands that are not zero (and not infinite).
- *cancellation*: r = a + b or a − b is not zero, but no larger than the rounding errors that a and b may carry:
  |r| ≤ u_a·|a| + u_b·|b|, where u is the unit roundoff 2^(−p) of the operand's type with p bits of significand. An
  operand that was converted from a narrower type has that type's u. By Sterbenz' lemma r is then exact, and all of its
  bits stem from bits that are rounding errors. (a = b gives an exact 0, which does not count: x − max(x).)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.ir import ArrayShape, Computation, Instruction
from hloexec.core.places import CallPath, RunPlace
from hloexec.core.structs import frozen
from hloexec.core.tree import leaves
from hloexec.core.values import Array
from hloexec.engine.exec.observers import Event
from hloexec.ops.common import is_inexact, widen
from hloexec.ops.registry import find_opcode, traits_of
from hloexec.ops.traits import Index

_BLOCK = 1 << 18


@frozen
class Range:
    """The least and the greatest element of an array, NaN left out; of complex numbers those of both parts."""

    low: float
    """Infinite where there is nothing but NaN, as `high` is, with the opposite sign."""
    high: float
    has_nan: bool

    @property
    def has_infinity(self) -> bool:
        return self.low <= self.high and (math.isinf(self.low) or math.isinf(self.high))

    @property
    def is_finite(self) -> bool:
        return not self.has_nan and not self.has_infinity

    @property
    def magnitude(self) -> float:
        """The greatest absolute value; infinite where there is NaN."""
        return float("inf") if self.has_nan else max(abs(self.low), abs(self.high))

    @property
    def least(self) -> float:
        """A bound below the absolute values: 0 where the range has 0 in it."""
        return 0.0 if self.low <= 0 <= self.high else min(abs(self.low), abs(self.high))


def range_of(array: Array) -> Range | None:
    """The range of an array of floats or complex numbers; None for other types and where there are no elements.

    Where everything is finite, as it nearly always is, an array is read twice and nothing is copied but blocks of
    narrow types.
    """
    its_type = element_type_of(array.dtype)
    if not array.size or not its_type.is_inexact:
        return None
    if not its_type.is_narrow and not its_type.is_complex:
        return _range(array)
    flat = array.reshape(-1)  # a copy where strides say so
    if its_type.is_complex:
        return _joined([_range(flat.real), _range(flat.imag)])
    return _joined([_range(flat[start : start + _BLOCK].astype(np.float32)) for start in range(0, flat.size, _BLOCK)])


def _range(array: Array) -> Range:
    with np.errstate(all="ignore"):
        low, high = float(array.min()), float(array.max())
        if low <= high:
            return Range(low, high, False)
        rest = array[~np.isnan(array)]
        if not rest.size:
            return Range(math.inf, -math.inf, True)
        return Range(float(rest.min()), float(rest.max()), True)


def _joined(parts: list[Range]) -> Range:
    return Range(min(part.low for part in parts), max(part.high for part in parts), any(part.has_nan for part in parts))


_RUNS = 8
"""Runs of an instruction that are remembered, for chains that go back through iterations of a loop."""


@frozen
class Leaf:
    """What is remembered of one array."""

    range: Range | None
    """None for integers and preds."""
    causes: frozenset[int] = frozenset()
    """The findings, by number, that NaN and infinities in it come from."""
    is_constant: bool = False
    """Whether constants alone have made it; known of arrays with NaN or infinities only."""


@frozen
class _Run:
    iterations: tuple[int, ...]
    devices: tuple[int, ...]
    leaves: dict[Index, Leaf]


class History:
    """The latest values at every place."""

    def __init__(self) -> None:
        # By the path, whatever the iterations, and the instruction.
        self._runs: dict[tuple[str, str], deque[_Run]] = {}

    def add(self, place: RunPlace, devices: Sequence[int], leaves: dict[Index, Leaf]) -> None:
        """Remember what an instruction has given on these devices."""
        runs = self._runs.setdefault((place.path.loops, place.instruction), deque())
        runs.append(_Run(place.path.iterations, tuple(devices), leaves))
        # Each of several devices may have a run of its own in an iteration.
        if len(runs) > _RUNS and sum(devices[0] in run.devices for run in runs) > _RUNS:
            runs.popleft()

    def leaf(self, place: RunPlace, device: int) -> Leaf | None:
        """What a device held at a place; None where it is not remembered."""
        runs = self._latest_runs(place)
        return next((run.leaves.get(place.index) for run in runs if device in run.devices), None)

    def leaves_of_all(self, place: RunPlace) -> list[Leaf]:
        """What any device held at a place."""
        runs = self._latest_runs(place)
        return [run.leaves[place.index] for run in runs if place.index in run.leaves]

    def has_run(self, place: RunPlace) -> bool:
        """Whether an instruction has run in these iterations of the loops around it, not long ago."""
        return any(True for _ in self._latest_runs(place))

    def last_iteration(self, body: CallPath, root: str) -> int | None:
        """The last iteration of the loop that has a body with this root, counted from 0; None where it had none."""
        runs = self._runs.get((body.loops, root), ())
        counts = (run.iterations[-1] for run in runs if run.iterations[:-1] == body.outer.iterations)
        return max(counts, default=None)

    def _latest_runs(self, place: RunPlace) -> Iterator[_Run]:
        """The runs in these iterations of the loops around an instruction, the latest first."""
        runs = self._runs.get((place.path.loops, place.instruction), ())
        return (run for run in reversed(runs) if run.iterations == place.path.iterations)


CHECKS = ("overflow", "underflow", "cancellation")
"""What may be looked for besides NaN and infinities."""


@frozen(eq=False)
class Symptom:
    """What went wrong in one leaf of an instruction's value."""

    kind: str
    reason: str
    index: Index
    """The leaf."""
    bad: Array
    """Which elements, as preds."""

    @property
    def count(self) -> int:
        return int(np.count_nonzero(self.bad))


def bad_numbers(event: Event, ranges: Callable[[Array], Range | None]) -> Symptom | None:
    """Where an instruction made NaN or infinities; `ranges` has the range of an array, None for integers."""

    def known_finite(array: Array) -> bool:
        return (array_range := ranges(array)) is None or array_range.is_finite

    instruction = event.instruction
    entry = find_opcode(instruction.opcode)
    operands = [leaf for value in event.operands for _, leaf in leaves(value) if is_inexact(leaf)]
    is_elementwise = entry is not None and entry.is_elementwise
    for index, leaf in leaves(event.value):
        if not is_inexact(leaf) or known_finite(leaf):
            continue
        value = widen(leaf)
        if all(known_finite(operand) for operand in operands):
            bad = ~np.isfinite(value)
            return Symptom(*_described(instruction, event, value, bad), index, bad)
        finite = np.ones(value.shape, np.bool_)
        without_nan = np.ones(value.shape, np.bool_)
        for operand in map(widen, operands):
            if is_elementwise and operand.shape in ((), value.shape):
                finite &= np.isfinite(operand)
                without_nan &= ~np.isnan(operand)
            else:
                finite &= bool(np.isfinite(operand).all())
                without_nan &= not bool(np.isnan(operand).any())
        bad = ~np.isfinite(value) & finite
        if bad.any():
            return Symptom(*_described(instruction, event, value, bad), index, bad)
        bad = np.isnan(value) & without_nan
        if bad.any():
            return Symptom("nan", _of_infinities(instruction), index, bad)
    return None


def nan_count(value: Array, symptom: Symptom) -> int:
    """How many of the elements with a symptom are NaN."""
    return int(np.count_nonzero(np.isnan(widen(value)) & symptom.bad)) if is_inexact(value) else 0


def nan_of_constants(event: Event, are_constant: Sequence[bool]) -> Symptom | None:
    """Where an elementwise instruction has NaN of constants alone; `are_constant` says so of each operand."""
    entry = find_opcode(event.instruction.opcode)
    value = event.value
    if entry is None or not entry.is_elementwise or all(are_constant) or not any(are_constant) or not is_inexact(value):
        return None
    bad = np.isnan(widen(value))
    for operand, is_constant in zip(event.operands, are_constant, strict=True):
        if not is_constant and is_inexact(operand):
            bad &= ~np.isnan(widen(operand))
    return Symptom("literal", "NaN of a constant", (), bad) if bad.any() else None


def _described(instruction: Instruction, event: Event, value: Array, bad: Array) -> tuple[str, str]:
    """The kind and the reason for elements that are nonfinite although the operands are finite."""
    traits = traits_of(instruction)
    are_nan = np.isnan(value[bad])
    if not are_nan.all():
        also = f" or {traits.invalid}" if traits.invalid and are_nan.any() else ""
        if traits.pole is not None:
            operand = event.operands[traits.pole.operand]
            assert isinstance(operand, np.ndarray)
            there = traits.pole.is_at(widen(operand))
            if (np.broadcast_to(there, bad.shape)[bad] & np.isinf(value[bad])).any():
                return "pole", traits.pole.reason + also
        return "overflow", f"overflow of {_type_name(instruction)}{also}"
    if traits.converts:
        return "overflow", f"overflow of {_type_name(instruction)}, which has no infinity"
    entry = find_opcode(instruction.opcode)
    if traits.invalid is not None or (entry is not None and entry.is_elementwise):
        return "invalid", traits.invalid or "invalid operation"
    return "invalid", "invalid operation, or overflow in both directions on the way"


def _of_infinities(instruction: Instruction) -> str:
    """The operation on infinities that has no number as its result."""
    traits = traits_of(instruction)
    sums = {"∞ − ∞": traits.cancels, "0 · ∞": traits.is_product, "∞ / ∞": traits.is_quotient}
    if traits.contraction is not None:
        return "0 · ∞, or ∞ − ∞, in a sum of products"
    return next((reason for reason, is_so in sums.items() if is_so), "NaN out of infinities")


def _type_name(instruction: Instruction) -> str:
    shape = instruction.shape
    return str(shape.element_type) if isinstance(shape, ArrayShape) else "its type"


def losses(event: Event, checks: Sequence[str], share: float) -> Symptom | None:
    """Where an instruction lost a number: the first of `checks` that at least `share` of the elements fail."""
    instruction, value = event.instruction, event.value
    if not isinstance(value, np.ndarray) or not value.size or not event.operands:
        return None
    operands = [operand for operand in event.operands if isinstance(operand, np.ndarray)]
    arrays: list[Any] = [
        np.broadcast_to(widen(operand), value.shape) for operand in operands if operand.shape in ((), value.shape)
    ]
    if len(arrays) < len(event.operands):
        return None
    candidates: list[tuple[str, str, Array]] = []
    traits = traits_of(instruction)
    with np.errstate(all="ignore"):
        if "overflow" in checks and traits.converts:
            its_type = element_type_of(value.dtype)
            candidates.append(("saturation", f"beyond the range of {its_type}", _saturated(arrays[0], its_type)))
        if "underflow" in checks and traits.nonzero is not None and is_inexact(value):
            candidates.append(("underflow", "underflow to zero", traits.nonzero(*arrays) & (widen(value) == 0)))
        if "cancellation" in checks and traits.cancels and is_inexact(value):
            bad = _cancelled(event.computation, instruction, arrays, widen(value))
            candidates.append(("cancellation", "all significant digits cancel", bad))
    for kind, reason, bad in candidates:
        count = np.count_nonzero(bad)
        if count and count >= share * bad.size:
            return Symptom(kind, reason, (), np.asarray(bad))
    return None


def _saturated(operand: Array, its_type: ElementType) -> Array:
    """Elements that lie beyond the range of a convert's result type and were given its limits."""
    if its_type.is_integral and operand.dtype.kind == "f":
        # What is cut to an integer within the range still fits. f64 holds operands and limits, which are powers of two.
        low, high = its_type.integer_range
        cut = np.trunc(operand.astype(np.float64))
        return np.isfinite(operand) & ((cut < low) | (cut >= high + 1))
    if its_type.is_floating and not its_type.has_inf and not its_type.has_nan and operand.dtype.kind not in "bc":
        return np.isfinite(operand) & (np.abs(operand) > _limit(its_type))
    return np.zeros(operand.shape, np.bool_)


def _limit(its_type: ElementType) -> float:
    """Half a step beyond the largest value: what is nearer to it rounds to it."""
    largest = float(ml_dtypes.finfo(its_type.storage).max)
    return largest + 2.0 ** (math.frexp(largest)[1] - 2 - its_type.mantissa_bits)


def _cancelled(computation: Computation, instruction: Instruction, operands: Sequence[Any], value: Array) -> Array:
    """Elements that are no larger than the rounding errors that the operands may carry."""
    errors = np.zeros(value.shape, np.float64)
    if value.dtype.kind == "c":
        return np.zeros(value.shape, np.bool_)
    finite = np.isfinite(value) & (value != 0)
    for name, operand in zip(instruction.operands, operands, strict=True):
        # In f64 the bound is exact for every narrower type, and for f64 but for its own last bit.
        errors += np.abs(operand.astype(np.float64)) * _roundoff(computation, computation.by_name[name])
        finite &= np.isfinite(operand)
    return np.asarray(finite & (np.abs(value) <= errors))


def _roundoff(computation: Computation, instruction: Instruction) -> float:
    """Unit roundoff of a value: its type's, or that of a narrower one that it was converted from."""
    roundoff = 0.0
    while isinstance(instruction.shape, ArrayShape) and instruction.shape.element_type.is_floating:
        roundoff = max(roundoff, 2.0 ** -(instruction.shape.element_type.mantissa_bits + 1))
        if not traits_of(instruction).converts:
            break
        instruction = computation.by_name[instruction.operands[0]]
    return roundoff
