"""Triangular systems and Fourier transforms under `exact`.

Triangular factors and systems in f64, an elementary operation at a time: no sum whose order anything but the size of
a matrix decides.

Complex numbers are handled in parts, since NumPy's product of complex numbers is rounded differently from processor to
processor. With γ(n) = n·2⁻⁵³ / (1 − n·2⁻⁵³), factors satisfy |l lᴴ − a| ≤ γ(n + 1) |l| |lᴴ|, solutions (l + δ) x = b
with |δ| ≤ γ(n) |l|, element by element; for complex numbers 4 γ. Source: N. J. Higham, "Accuracy and Stability of
Numerical Algorithms", theorems 10.3 and 8.5, lemma 3.5.

Discrete Fourier transforms in doubled precision, of any length, in an order of operations that only lengths decide.

A transform of r·m points is r transforms of m points each, their results turned by roots of unity, and m transforms of
r points (J. W. Cooley and J. W. Tukey, "An algorithm for the machine calculation of complex Fourier series", 1965).
Large primes become a convolution, and that a transform whose length is a power of two (L. I. Bluestein, "A linear
filtering approach to the computation of the discrete Fourier transform", 1970). Roots of unity are computed in whole
numbers. Operations on pairs are good to 2⁻¹⁰⁰ and follow one another some 6·log₂(N) times, on numbers no larger than
the sum of magnitudes: before it is rounded an element is off by at most 2⁻⁹⁰ · Σ|x|.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import isqrt, prod
from typing import TypeAlias

import numpy as np

from hloexec.core.values import Array
from hloexec.ops.common import from_parts
from hloexec.ops.policies.exact import exponentials
from hloexec.ops.policies.exact.doubled import Pair, add, divide, multiply, scaled


def lower_factors(matrices: Array) -> Array:
    """Lower factors of `[batch, n, n]`, of which the lower triangles are read; NaN where a pivot is not positive."""
    rest = _planes(matrices)
    size = rest.shape[-1]
    factors = np.zeros_like(rest)
    is_definite = np.ones(rest.shape[1], np.bool_)
    for k in range(size):
        pivot = rest[0, :, 0, 0]
        is_definite &= (pivot > 0) & np.isfinite(pivot)
        root = np.sqrt(pivot)
        column = rest[:, :, 1:, 0] / root[:, None]
        factors[0, :, k, k] = root
        factors[:, :, k + 1 :, k] = column
        rest = rest[:, :, 1:, 1:]
        _subtract_products(rest, column[:, :, :, None], _conjugate_planes(column)[:, :, None, :])
    factors[:, ~is_definite] = np.nan
    return _numbers(factors)


def solution(lower: Array, right: Array, unit_diagonal: bool) -> Array:
    """x of lower · x = right, `[..., n, n]` and `[..., n, m]`, by substitution forwards."""
    matrix, rest = _planes(lower), _planes(right)
    for k in range(matrix.shape[-1]):
        row = rest[..., k, :]
        if not unit_diagonal:
            row[...] = _quotient(row, matrix[..., k, k, None])
        _subtract_products(rest[..., k + 1 :, :], matrix[..., k + 1 :, k, None], row[..., None, :])
    return _numbers(rest)


def _planes(numbers: Array) -> Array:
    """The real and, of complex numbers, the imaginary part along a new first axis, in f64."""
    parts = [numbers.real, numbers.imag] if numbers.dtype.kind == "c" else [numbers]
    return np.stack(parts).astype(np.float64)


def _numbers(planes: Array) -> Array:
    return np.asarray(planes[0]) if len(planes) == 1 else from_parts(*planes)


def _conjugate_planes(planes: Array) -> Array:
    return np.stack([planes[0], *(-plane for plane in planes[1:])])


def _subtract_products(target: Array, left: Array, right: Array) -> None:
    target[0] -= left[0] * right[0]
    if len(target) == 2:
        target[0] += left[1] * right[1]
        target[1] -= left[0] * right[1]
        target[1] -= left[1] * right[0]


def _quotient(planes: Array, divisor: Array) -> Array:
    if len(planes) == 1:
        return np.asarray(planes / divisor)
    # Its tables take a while to compute, so that they wait until someone asks.
    from hloexec.ops.policies.exact.formulas import divide

    return np.stack(divide(*planes, *np.broadcast_to(divisor, planes.shape)))


Points: TypeAlias = tuple[Array, Array]
"""Complex numbers `[2, ..., n]` as pairs: real and imaginary parts stand along the first axis."""

_LARGEST_RADIX = 64
"""Transforms of larger prime length are convolutions."""
_KEPT_TABLES = 16
_CHUNK = 1 << 15
"""Points that are transformed at a time, where one transform has no more."""


def fourier_transform(operand: Array, kind: str, lengths: Sequence[int]) -> Array:
    """FFT, IFFT, RFFT or IRFFT over the last dimensions, in c128 or f64; `lengths` are those of XLA's `fft_length`.

    A transform of anything infinite or NaN is NaN. Nothing may be empty.
    """
    rank = len(lengths)
    batch = operand.shape[: operand.ndim - rank]
    flat = operand.reshape(prod(batch), *operand.shape[operand.ndim - rank :])
    step = max(1, _CHUNK // prod(lengths))
    parts = [_transformed(flat[start : start + step], kind, lengths) for start in range(0, len(flat), step)]
    return np.concatenate(parts).reshape(*batch, *parts[0].shape[1:])


def _transformed(operand: Array, kind: str, lengths: Sequence[int]) -> Array:
    """A stack of transforms, each scaled by a power of two to magnitudes below 1."""
    planes = np.stack([operand.real, operand.imag]).astype(np.float64)
    axes = tuple(range(2, planes.ndim))
    largest = np.abs(planes).max(axis=(0, *axes), keepdims=True)
    is_finite = np.isfinite(largest)
    exponent = np.frexp(np.where(is_finite, largest, 1.0))[1].astype(np.int64)
    high = scaled(np.where(is_finite, planes, 0.0), -exponent)
    points: Points = high, np.zeros_like(high)
    if kind in ("IFFT", "IRFFT"):
        points = _conjugate(points)
    for axis in axes[:-1]:
        points = _along(points, axis)
    if kind == "IRFFT":
        points = _whole(points, lengths[-1])
    points = _along(points, axes[-1])
    if kind == "RFFT":
        points = _each(points, lambda part: part[..., : lengths[-1] // 2 + 1])
    if kind in ("IFFT", "IRFFT"):
        points = divide(_conjugate(points), (float(prod(lengths)), 0.0))
    if kind == "RFFT" and len(lengths) == 1:
        points = _each(points, lambda part: _real_at_ends(part, lengths[-1]))
    value = np.where(is_finite, scaled(points[0] + points[1], exponent), np.nan)
    if kind == "IRFFT":
        return np.asarray(value[0])
    return from_parts(*value)


def _real_at_ends(part: Array, length: int) -> Array:
    """The transform of reals is real at the first and, for even lengths, the last place: no imaginary parts there."""
    part = part.copy()
    part[1, ..., 0] = 0
    if length % 2 == 0:
        part[1, ..., length // 2] = 0
    return part


def _conjugate(points: Points) -> Points:
    return _each(points, lambda part: np.stack([part[0], -part[1]]))


def _whole(points: Points, length: int) -> Points:
    """All points of a transform that gives reals, from its first length // 2 + 1; the ends' imaginary parts are 0."""
    mirrored = _each(_conjugate(points), lambda part: part[..., (length - 1) // 2 : 0 : -1])
    high, low = (np.concatenate(parts, axis=-1) for parts in zip(points, mirrored, strict=True))
    return _each((high, low), lambda part: _real_at_ends(part, length))


def _along(points: Points, axis: int) -> Points:
    transformed = _transform(_each(points, lambda part: part.swapaxes(axis, -1)))
    return _each(transformed, lambda part: part.swapaxes(axis, -1))


def _transform(points: Points) -> Points:
    """The forward transform along the last axis."""
    size = points[0].shape[-1]
    if size == 1:
        return points
    radix = _radix(size)
    rest = size // radix
    twiddled = _transform(_each(points, lambda part: part.reshape(*part.shape[:-1], rest, radix).swapaxes(-1, -2)))
    if rest > 1:
        twiddled = _times(twiddled, _turns(radix, rest))
    outer = _BUTTERFLIES.get(radix, _directly if radix <= _LARGEST_RADIX else _by_convolution)(twiddled)
    return _each(outer, lambda part: part.reshape(*part.shape[:-2], size))


def _radix(size: int) -> int:
    """4 where it divides the size, else the smallest prime that does."""
    return 4 if size % 4 == 0 else next((prime for prime in range(2, isqrt(size) + 1) if size % prime == 0), size)


# Transforms of few points, which lie along the axis before the last.


def _sum_and_difference(x: Points, y: Points) -> tuple[Points, Points]:
    return add(x, y), add(x, _each(y, np.negative))


def _two(points: Points) -> Points:
    return _stacked(_sum_and_difference(_place(points, 0), _place(points, 1)))


def _four(points: Points) -> Points:
    first, second, third, fourth = (_place(points, number) for number in range(4))
    (even_sum, even_rest), (odd_sum, odd_rest) = _sum_and_difference(first, third), _sum_and_difference(second, fourth)
    # Times −i.
    odd_rest = _each(odd_rest, lambda part: np.stack([part[1], -part[0]]))
    (at_0, at_2), (at_1, at_3) = _sum_and_difference(even_sum, odd_sum), _sum_and_difference(even_rest, odd_rest)
    return _stacked([at_0, at_1, at_2, at_3])


_BUTTERFLIES = {2: _two, 4: _four}


def _directly(points: Points) -> Points:
    """The sum that defines the transform."""
    radix = points[0].shape[-2]
    order = np.arange(radix)
    total = _each(points, lambda part: np.repeat(part[..., :1, :], radix, axis=-2))
    (high, low), (root_high, root_low) = points, _roots(radix)
    for number in range(1, radix):
        place, turns = slice(number, number + 1), order * number % radix
        factors = root_high[:, turns, None], root_low[:, turns, None]
        total = add(total, _times((high[..., place, :], low[..., place, :]), factors))
    return total


def _by_convolution(points: Points) -> Points:
    """With jk = (j² + k² − (k − j)²) / 2: roots of order 2n, multiplied in, convolved with, multiplied in."""
    size = points[0].shape[-2]
    length = 1 << (2 * size - 2).bit_length()
    chirp = _each(_roots(2 * size), lambda part: part[:, np.arange(size) ** 2 % (2 * size)])
    kernel = _transform(_each(_conjugate(chirp), lambda part: _wrapped_around(part, length)))
    padding = [(0, 0)] * (points[0].ndim - 1) + [(0, length - size)]
    along = _times(_each(points, lambda part: part.swapaxes(-1, -2)), chirp)
    product = _times(_transform(_each(along, lambda part: np.pad(part, padding))), kernel)
    sums = divide(_conjugate(_transform(_conjugate(product))), (float(length), 0.0))
    result = _times(_each(sums, lambda part: part[..., :size]), chirp)
    return _each(result, lambda part: part.swapaxes(-1, -2))


def _wrapped_around(part: Array, length: int) -> Array:
    """A periodic array with `[2, n]` at the indices 0 … n − 1 and, mirrored, at −1, −2, …, modulo `length`."""
    result = np.zeros((2, length))
    result[:, : part.shape[1]] = part
    result[:, length - part.shape[1] + 1 :] = part[:, :0:-1]
    return result


# Arithmetic of points.


def _each(points: Points, function: Callable[[Array], Array]) -> Points:
    return function(points[0]), function(points[1])


def _place(points: Points, number: int) -> Points:
    return _each(points, lambda part: part[..., number, :])


def _stacked(places: Sequence[Points]) -> Points:
    return np.stack([high for high, _ in places], axis=-2), np.stack([low for _, low in places], axis=-2)


def _times(points: Points, factors: Points) -> Points:
    """Products; the factors `[2, ...]` stand for all leading dimensions of the points."""
    high, low = factors
    crossed = _each(points, lambda part: np.stack([-part[1], part[0]]))
    return add(multiply(points, (high[0], low[0])), multiply(crossed, (high[1], low[1])))


# Roots of unity.


@lru_cache(maxsize=_KEPT_TABLES)
def _turns(radix: int, rest: int) -> Points:
    """exp(−2πi · j · k / (radix · rest)) as `[2, radix, rest]`."""
    return _each(_roots(radix * rest), lambda part: part[:, np.outer(np.arange(radix), np.arange(rest))])


@lru_cache(maxsize=_KEPT_TABLES)
def _roots(order: int) -> Points:
    """exp(−2πi · k / order) as `[2, order]`: by symmetry from angles up to an eighth of a turn."""
    quadrant, place = np.divmod(4 * np.arange(order), order)
    is_late = 2 * place > order
    cosines, sines = _first_eighth(order)
    folded = np.where(is_late, order - place, place)
    parts = []
    for cosine, sine in zip(cosines, sines, strict=True):
        x, y = np.where(is_late, (sine[folded], cosine[folded]), (cosine[folded], sine[folded]))
        real = np.choose(quadrant, [x, -y, -x, y])
        imag = np.choose(quadrant, [y, x, -y, -x])
        parts.append(np.stack([real, -imag]))
    return parts[0], parts[1]


def _first_eighth(order: int) -> tuple[Pair, Pair]:
    """Cosines and sines of k · π / (2 · order) for k from 0 to order / 2: of few angles, and of their sums."""
    step = isqrt(order // 2) + 1
    fine = [exponentials.PI * number // (2 * order) for number in range(step)]
    coarse = [exponentials.PI * number * step // (2 * order) for number in range(order // 2 // step + 1)]
    (fine_cos, fine_sin), (coarse_cos, coarse_sin) = (
        (exponentials.table(map(exponentials.cosine, angles)), exponentials.table(map(exponentials.sine, angles)))
        for angles in (fine, coarse)
    )
    coarse_cos, coarse_sin = (_each(column, lambda part: part[:, None]) for column in (coarse_cos, coarse_sin))
    cosines = add(multiply(coarse_cos, fine_cos), _each(multiply(coarse_sin, fine_sin), np.negative))
    sines = add(multiply(coarse_sin, fine_cos), multiply(coarse_cos, fine_sin))
    return _each(cosines, np.ravel), _each(sines, np.ravel)
