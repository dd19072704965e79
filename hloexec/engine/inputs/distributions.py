"""Random elements that are the same on every machine.

The bits come from Philox (a counter-based generator whose stream NumPy guarantees), with the seed and the number of the
leaf as its key, so that each leaf has a stream of its own. From there on only operations that IEEE 754 rounds correctly
are used: no logarithm, sine or exponential of the processor's library. Normal numbers are quantiles, tabulated in fixed
point: narrow types take one of 65 536 by 16 random bits; f32 and f64 choose two neighbours of 4 096 by 12 bits and
interpolate linearly by 20 more. They are symmetric, reach some 4 standard deviations, and have a standard deviation of
1 within 0.1 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from statistics import NormalDist

import numpy as np

from hloexec.core.dtypes import ElementType, Kind, largest_number, part_type, smallest_normal
from hloexec.core.values import Array
from hloexec.ops.intervals import Columns, Demand

_CELLS = 1 << 16
_FIXED_POINT = 1 << 24
_FRACTION_BITS = 20
_BLOCK = 1 << 16
"""Elements made at a time: all that is made on the way stays in the L2 cache."""

_SMALL_INTEGERS = 100
_WIDEST_ARBITRARY_SIGNED = 8
_SMOOTH = ("normal", "uniform")
_EPSILON = 1e-5
_DISTANCE_FROM_BOUND = 0.1
_REACH = 4.5
"""No normal number is larger."""


def random_array(
    element_type: ElementType, dimensions: tuple[int, ...], demand: Demand, distribution: str, key: tuple[int, int]
) -> Array:
    """An array whose elements meet a demand; `key` (two 64-bit numbers) decides which."""
    array = np.empty(dimensions, element_type.storage)
    flat = array.reshape(-1)
    philox = np.random.Philox(key=np.array(key, np.uint64))
    demand = column_demand(demand)
    columns = demand.columns
    if columns is None or not columns.fits(dimensions):
        _fill(array, element_type, demand.with_columns(None), distribution, philox)
        return array
    parts = flat.reshape(-1, columns.count, columns.stride)
    for number in range(columns.count):
        column = np.empty((parts.shape[0], columns.stride), flat.dtype)
        _fill(column, element_type, demand.column(number), distribution, philox)
        parts[:, number] = column
    return array


def column_demand(demand: Demand) -> Demand:
    """The demand, but with the bounds that suit all columns for those of which nothing is asked."""
    columns = demand.columns
    if columns is None or (-math.inf, math.inf) not in columns.ends:
        return demand
    ends = tuple((demand.low, demand.high) if pair == (-math.inf, math.inf) else pair for pair in columns.ends)
    return demand.with_columns(Columns(columns.stride, ends))


def _fill(array: Array, element_type: ElementType, demand: Demand, distribution: str, philox: np.random.Philox) -> None:
    flat = array.reshape(-1)
    if element_type.kind is Kind.PRED:
        _fill_preds(flat, distribution, philox)
    elif element_type.is_integral:
        _fill_integers(flat, element_type, demand, distribution, philox)
        if demand.is_ascending:
            array[...] = np.sort(array, axis=-1)
            array[..., :1] = integer_range(element_type, demand)[0]
    else:
        if distribution in _SMOOTH and element_type.is_floating:
            demand = _of_epsilon(demand, array.size)
        part = part_type(element_type)
        _fill_floats(flat.view(part.storage), part, demand, distribution, philox)


def _of_epsilon(demand: Demand, count: int) -> Demand:
    """What is asked of a scalar that keeps something from being 0; other demands as they are."""
    is_epsilon = demand.is_offset and demand.low == 0 and count == 1
    return Demand(_EPSILON / 2, _EPSILON) if is_epsilon else demand


def float_range(demand: Demand, count: int) -> tuple[float, float]:
    """Between which numbers lie the floats of an array of so many elements that meets a demand."""
    wanted = _of_epsilon(demand, count)
    is_bounded_both = wanted.low > -np.inf and wanted.high < np.inf
    reach = 1.0 if is_bounded_both else _REACH
    numbers = _placed(np.array([-reach, 0.0, reach]), wanted)
    return float(numbers.min()), float(numbers.max())


def _blocks(flat: Array) -> Iterator[tuple[int, Array]]:
    for start in range(0, flat.size, _BLOCK):
        yield start, flat[start : start + _BLOCK]


def _words(philox: np.random.Philox, count: int, bits: int) -> Array:
    """Random unsigned integers of 8, 16, 32 or 64 bits."""
    raw = philox.random_raw(-(-count * bits // 64))
    return np.asarray(raw).astype("<u8", copy=False).view(f"<u{bits // 8}")[:count]


# Predicates and integers


def _fill_preds(flat: Array, distribution: str, philox: np.random.Philox) -> None:
    for start, block in _blocks(flat):
        match distribution:
            case "zeros" | "ones":
                block[...] = distribution == "ones"
            case "iota":
                block[...] = np.arange(start, start + block.size) % 2
            case _:
                block[...] = _words(philox, block.size, 8) & 1


def _fill_integers(
    flat: Array, element_type: ElementType, demand: Demand, distribution: str, philox: np.random.Philox
) -> None:
    if distribution == "edges":
        _fill_from(flat, _edge_integers(element_type, demand), philox)
        return
    low, high = _open_range(element_type, demand) if distribution == "iota" else integer_range(element_type, demand)
    span = high - low + 1
    make = _INTEGERS.get(distribution, _uniform_integers)
    for start, block in _blocks(flat):
        offsets = make(philox, block.size, start, low, span)
        # Wrapping addition in 64 bits gives the right low bits whatever the signs.
        numbers = (offsets + np.uint64(low % 2**64)).astype(np.uint64)
        block[...] = numbers.astype(element_type.compute).astype(element_type.storage)


def integer_range(element_type: ElementType, demand: Demand) -> tuple[int, int]:
    """The range to sample from: what uses allow, else anything for unsigned and narrow types, else small numbers."""
    lowest, highest = element_type.integer_range
    low = None if demand.low < lowest else math.ceil(demand.low)
    high = None if demand.high > highest else math.floor(demand.high)
    if low is None and high is None and demand.choices is not None:
        return 0, min(demand.choices, highest)
    if low is None and high is None:
        if element_type.kind is Kind.SIGNED and element_type.bits > _WIDEST_ARBITRARY_SIGNED:
            return 0, _SMALL_INTEGERS - 1
        return lowest, highest
    if high is None:
        assert low is not None
        high = min(highest, max(low, 0) + _SMALL_INTEGERS - 1)
    if low is None:
        low = 0 if high >= 0 else max(lowest, high - _SMALL_INTEGERS + 1)
    low, high = min(max(low, lowest), highest), min(max(high, lowest), highest)
    return low, max(low, high)


def _open_range(element_type: ElementType, demand: Demand) -> tuple[int, int]:
    """The same, but as far as the type reaches where uses say nothing: all of it from 0, or from the lowest, on."""
    lowest, highest = element_type.integer_range
    if demand.choices is not None or demand.high <= highest:
        return integer_range(element_type, demand)
    return (integer_range(element_type, demand)[0], highest) if demand.low >= lowest else (0, highest - lowest)


def _edge_integers(element_type: ElementType, demand: Demand) -> Array:
    """The ends of the range, what lies next to them and to zero, and, where that is defined, what lies beyond."""
    lowest, highest = element_type.integer_range
    low, high = integer_range(element_type, demand)
    if demand.has_bounds or demand.choices is None:
        low = lowest if demand.low < lowest else low
        high = highest if demand.high > highest else high
    wanted = {low, low + 1, high - 1, high, low + (high - low) // 2, -1, 0, 1, 2, 3}
    if demand.is_defined_beyond:
        wanted |= {low - 1, high + 1, lowest, highest}
        low, high = lowest, highest
    numbers = [number % 2**64 for number in sorted(wanted) if low <= number <= high]
    return np.array(numbers, np.uint64).astype(element_type.compute).astype(element_type.storage)


def _fill_from(flat: Array, table: Array, philox: np.random.Philox) -> None:
    """Elements of a table, chosen at random, but each of them once at least where there is room."""
    order = np.argsort(_words(philox, table.size, 64), kind="stable")
    for _, block in _blocks(flat):
        block[...] = table[_uniform_integers(philox, block.size, 0, 0, table.size).astype(np.intp)]
    step = flat.size // table.size
    if step:
        flat[int(order[0]) % step :: step][: table.size] = table[order]


def _uniform_integers(philox: np.random.Philox, count: int, start: int, low: int, span: int) -> Array:
    if span > 2**32:
        raw = _words(philox, count, 64)
        return raw if span == 2**64 else raw % np.uint64(span)
    # The high half of a 32-bit random number times the span; off by less than one part in 2³².
    return np.asarray((_words(philox, count, 32).astype(np.uint64) * np.uint64(span)) >> np.uint64(32))


def _nearest(number: int) -> Callable[..., Array]:
    def make(_: object, count: int, start: int, low: int, span: int) -> Array:
        return np.full(count, min(max(number - low, 0), span - 1), np.uint64)

    return make


def _counting(_: object, count: int, start: int, low: int, span: int) -> Array:
    return np.arange(start, start + count, dtype=np.uint64) % np.uint64(min(span, 2**64 - 1))


def _extreme(philox: np.random.Philox, count: int, start: int, low: int, span: int) -> Array:
    """The ends of the range and what lies next to them and to zero."""
    wanted = [0, 1, span - 1, span - 2, span // 2, -low, -low - 1, -low + 1]
    table = np.array([min(max(offset, 0), span - 1) for offset in wanted], np.uint64)
    return np.asarray(table[_words(philox, count, 8) & 7])


def _large(philox: np.random.Philox, count: int, start: int, low: int, span: int) -> Array:
    """The upper quarter of the range."""
    quarter = max(1, span // 4)
    return _uniform_integers(philox, count, start, low, quarter) + np.uint64(span - quarter)


_INTEGERS: dict[str, Callable[..., Array]] = {
    "zeros": _nearest(0),
    "ones": _nearest(1),
    "iota": _counting,
    "special": _extreme,
    "large": _large,
}

# Floats


def _fill_floats(
    flat: Array, element_type: ElementType, demand: Demand, distribution: str, philox: np.random.Philox
) -> None:
    if distribution == "iota":
        period = 2 ** (element_type.mantissa_bits + 1)
        for start, block in _blocks(flat):
            numbers = (np.arange(start, start + block.size) % period).astype(np.float64)
            block[...] = numbers.astype(np.float32).astype(flat.dtype) if element_type.bits < 32 else numbers
        return
    if distribution == "edges":
        _fill_from(flat, _edge_floats(element_type, demand), philox)
        return
    is_smooth = distribution in _SMOOTH
    is_bounded_both = demand.low > -np.inf and demand.high < np.inf
    standard = _fixed_uniform() if distribution == "uniform" or is_bounded_both else _fixed_normal()
    if is_smooth and element_type.bits >= 32:
        knots, steps = _coarse(standard)
        for _, block in _blocks(flat):
            block[...] = _placed(_interpolated(knots, steps, _words(philox, block.size, 32)), demand)
        return
    numbers = _placed(_middles(standard), demand) if is_smooth else _TABLES[distribution](element_type)
    table = _to_storage(numbers, element_type)
    for _, block in _blocks(flat):
        table.take(_words(philox, block.size, 16), out=block, mode="clip")


def _to_storage(numbers: Array, element_type: ElementType) -> Array:
    """Round to the type of the array; a type without a sign takes absolute values."""
    if not element_type.has_sign:
        numbers = np.abs(numbers)
    with np.errstate(over="ignore", invalid="ignore"):
        if element_type.storage.isbuiltin != 1:
            numbers = numbers.astype(np.float32)
        return numbers.astype(element_type.storage)


def _placed(numbers: Array, demand: Demand) -> Array:
    """Standard numbers moved to where they are wanted; [-1, 1] goes to [low, high]."""
    if demand.low > -np.inf and demand.high < np.inf:
        return demand.low + (demand.high - demand.low) * ((numbers + 1) * 0.5)
    if demand.low > -np.inf:
        return demand.low + (_DISTANCE_FROM_BOUND + np.abs(numbers))
    if demand.high < np.inf:
        return demand.high - (_DISTANCE_FROM_BOUND + np.abs(numbers))
    return numbers * demand.scale if demand.scale != 1 else numbers


def _coarse(knots: Array) -> tuple[Array, Array]:
    """Every 16th knot, and the steps between them, as f64 in units in which interpolation is exact."""
    chosen = knots[:: _CELLS >> (32 - _FRACTION_BITS)]
    return chosen[:-1] * float(1 << _FRACTION_BITS), np.diff(chosen).astype(np.float64)


def _interpolated(knots: Array, steps: Array, words: Array) -> Array:
    """The quantile at a 32-bit fraction. Every product and sum is an integer below 2⁵³, so it is exact."""
    cells = (words >> np.uint32(_FRACTION_BITS)).astype(np.intp)
    numbers = steps.take(cells, mode="clip")
    numbers *= words & np.uint32((1 << _FRACTION_BITS) - 1)
    numbers += knots.take(cells, mode="clip")
    numbers *= 1.0 / (_FIXED_POINT << _FRACTION_BITS)
    return numbers


@cache
def _fixed_normal() -> Array:
    """The normal quantiles at i / 65 536 in fixed point; those at 0 and 1 continue the slope of the last cell.

    Rounding to 2⁻²⁴ hides how the logarithm of the machine's library rounds: no quantile lies so close to a tie that
    one unit in the last place would matter.
    """
    quantile = NormalDist().inv_cdf
    upper = [quantile((_CELLS // 2 + i) / _CELLS) for i in range(1, _CELLS // 2)]
    upper.append(2 * upper[-1] - upper[-2])
    half = np.round(np.array(upper) * _FIXED_POINT).astype(np.int64)
    return np.concatenate([-half[::-1], [0], half])


@cache
def _fixed_uniform() -> Array:
    """-1 to 1 in equal steps."""
    return np.arange(-(_CELLS // 2), _CELLS // 2 + 1, dtype=np.int64) * (2 * _FIXED_POINT // _CELLS)


def _middles(knots: Array) -> Array:
    """The numbers halfway between knots in fixed point."""
    return np.asarray((knots[:-1] + knots[1:]) / (2.0 * _FIXED_POINT))


def _special_numbers(element_type: ElementType) -> Array:
    """Half usual numbers, half NaN, infinities, signed zeros, denormals, extremes, and what lies next to one."""
    largest, normal = largest_number(element_type), smallest_normal(element_type)
    tiny = normal * 2.0**-element_type.mantissa_bits
    extremes = [tiny, 3 * tiny, normal - tiny, normal, largest, largest / 2]
    positive = np.array([np.inf, 0.0, *extremes, 1.0, 0.5, 2.0, 3.0])
    numbers = _middles(_fixed_normal())
    numbers[::2] = np.resize([np.nan, *positive, *-positive], _CELLS // 2)
    return numbers


def _large_numbers(element_type: ElementType) -> Array:
    """Either sign, magnitudes between the square root of the largest number and the largest."""
    exponent = math.frexp(largest_number(element_type))[1] - 1
    index = np.arange(_CELLS)
    exponents = exponent // 2 + (index >> 1) % max(1, exponent - exponent // 2)
    mantissas = 1 + (index * 40503 % _CELLS) / _CELLS
    return np.asarray(np.ldexp(np.where(index & 1, -mantissas, mantissas), exponents))


def _edge_floats(element_type: ElementType, demand: Demand) -> Array:
    """Both zeros, denormals, the ends of the type and of the range, and small numbers, all of them finite."""
    largest, normal = largest_number(element_type), smallest_normal(element_type)
    tiny = normal * 2.0**-element_type.mantissa_bits
    positive = [0.0, tiny, normal - tiny, normal, largest, 0.5, 1.0, 2.0]
    numbers = np.array([*positive, *(-number for number in positive)])
    ends = np.array([end for end in (demand.low, demand.high) if math.isfinite(end)])
    if demand.is_defined_beyond:
        numbers = np.concatenate([numbers, ends, ends - 1, ends + 1])
    else:
        middle = [ends.mean()] if ends.size == 2 else []
        numbers = np.concatenate([numbers[(numbers >= demand.low) & (numbers <= demand.high)], ends, middle])
    return _to_storage(numbers, element_type)


_TABLES: dict[str, Callable[[ElementType], Array]] = {
    "zeros": lambda _: np.zeros(_CELLS),
    "ones": lambda _: np.ones(_CELLS),
    "special": _special_numbers,
    "large": _large_numbers,
}

DISTRIBUTIONS = ("normal", "uniform", "ones", "zeros", "iota", "special", "large", "edges")
"""What random inputs may look like; see `hloexec.random_inputs`."""
