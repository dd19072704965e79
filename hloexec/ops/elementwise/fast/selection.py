"""Fast variants of convert, which are NumPy's own conversions, and of select."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np

from hloexec.core.ir import ArrayShape, ArrayShapes
from hloexec.core.values import Array
from hloexec.ops.elementwise.fast.formulas import OfScalars, decided_by
from hloexec.ops.elementwise.formula import choose, choose_by_mask, mask_type
from hloexec.ops.elementwise.selection import Select, convert, is_numpys, range_of
from hloexec.ops.registry import fast
from hloexec.ops.traits import RowForm, prefixes, widened_from_bf16


def _fill_converted(operand: Array, out: Array) -> None:
    np.copyto(out, operand, casting="unsafe")


@fast("convert")
class FastConvert:
    """NumPy's conversion, where it is the one that HLO has."""

    @staticmethod
    def bind(*, shape: ArrayShape, operand_shapes: ArrayShapes) -> Callable[..., Array]:
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
    def fill(*, shape: ArrayShape, operand_shapes: ArrayShapes) -> Any:
        return _fill_converted if is_numpys(operand_shapes[0].element_type, shape.element_type) else None


@fast("select")
class FastSelect:
    """Of whole arrays; several selects by one pred share its mask."""

    @staticmethod
    def bind(*, shape: ArrayShape, operand_shapes: ArrayShapes) -> Callable[..., Array]:
        return choose if _is_plain(shape, operand_shapes) else partial(Select.evaluate, shape=shape)

    @staticmethod
    def by_rows(*, shape: ArrayShape, operand_shapes: ArrayShapes) -> RowForm | None:
        """Several selects by one pred share its mask."""
        wide = widened_from_bf16(shape)
        mask = mask_type(wide.element_type.storage)
        if mask is None or shape.rank == 0 or not _is_plain(shape, operand_shapes):
            return None
        is_bfloat = wide is not shape
        return RowForm(
            prefixes(shape.dimensions),
            lambda _: choose_by_mask,
            wide=wide if is_bfloat else None,
            is_exact=is_bfloat,
            is_elementwise=True,
            mask=mask,
            fills=True,
            overwrites=(1,),
        )


def _is_plain(shape: ArrayShape, operand_shapes: ArrayShapes) -> bool:
    """Whether pred is no scalar (or all are), and no precisions of floats are mixed."""
    pred, *others = operand_shapes
    return pred.rank == shape.rank and all(operand.element_type is shape.element_type for operand in others)
