"""Reductions and scans along a dimension, by a region that combines two elements.

A reduction combines neighbours, and these results again, until one is left; a scan goes from one element to the next.
How hardware groups elements is not public, and both are such groupings. Source: Triton, its dialect (ReduceOp, ScanOp).
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from hloexec.core.values import Array
from hloexec.ops.library_calls.mosaic.ir import Operation, Region
from hloexec.ops.library_calls.mosaic.registry import Block, Kernel, Scope
from hloexec.ops.library_calls.triton.instances import for_elements
from hloexec.ops.library_calls.triton.machine import Machine
from hloexec.ops.library_calls.triton.registry import TRITON

Parts = tuple[Array, ...]


def _refuse_captures(operation: Operation) -> str | None:
    """A region that uses values from around it would need them for each of the elements that it combines."""
    if len(operation.regions) != 1 or len(operation.regions[0].arguments) != 2 * len(operation.operands):
        return "its region does not combine two elements of each operand"
    region = operation.regions[0]
    defined = {*region.arguments, *(number for item in region.operations for number in item.results)}
    is_open = any(item.regions or not defined.issuperset(item.operands) for item in region.operations)
    return "its region has regions, or uses values from around it" if is_open else None


class _Combiner:
    """A region for pairs of elements, which is bound once for each number of them."""

    def __init__(self, region: Region, scope: Scope) -> None:
        self._region, self._scope = region, scope
        self._blocks: dict[int, Block] = {}

    def __call__(self, machine: Machine, left: Parts, right: Parts) -> Parts:
        dimensions = left[0].shape
        count = math.prod(dimensions)
        if count not in self._blocks:
            self._blocks[count] = self._scope.block(for_elements(self._region, count))
        values = self._blocks[count](machine, *(np.ascontiguousarray(part).reshape(-1) for part in (*left, *right)))
        return tuple(np.asarray(value).reshape(dimensions) for value in values)


@TRITON.operation("tt.reduce", is_machine=True, refuses=_refuse_captures)
def bind_reduce(operation: Operation, scope: Scope) -> Kernel:
    """All elements along `axis` combined, neighbours first; each result of the region is rounded to its type."""
    axis, combine = operation.attributes["axis"] + 1, _Combiner(operation.regions[0], scope)

    def compute(machine: Machine, *operands: Array) -> Parts:
        parts = tuple(np.moveaxis(operand, axis, 0) for operand in operands)
        while len(parts[0]) > 1:
            even = len(parts[0]) // 2 * 2
            pairs = combine(machine, tuple(part[0:even:2] for part in parts), tuple(part[1:even:2] for part in parts))
            rest = [part[even:] for part in parts]
            parts = tuple(np.concatenate(two) if len(two[1]) else two[0] for two in zip(pairs, rest, strict=True))
        return tuple(np.ascontiguousarray(part[0]) for part in parts)

    return compute


@TRITON.operation("tt.scan", is_machine=True, refuses=_refuse_captures)
def bind_scan(operation: Operation, scope: Scope) -> Kernel:
    """Each element along `axis` combined with what all before it, or with `reverse` behind it, have given."""
    axis, combine = operation.attributes["axis"] + 1, _Combiner(operation.regions[0], scope)
    is_reverse = bool(operation.attributes.get("reverse"))

    def compute(machine: Machine, *operands: Array) -> Parts:
        results = tuple(np.array(operand) for operand in operands)
        rows = tuple(np.moveaxis(result, axis, 0) for result in results)
        order = range(len(rows[0]))[::-1] if is_reverse else range(len(rows[0]))
        for before, place in itertools.pairwise(order):
            combined = combine(machine, tuple(row[before] for row in rows), tuple(row[place] for row in rows))
            for row, value in zip(rows, combined, strict=True):
                row[place] = value
        return results

    return compute
