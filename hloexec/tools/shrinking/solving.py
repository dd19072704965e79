"""By how much each group of dimensions shrinks: a linear integer program, solved by HiGHS through SciPy.

Sizes are products, so their logarithms are sums. The factor of a group that is part of products is given by how many of
each prime of its unit are taken away, and products of dimensions are equations between these numbers; any other group
is halved a number of times. No value may be larger than a bound; under it, as little as possible is taken away, and
rather from large sizes than from small ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, log2, prod
from typing import Any

import attrs
import numpy as np

from hloexec.core.structs import define, frozen
from hloexec.errors import UnsupportedError
from hloexec.ops.relations import Relations
from hloexec.tools.shrinking.grouping import Group, Groups, factorization

_TOLERANCE = 1e-6
_MOST_NODES = 2000
"""Of the search tree: a limit in seconds would make the result depend on the machine."""
_NEARBY = (0.0, 0.03, 0.11, 0.37, 0.71)
"""HiGHS has numerical difficulties with a few bounds, and then none with one that is a little larger."""
_EXCESS = 500.0
"""What it costs if a value is twice as large as it should be."""
_SLOPES = ((65536, 1.0), (16384, 1.0), (4096, 2.0), (1024, 2.0), (256, 4.0), (64, 8.0), (32, 16.0), (16, 64.0))
"""Below each size, what it costs in addition to halve a dimension."""
_LANE_COST = 128.0
"""What it costs to halve rows of tiles, which rather stay as they are."""


@frozen
class Demand:
    """What is asked of a group: that it keeps its unit, or gets a certain one."""

    group: int
    unit: int


@frozen
class Sizing:
    """The new units of all groups."""

    units: Sequence[int]
    is_proven: bool = True
    """Whether nothing better is possible; else the search ended at its limit, with the best that it had."""

    def sizes(self, groups: Groups, relations: Relations) -> dict[int, int]:
        """The new size of every root that is in a group, or follows from some."""
        new_sizes: dict[int, int] = {}
        for group, unit in zip(groups.groups, self.units, strict=True):
            new_sizes.update(group.sizes(unit))
        before = relations.sizes
        for root, factors in groups.divided.items():
            new_sizes[root] = prod(new_sizes.get(factor, before[factor]) for factor in factors)
        for root, factors in reversed(list(groups.merged.items())):
            share = before[root] // prod(before[factor] for factor in factors)
            new_sizes[root] = share * prod(new_sizes.get(factor, before[factor]) for factor in factors)
        for root, parts in groups.summed.items():
            new_sizes[root] = sum(new_sizes.get(part, before[part]) for part in parts)
        return new_sizes


def _milp() -> Any:
    try:
        from scipy import optimize
    except ImportError as error:
        raise UnsupportedError(
            "shrinking a module needs SciPy: install it, or hloexec with it (pip install 'hloexec[shrink]')"
        ) from error
    return optimize


@define(eq=False)
class _Program:
    """Rows and columns of a linear integer program, as they are added."""

    costs: list[float] = attrs.field(factory=list)
    upper: list[float] = attrs.field(factory=list)
    is_integer: list[bool] = attrs.field(factory=list)
    rows: list[tuple[dict[int, float], float, float]] = attrs.field(factory=list)

    def column(self, cost: float, upper: float, *, is_integer: bool) -> int:
        self.costs.append(cost)
        self.upper.append(upper)
        self.is_integer.append(is_integer)
        return len(self.costs) - 1

    def row(self, terms: Mapping[int, float], low: float, high: float) -> None:
        self.rows.append((dict(terms), low, high))

    def solve(self) -> tuple[Any, bool]:
        """The values of the columns, or None where there are none that satisfy all rows; and whether they are the best,
        up to the tolerated gap."""
        if not self.costs:
            return (), True
        optimize = _milp()
        from scipy.sparse import csr_array

        entries = [
            (number, column, count) for number, (terms, _, _) in enumerate(self.rows) for column, count in terms.items()
        ]
        rows, columns, counts = zip(*entries, strict=True) if entries else ((), (), ())
        matrix = csr_array((counts, (rows, columns)), shape=(len(self.rows), len(self.costs)))
        limits = [row[1] for row in self.rows], [row[2] for row in self.rows]
        result = optimize.milp(
            np.array(self.costs) / _EXCESS,
            integrality=np.array(self.is_integer, int),
            bounds=optimize.Bounds(0, np.array(self.upper)),
            constraints=optimize.LinearConstraint(matrix, *limits) if self.rows else (),
            options={"node_limit": _MOST_NODES, "mip_rel_gap": 1e-4},
        )
        return result.x, result.status == 0


@define(eq=False)
class Solver:
    """The program of one module; `largest` gives, by the factors' groups of a value, the largest one's bytes."""

    groups: Groups
    largest: Mapping[tuple[int, ...], int]
    demands: Sequence[Demand] = ()

    def solve(self, bound: float) -> Sizing | None:
        """The sizing that takes away least so that no value is larger than 2 to the power of `bound` bytes, or as near
        as it gets where some cannot be that small; None where demands cannot be met."""
        exact = self._solve(bound, None)
        if exact is not None:
            return exact
        for more in _NEARBY:
            sizing = self._solve(bound + more, _EXCESS)
            if sizing is not None:
                return sizing
        return None

    def _solve(self, bound: float, excess: float | None) -> Sizing | None:
        program = _Program()
        exponents = [self._columns(program, group) for group in self.groups.groups]
        for left, right in self.groups.products:
            self._equate(program, exponents, left, right)
        for demand in self.demands:
            self._demand(program, exponents[demand.group], demand)
        self._bound(program, exponents, bound, excess)
        solution, is_proven = program.solve()
        if solution is None:
            return None
        units = [self._unit(group, exponents[group.number], solution) for group in self.groups.groups]
        return Sizing(units, is_proven)

    def _columns(self, program: _Program, group: Group) -> dict[int, int]:
        """One column for each prime of a group, how many of it are taken away."""
        room = log2(group.unit / max(1, group.least))
        primes = factorization(group.unit) if group.is_divided else {2: floor(room + _TOLERANCE)}
        cost = _LANE_COST if group.has_lanes else 1.0
        columns = {
            prime: program.column(
                cost * log2(prime), min(count, floor(room / log2(prime) + _TOLERANCE)), is_integer=True
            )
            for prime, count in primes.items()
        }
        taken = {column: log2(prime) for prime, column in columns.items()}
        program.row(taken, 0, room + _TOLERANCE)
        smallest = min(base for base in group.bases.values())
        # Of two sizes that might become the same, the smaller one stays rather.
        preference = 1 + 1 / max(1.0, log2(smallest))
        for size, slope in _SLOPES:
            below = program.column(slope * preference, np.inf, is_integer=False)
            program.row(
                {below: 1.0, **{column: -weight for column, weight in taken.items()}}, log2(size / smallest), np.inf
            )
        return columns

    def _equate(
        self, program: _Program, exponents: Sequence[Mapping[int, int]], left: Sequence[int], right: Sequence[int]
    ) -> None:
        primes = {prime: None for number in (*left, *right) for prime in exponents[number]}
        for prime in primes:
            terms: dict[int, float] = {}
            for sign, side in ((1.0, left), (-1.0, right)):
                for number in side:
                    column = exponents[number].get(prime)
                    if column is not None:
                        terms[column] = terms.get(column, 0.0) + sign
            program.row(terms, 0, 0)

    def _demand(self, program: _Program, columns: Mapping[int, int], demand: Demand) -> None:
        group = self.groups.groups[demand.group]
        if not group.is_divided:
            for column in columns.values():
                program.row({column: 1.0}, 0, 0)
            return
        taken = factorization(group.unit // demand.unit)
        for prime, column in columns.items():
            program.row({column: 1.0}, taken.get(prime, 0), taken.get(prime, 0))

    def _bound(
        self, program: _Program, exponents: Sequence[Mapping[int, int]], bound: float, excess: float | None
    ) -> None:
        """Values are as small as the bound; with a cost of their excess, as near to it as they get."""
        for numbers, size in self.largest.items():
            if log2(size) <= bound:
                continue
            terms: dict[int, float] = {}
            for number in numbers:
                for prime, column in exponents[number].items():
                    terms[column] = terms.get(column, 0.0) + log2(prime)
            if terms:
                if excess is not None:
                    terms[program.column(excess, np.inf, is_integer=False)] = 1.0
                program.row(terms, log2(size) - bound, np.inf)

    def _unit(self, group: Group, columns: Mapping[int, int], solution: Sequence[float]) -> int:
        for demand in self.demands:
            if demand.group == group.number:
                return demand.unit
        factor = 1
        for prime, column in columns.items():
            factor *= prime ** round(solution[column])
        return group.unit // factor if group.is_divided else max(group.least, -(-group.unit // factor))
