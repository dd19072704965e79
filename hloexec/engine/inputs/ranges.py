"""Ranges that users give for parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from hloexec.core.arguments import parameter_numbers, wrong
from hloexec.core.dtypes import ElementType, Kind
from hloexec.core.ir import Computation
from hloexec.core.precision import largest_number, part_type
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.engine.inputs.distributions import random_array
from hloexec.errors import InputError
from hloexec.ops.intervals import Demand


@frozen
class Range:
    """Numbers from `low` to `high`, both included."""

    low: float
    high: float
    what: str
    """What errors call it."""

    def random_array(self, element_type: ElementType, dimensions: tuple[int, ...], key: tuple[int, int]) -> Array:
        """Elements sampled uniformly from the range; InputError if the type has none in it."""
        if element_type.kind is Kind.PRED:
            raise InputError(f"{self.what} is for numbers, but the parameter holds preds")
        if element_type.is_integral:
            return random_array(element_type, dimensions, Demand(*self.integers(element_type)), "uniform", key)
        low, high = self.floats(element_type)
        factor = 1 if math.isfinite(high - low) else 2
        array = random_array(element_type, dimensions, Demand(low / factor, high / factor), "uniform", key)
        parts = array.reshape(-1).view(part_type(element_type).storage)
        parts *= parts.dtype.type(factor)
        # A number that lies next to an end may have been rounded to beyond it.
        np.clip(parts, parts.dtype.type(low), parts.dtype.type(high), out=parts)
        return array

    def integers(self, element_type: ElementType) -> tuple[int, int]:
        """The least and the largest number of the type within the range; InputError where it has none."""
        lowest, highest = element_type.integer_range
        low, high = math.ceil(self.low), math.floor(self.high)
        if low > high:
            raise InputError(f"{self.what} holds no number of type {element_type.name}")
        self._require(lowest <= low and high <= highest, element_type)
        return low, high

    def floats(self, element_type: ElementType) -> tuple[float, float]:
        """The least and the largest number of the type within the range; InputError where it has none."""
        kind = part_type(element_type)
        largest = largest_number(kind)
        self._require(-largest <= self.low and self.high <= largest, element_type)
        low, high = float(self.low), float(self.high)
        # Large integers may have been rounded.
        low = math.nextafter(low, math.inf) if low < self.low else low
        high = math.nextafter(high, -math.inf) if high > self.high else high
        numbers = _numbers_near(kind, (low, high))
        numbers = numbers[(numbers >= low) & (numbers <= high)]
        if not numbers.size:
            raise InputError(f"{self.what} holds no number of type {element_type.name}")
        return float(numbers.min()), float(numbers.max())

    def _require(self, holds: bool, element_type: ElementType) -> None:
        if not holds:
            raise InputError(f"{self.what} reaches beyond the numbers of type {element_type.name}")


def _numbers_near(kind: ElementType, ends: tuple[float, float]) -> Array:
    """Numbers of a floating type, those next to `ends` among them: all of a narrow type."""
    with np.errstate(all="ignore"):
        if kind.bits <= 16:
            return np.arange(1 << kind.bits).astype(f"u{-(-kind.bits // 8)}").view(kind.storage).astype(np.float64)
        near = np.array(ends, kind.storage)
        return np.concatenate([near, np.nextafter(near, np.inf), np.nextafter(near, -np.inf)], dtype=np.float64)


def ranges_of(computation: Computation, ranges: object) -> dict[int, Range]:
    """The ranges by parameter; `ranges` maps parameters' numbers or names to pairs of numbers."""
    if not isinstance(ranges, Mapping):
        raise wrong("ranges", "a mapping from parameters to pairs of numbers", ranges)
    found: dict[int, Range] = {}
    for number, pair in zip(parameter_numbers(computation, ranges), ranges.values(), strict=True):
        if number in found:
            raise InputError(f"parameter {number} is given two ranges")
        found[number] = _range(f"the range of parameter {number}", pair)
    return found


def _range(what: str, pair: object) -> Range:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(map(_is_number, pair)):
        raise wrong(what, "a pair of finite numbers", pair)
    low, high = pair
    if low > high:
        raise InputError(f"{what} must not end below its start, but is {low} to {high}")
    return Range(low, high, f"{what}, {low} to {high},")


def _is_number(value: object) -> bool:
    if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
        return False
    return math.isfinite(value)
