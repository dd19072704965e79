"""Compares one example's results with what they should be."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import ml_dtypes
import numpy as np

from conformance import bounds
from conformance.cell import Accumulated, Array, Correct, Equal, Example, Normwise, Within
from hloexec.core.dtypes import ElementType, Kind, element_type_of


@attrs.frozen(eq=False)
class Outcome:
    """What is wrong with hloexec's result and with XLA's, as one mask per leaf, and how far both are off at most."""

    wrong: tuple[Array, ...]
    xla_wrong: tuple[Array, ...] = ()
    worst: float = 0.0
    """In representable values for `Correct`, in units of the bound for sums."""
    xla_worst: float = 0.0
    message: str = ""

    @property
    def is_right(self) -> bool:
        return not self.message and not any(mask.any() for mask in self.wrong)


def check_result(
    example: Example,
    ours: Sequence[Array],
    xla: Sequence[Array] | None,
    wide: Sequence[Array] | None,
    magnitude: Sequence[Array] | None,
) -> Outcome:
    """`wide` and `magnitude` are XLA's f64 results for the operands and for their absolute values."""
    other = xla if xla is not None else wide
    if other is not None:
        message = _unlike(ours, other, xla is not None)
        if message:
            return Outcome(tuple(np.ones(np.shape(leaf), bool) for leaf in ours), message=message)
    match example.check:
        case Within(low, high):
            return Outcome(tuple(_outside(leaf, low, high) for leaf in ours))
        case Correct():
            return _against_reference(example, example.check, ours, xla)
        case Accumulated() | Normwise() if wide is not None and element_type_of(ours[0].dtype).is_floating:
            return _within_bound(example.check, ours, xla, wide, magnitude)
        case Accumulated() | Normwise() if wide is not None and element_type_of(ours[0].dtype).is_complex:
            return _within_bound(example.check, ours, xla, wide, magnitude)
        case Equal() | Accumulated() | Normwise():
            if xla is None:
                return Outcome(tuple(np.zeros(leaf.shape, bool) for leaf in ours))
            return Outcome(tuple(~same_bits(own, theirs) for own, theirs in zip(ours, xla, strict=True)))
    raise AssertionError(example.check)


def _unlike(ours: Sequence[Array], other: Sequence[Array], types: bool) -> str:
    if len(ours) != len(other):
        return f"hloexec has {len(ours)} leaves, XLA {len(other)}"
    for own, theirs in zip(ours, other, strict=True):
        if own.shape != theirs.shape or (types and own.dtype.itemsize != theirs.dtype.itemsize):
            return f"hloexec has {own.dtype}{list(own.shape)}, XLA {theirs.dtype}{list(theirs.shape)}"
    return ""


def same_bits(own: Array, theirs: Array) -> Array:
    """Whether elements have the same bits, or are both NaN; sub-byte types count with their own bits only."""
    entry = element_type_of(own.dtype)
    theirs = theirs if theirs.dtype == own.dtype else theirs.view(own.dtype)
    if entry.is_complex:
        part = f"f{own.itemsize // 2}"
        halves = [np.ascontiguousarray(array).reshape(*array.shape, 1).view(part) for array in (own, theirs)]
        return np.asarray(same_bits(*halves).all(-1))
    patterns = [np.ascontiguousarray(a).reshape(a.shape).view(f"u{a.itemsize}") for a in (own, theirs)]
    if entry.bits < 8:
        patterns = [pattern & ((1 << entry.bits) - 1) for pattern in patterns]
    same = patterns[0] == patterns[1]
    if entry.has_nan:
        with np.errstate(all="ignore"):
            same |= np.isnan(own) & np.isnan(theirs)
    return np.asarray(same)


def _outside(leaf: Array, low: float, high: float) -> Array:
    wide = leaf.astype(np.float64)
    return np.asarray(~((wide >= low) & (wide <= high)))


def _against_reference(example: Example, check: Correct, ours: Sequence[Array], xla: Sequence[Array] | None) -> Outcome:
    (own,) = ours
    entry = element_type_of(own.dtype)
    if not entry.is_floating and not entry.is_complex:
        expected = _wrapped(check.reference(*map(_whole, example.operands)), entry)
        its_wrong = () if xla is None else (~same_bits(xla[0], expected.reshape(own.shape)),)
        return Outcome((~same_bits(own, expected.reshape(own.shape)),), its_wrong)
    with np.errstate(all="ignore"):
        wide = [
            operand.astype(np.complex128 if operand.dtype.kind == "c" else np.float64) for operand in example.operands
        ]
        exact = bounds.rounded(check.reference(*wide), entry).reshape(own.shape)
        allowed = bounds.allowed_steps(entry) if check.steps is None else check.steps
        off = bounds.steps(own, exact)
        if entry.name == "f8e8m0fnu":
            # It has neither zero nor smaller numbers than 2^-127; what becomes of them is nobody's rule.
            off = np.where(np.isnan(exact.astype(np.float64)) | (exact.astype(np.float64) <= 2.0**-127), 0.0, off)
        if xla is None:
            return Outcome((off > allowed,), worst=_largest(off))
        its_off = bounds.steps(xla[0], exact)
        # XLA:CPU flushes results that are denormal in the type it computes in.
        tiny = np.abs(exact.astype(np.complex128)) < bounds.smallest_normal(element_type_of(entry.compute)) * 2
        its_off = np.where(tiny, 0.0, its_off)
        if entry.name == "f8e8m0fnu":
            its_off = np.where(np.isnan(exact.astype(np.float64)), 0.0, its_off)
    return Outcome((off > allowed,), (its_off > allowed,), _largest(off), _largest(its_off))


def _whole(operand: Array) -> Array:
    """As Python's integers."""
    return np.asarray(operand.astype(element_type_of(operand.dtype).compute).astype(object))


def _wrapped(values: Array, entry: ElementType) -> Array:
    """Python's integers in an integer type, modulo 2^bits."""
    if entry.name == "pred":
        return np.asarray(values, np.bool_)
    modulus, half = 1 << entry.bits, 1 << entry.bits - 1
    offset = half if entry.kind is Kind.SIGNED else 0
    wrapped = [(int(value) + offset) % modulus - offset for value in np.ravel(values)]
    return np.array(wrapped, entry.compute).astype(entry.storage).reshape(np.shape(values))


def _largest(distances: Array) -> float:
    finite = distances[np.isfinite(distances)]
    return float(finite.max(initial=0.0))


def _within_bound(
    check: Accumulated | Normwise,
    ours: Sequence[Array],
    xla: Sequence[Array] | None,
    wide: Sequence[Array],
    magnitude: Sequence[Array] | None,
) -> Outcome:
    wrong, its_wrong, worst, its_worst = [], [], 0.0, 0.0
    for number, (own, exact) in enumerate(zip(ours, wide, strict=True)):
        entry = element_type_of(own.dtype)
        if not entry.is_floating and not entry.is_complex:
            other = exact if xla is None else xla[number]
            wrong.append(~same_bits(own, other.astype(own.dtype)))
            its_wrong.append(np.zeros(own.shape, bool))
            continue
        for values, masks in ((own, wrong), (None if xla is None else xla[number], its_wrong)):
            if values is None:
                continue
            ratio = _ratio(check, values, exact, None if magnitude is None else magnitude[number])
            masks.append(np.broadcast_to(~(ratio <= 1), own.shape))
            largest = float(np.nanmax(np.where(np.isfinite(ratio), ratio, 0), initial=0.0))
            if values is own:
                worst = max(worst, largest)
            else:
                its_worst = max(its_worst, largest)
    return Outcome(tuple(wrong), tuple(its_wrong), worst, its_worst)


def _ratio(check: Accumulated | Normwise, values: Array, exact: Array, magnitude: Array | None) -> Array:
    """The error in units of the bound; 0 where neither is finite in the same way."""
    entry = element_type_of(values.dtype)
    wide = values.astype(np.complex128)
    exact = np.asarray(exact, np.complex128)
    with np.errstate(all="ignore"):
        if isinstance(check, Normwise):
            bound = bounds.normwise(entry, check.factor, exact)
            return np.asarray(np.linalg.norm((wide - exact).ravel()) / bound if bound else 0.0)
        assert magnitude is not None
        bound_array = bounds.accumulation(entry, check.length, check.stepwise, exact, np.abs(magnitude))
        # What overflows in the type is infinite there, and finite in f64.
        largest = _largest_number(entry)
        overflows = np.abs(exact) + bound_array > largest
        error = np.where(wide == exact, 0.0, np.abs(wide - exact)) / bound_array
        return np.where(overflows | (np.isnan(wide) & np.isnan(exact)), 0.0, np.where(np.isnan(error), np.inf, error))


def _largest_number(entry: ElementType) -> float:
    storage = entry.storage
    return float(ml_dtypes.finfo(storage if storage.kind != "c" else np.dtype(f"f{storage.itemsize // 2}")).max)
