"""The location of errors in an array: a coarse grid over its last two dimensions, with the worst error of each cell."""

from __future__ import annotations

import math

import numpy as np

from hloexec.core.structs import frozen, told
from hloexec.core.values import Array

_MOST_ROWS = 12
_MOST_COLUMNS = 48
_MARKS = (" ", "·", "░", "▒", "▓", "█")
_LIMITS = (0.0, 1.0, 10.0, 100.0, 1000.0)


@frozen(eq=False)
class ErrorMap:
    """The worst error in each cell of a grid over an array's last two dimensions, in units of the tolerance.

    0 if all elements of the cell are equal, up to 1 if they are within the tolerance, infinity if one is NaN or
    infinite or the tolerance is zero. The leading dimensions are overlaid. `rows` and `columns` are the sizes of the
    two dimensions; the grid has at most 12 by 48 cells.
    """

    rows: int
    """The size of the last dimension but one."""
    columns: int
    """The size of the last dimension."""
    cells: Array
    """f64 [grid rows, grid columns]."""

    def lines(self) -> list[str]:
        """The grid as text: blank for the same, `·` within tolerance, `░▒▓█` up to 10, 100, 1000 times it, beyond."""
        return ["".join(_MARKS[int(np.searchsorted(_LIMITS, cell))] for cell in row) for row in self.cells.tolist()]

    @property
    @told
    def grid(self) -> list[list[float]]:
        """The worst error in units of the tolerance, by the rows of the grid."""
        grid: list[list[float]] = self.cells.tolist()
        return grid


class MapMaker:
    """Fills a grid, given errors by the flat places of their elements."""

    def __init__(self, dimensions: tuple[int, ...]) -> None:
        self._columns = dimensions[-1] if dimensions else 1
        self._rows = dimensions[-2] if len(dimensions) > 1 else 1
        grid = min(self._rows, _MOST_ROWS), min(self._columns, _MOST_COLUMNS)
        self._cells = np.zeros(grid)

    def add(self, places: Array, severities: Array) -> None:
        """Take elements into account."""
        row, column = places // self._columns % self._rows, places % self._columns
        rows, columns = self._cells.shape
        cell = (row * rows // self._rows) * columns + column * columns // self._columns
        worst = np.where(np.isnan(severities), math.inf, severities)
        np.maximum.at(self._cells.reshape(-1), cell, worst)

    def result(self) -> ErrorMap:
        """The grid as it is now."""
        return ErrorMap(self._rows, self._columns, self._cells)
