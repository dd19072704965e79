"""Summary statistics of a value: range, mean, spread, NaNs, infinities, and a hash of its bytes.

Everything is computed block by block in logical order, so that a value of gigabytes takes megabytes.
"""

from __future__ import annotations

import hashlib
import math

import attrs
import numpy as np

from hloexec.analysis.numerics.leaves import blocks
from hloexec.core.dtypes import ElementType, Kind, element_type, element_type_of
from hloexec.core.ir import ArrayShape
from hloexec.core.structs import UNTOLD, define, frozen, told
from hloexec.core.values import Array, Token, Value, leaves

_BLOCK = 1 << 18
"""Number of elements processed at a time: their f64 copies stay in the L2 cache."""
_ENERGY_BLOCK = 1 << 15


@frozen
class LeafStatistics:
    """Statistics of one leaf of a value.

    `minimum`, `maximum`, `mean` and `standard_deviation` (of the population) are over the finite elements, in f64, and
    None if there are none; `minimum` and `maximum` of integers are exact. For complex numbers they are over absolute
    values, for preds over 0 and 1. `hash` is blake2b, 6 bytes in hexadecimal, of the elements in logical order; it does
    not depend on layout, strides or dimensions.
    """

    index: tuple[int, ...]
    element_type: ElementType = attrs.field(metadata=UNTOLD)
    dimensions: tuple[int, ...] = attrs.field(metadata=UNTOLD)
    byte_size: int
    minimum: float | int | None = None
    maximum: float | int | None = None
    mean: float | None = None
    standard_deviation: float | None = None
    nan_count: int = 0
    infinity_count: int = 0
    hash: str = ""

    @property
    @told
    def shape(self) -> str:
        """The shape, as HLO text."""
        return str(ArrayShape(self.element_type, self.dimensions))


def statistics(value: Value) -> list[LeafStatistics]:
    """The statistics of every leaf of a value, depth first."""
    return [_leaf_statistics(index, leaf) for index, leaf in leaves(value)]


def energy_of(array: Array) -> float:
    """The sum of the squares of the elements, in f64."""
    repeats = math.prod(size for size, stride in zip(array.shape, array.strides, strict=True) if not stride)
    if repeats > 1:
        # What a broadcast repeats is added up once.
        array = array[tuple(slice(None if stride else 1) for stride in array.strides)]
    flat = array.reshape(-1)
    total = 0.0
    for start in range(0, flat.size, _ENERGY_BLOCK):
        block = flat[start : start + _ENERGY_BLOCK]
        block = block.astype(np.complex128 if block.dtype.kind == "c" else np.float64)
        total += float(np.vdot(block, block).real)
    return total * float(repeats)


def _leaf_statistics(index: tuple[int, ...], leaf: Array | Token) -> LeafStatistics:
    if isinstance(leaf, Token):
        return LeafStatistics(index, element_type("token"), (), 0)
    its_type = element_type_of(leaf.dtype)
    digest = hashlib.blake2b(digest_size=6)
    moments = _Moments()
    for (block,) in blocks(_BLOCK, leaf):
        digest.update(block.view(np.uint8).data)
        moments.add(block, its_type)
    return LeafStatistics(
        index,
        its_type,
        leaf.shape,
        leaf.nbytes,
        minimum=moments.minimum,
        maximum=moments.maximum,
        mean=moments.mean if moments.count else None,
        standard_deviation=float(np.sqrt(moments.squares / moments.count)) if moments.count else None,
        nan_count=moments.nan_count,
        infinity_count=moments.infinity_count,
        hash=digest.hexdigest(),
    )


@define
class _Moments:
    """Count, mean and sum of squared deviations, merged block by block (Chan, Golub and LeVeque, 1979)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    minimum: float | int | None = None
    maximum: float | int | None = None
    nan_count: int = 0
    infinity_count: int = 0

    def add(self, block: Array, its_type: ElementType) -> None:
        """Take a block of elements into account."""
        if its_type.is_complex:
            block = self._finite(np.abs(block.astype(np.complex128)))
        elif its_type.is_floating:
            block = self._finite(block.astype(np.float32 if its_type.bits < 32 else its_type.storage))
        elif its_type.kind is Kind.PRED:
            block = block.view(np.uint8)
        else:
            block = block.astype(its_type.compute, copy=False)
        if not block.size:
            return
        low, high = block.min().item(), block.max().item()
        self.minimum = low if self.minimum is None else min(self.minimum, low)
        self.maximum = high if self.maximum is None else max(self.maximum, high)
        with np.errstate(over="ignore", invalid="ignore"):
            self._merge(block.astype(np.float64))

    def _finite(self, block: Array) -> Array:
        finite = np.isfinite(block)
        if finite.all():
            return block
        self.nan_count += int(np.isnan(block).sum())
        self.infinity_count += int(np.isinf(block).sum())
        return block[finite]

    def _merge(self, block: Array) -> None:
        mean = float(block.mean())
        block -= mean
        block *= block
        count = self.count + block.size
        delta = mean - self.mean
        self.squares += float(block.sum()) + delta * delta * (self.count * block.size / count)
        self.mean += delta * (block.size / count)
        self.count = count
