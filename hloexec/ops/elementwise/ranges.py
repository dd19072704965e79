"""Rules of interval arithmetic for elementwise operations: bounds forward, demands backward (see `intervals`)."""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from hloexec.ops.intervals import (
    ANYTHING,
    INFINITY,
    MASK,
    POSITIVE,
    UNKNOWN,
    Bounds,
    BoundsRule,
    Demand,
    Demanded,
    Use,
)

_MOST_TRIPS = 8
_LARGEST_DIVISOR = 99
_SMALLEST_PENALTY = 1000
_MOST_CHOICES = 8
_SEGMENTS = 3
"""The highest number of integers that are compared with one another: many are equal."""
_ABOVE_ZERO = {("GT", 0), ("LE", 0), ("GE", 1), ("LT", 1)}
"""Comparisons that tell 0 from 1."""
_MIRRORED = {"GT": "LT", "LT": "GT", "GE": "LE", "LE": "GE"}


def rising(function: Callable[..., float]) -> BoundsRule:
    """The rule of functions that do not fall where any operand rises."""

    def bounds(use: Use, *operands: Bounds) -> Bounds:
        lows, highs = zip(*((operand.low, operand.high) for operand in operands), strict=True)
        return Bounds(function(*lows), function(*highs))

    return bounds


def add_demands(use: Use, demand: Demand) -> Demanded:
    """x + y in [low, high]: where y is unknown, both must be as positive (or negative) as the sum.

    An integer of which nothing but the type is known is unknown, too: no x would do for each of its values.
    """
    for number, other in ((0, use.bounds[1]), (1, use.bounds[0])):
        own = use.bounds[number]
        wanted = Demand(demand.low - other.low, demand.high - other.high)
        is_known = other.is_bounded and wanted.low <= own.high and wanted.high >= own.low
        if not is_known:
            wanted = Demand(demand.low - max(other.low, 0), INFINITY) if demand.low == 0 else ANYTHING
        yield number, attrs.evolve(wanted, is_offset=demand.low == 0 and not is_known)


def subtract_demands(use: Use, demand: Demand) -> Demanded:
    x, y = use.bounds
    if y.is_bounded:
        yield 0, Demand(demand.low + y.high, demand.high + y.low)
    if x.is_bounded:
        yield 1, Demand(x.high - demand.high, x.low - demand.low)


def multiply_bounds(use: Use, x: Bounds, y: Bounds) -> Bounds:
    corners = [0.0 if a == 0 or b == 0 else a * b for a in (x.low, x.high) for b in (y.low, y.high)]
    is_square = use.instruction.operands[0] == use.instruction.operands[1]
    return Bounds(max(0, min(corners)) if is_square else min(corners), max(corners))


def multiply_demands(use: Use, demand: Demand) -> Demanded:
    if use.instruction.operands[0] == use.instruction.operands[1]:
        return
    for number, other in ((0, use.bounds[1]), (1, use.bounds[0])):
        if other.low == other.high and 0 < abs(other.low) < INFINITY:
            yield number, demand.times(1 / other.low)
        elif other.low >= 0 and 0 < other.high < INFINITY and demand.high < INFINITY and demand.low <= 0:
            yield number, Demand(0, demand.high / other.high)
        elif demand.low == 0:
            yield number, Demand(high=0) if other.high <= 0 else POSITIVE


def divide_demands(use: Use, demand: Demand) -> Demanded:
    x, y = use.bounds
    if y.low == y.high and 0 < y.low < INFINITY:
        yield 0, demand.times(y.low)
    elif demand.low == 0:
        yield 0, POSITIVE
        if x.low >= 0:
            yield 1, POSITIVE


def divisor_demands(use: Use) -> Demanded:
    is_integral = use.shapes[1].element_type.is_integral
    yield 1, (Demand(1, _LARGEST_DIVISOR, is_defined_beyond=True) if is_integral else POSITIVE)


def power_bounds(use: Use, x: Bounds, y: Bounds) -> Bounds:
    if x.low >= 0:
        return Bounds(0, 1) if x.high <= 1 and y.low >= 0 else Bounds(0, INFINITY)
    return Bounds(0, INFINITY) if y.low == y.high and y.low % 2 == 0 else UNKNOWN


def power_base_demands(use: Use) -> Demanded:
    exponent = use.bounds[1]
    if not (exponent.low == exponent.high and float(exponent.low).is_integer()):
        yield 0, POSITIVE


def power_demands(use: Use, demand: Demand) -> Demanded:
    """x ** y in [low, high]: y lies between their logarithms to a known base x. It is at most 1 with x in [0, 1] and y
    positive, or with x above 1 where y is negative."""
    base, exponent = use.bounds
    if not (base.low == base.high and 0 < base.low < INFINITY and base.low != 1):
        if demand.high == 1:
            yield from [(0, Demand(low=1))] if exponent.high < 0 else [(0, Demand(0, 1)), (1, POSITIVE)]
        return
    for _, wanted in exponential_demands(use, demand):
        yield 1, wanted.times(1 / math.log(base.low))


def exponential_demands(use: Use, demand: Demand, logarithm: Callable[[float], float] = math.log) -> Demanded:
    """bˣ in [low, high]: x lies between their logarithms to the base b."""
    if demand.high > 0:
        low, high = (
            -INFINITY if end <= 0 else INFINITY if end == INFINITY else logarithm(end)
            for end in (demand.low, demand.high)
        )
        yield 0, Demand(low, high)


def same_demands(use: Use, demand: Demand) -> Demanded:
    yield from ((i, Demand(demand.low, demand.high)) for i in range(len(use.shapes)))


def nearest_bounds(use: Use, x: Bounds) -> Bounds:
    return Bounds(x.low - 0.5, x.high + 0.5)


def subtract_mask_demands(use: Use) -> Demanded:
    """1 less an integer, and as floats that less 1, drops what a mask keeps."""
    x, y = use.bounds
    if x.low == x.high == 1:
        yield 1, MASK
    elif y.low == y.high == 1 and use.shape.element_type.is_floating:
        yield 0, MASK


def multiply_mask_demands(use: Use) -> Demanded:
    """Integers, as floats, are a mask that are multiplied by a large constant, or by as many unlike numbers: not by
    what a broadcast repeats, such as the frequencies that positions are multiplied by, or scales."""
    if not use.shape.element_type.is_floating or len(set(use.instruction.operands)) == 1:
        return
    for number, other in ((0, use.bounds[1]), (1, use.bounds[0])):
        is_penalty = other.low == other.high and abs(other.low) >= _SMALLEST_PENALTY
        repeats = any(operand.opcode == "broadcast" for operand in use.operands[1 - number : 2 - number])
        if is_penalty or not (other.is_bounded or repeats):
            yield number, MASK


def _choices(use: Use, number: int, other: Bounds) -> int | None:
    """How many unlike numbers an operand should have, less one, that is compared with another; None if any."""
    direction = use.attributes.direction
    is_equality, is_integral = direction in ("EQ", "NE"), use.shapes[0].element_type.is_integral
    if other.low != other.high:
        return _SEGMENTS if is_equality and is_integral else None
    if is_equality:
        is_choice = float(other.low).is_integer() and 0 <= other.low <= _MOST_CHOICES
        return max(1, int(other.low)) if is_choice else None
    if not is_integral:
        return 1 if other.low == 0.5 else None
    return 1 if (_MIRRORED[direction] if number else direction, other.low) in _ABOVE_ZERO else None


def compare_demands(use: Use) -> Demanded:
    """Integers compared with an iota lie in its range; what decides over a loop keeps it short. Other integers that are
    compared with small constants, or for equality with any, are as few unlike ones as the comparison tells apart."""
    element_type = use.shapes[0].element_type
    if not element_type.is_integral and not element_type.is_floating:
        return
    for number, other in ((0, use.bounds[1]), (1, use.bounds[0])):
        if not use.is_condition:
            is_range = element_type.is_integral and (other.low, other.high) != element_type.integer_range
            if is_range and other.low < other.high < 2**30 and other.low > -(2**30):
                yield number, Demand(other.low, other.high, is_defined_beyond=True)
            elif (choices := _choices(use, number, other)) is not None:
                yield number, Demand(choices=choices)
        elif not element_type.is_integral:
            continue
        elif other.low == other.high:
            counts_up = (use.attributes.direction in ("GT", "GE")) == (number == 1)
            few = -_MOST_TRIPS if counts_up else _MOST_TRIPS
            yield number, Demand(min(other.low, other.low + few), max(other.low, other.low + few))
        else:
            yield number, Demand(0, _MOST_TRIPS)
