"""Fast variants of convert: NumPy's own conversions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np

from hloexec.core.ir import ArrayShape
from hloexec.core.values import Array
from hloexec.ops.elementwise.convert import convert, is_numpys, range_of
from hloexec.ops.elementwise.fast.formulas import OfScalars, decided_by
from hloexec.ops.registry import fast


def _fill_converted(operand: Array, out: Array) -> None:
    np.copyto(out, operand, casting="unsafe")


@fast("convert")
class FastConvert:
    """NumPy's conversion, where it is the one that HLO has."""

    @staticmethod
    def bind(*, shape: ArrayShape, operand_shapes: tuple[ArrayShape, ...]) -> Callable[..., Array]:
        source, target = operand_shapes[0].element_type, shape.element_type
        if is_numpys(source, target):
            of_arrays = methodcaller("astype", target.storage)
            return of_arrays if shape.rank else OfScalars(of_arrays, target.storage.type)
        function = partial(convert, element_type=target)
        if shape.rank or not (source.is_floating and target.is_integral):
            return function
        below, above = range_of(source.compute.type, target)
        return decided_by(lambda x: target.storage.type(x) if below <= x < above else None, function)

    @staticmethod
    def fill(*, shape: ArrayShape, operand_shapes: tuple[ArrayShape, ...]) -> Any:
        return _fill_converted if is_numpys(operand_shapes[0].element_type, shape.element_type) else None
