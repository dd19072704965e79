"""Fast variants of select."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hloexec.core.ir import ArrayShape
from hloexec.core.values import Array
from hloexec.ops.elementwise.choosing import choose, choose_by_mask, mask_type
from hloexec.ops.elementwise.selection import Select
from hloexec.ops.registry import fast
from hloexec.ops.rows import RowForm, prefixes, widened_from_bf16


@fast("select")
class FastSelect:
    """Of whole arrays; several selects by one pred share its mask."""

    @staticmethod
    def bind(*, shape: ArrayShape, operand_shapes: tuple[ArrayShape, ...]) -> Callable[..., Array]:
        return choose if _is_plain(shape, operand_shapes) else partial(Select.evaluate, shape=shape)

    @staticmethod
    def by_rows(*, shape: ArrayShape, operand_shapes: tuple[ArrayShape, ...]) -> RowForm | None:
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


def _is_plain(shape: ArrayShape, operand_shapes: tuple[ArrayShape, ...]) -> bool:
    """Whether pred is no scalar (or all are), and no precisions of floats are mixed."""
    pred, *others = operand_shapes
    return pred.rank == shape.rank and all(operand.element_type is shape.element_type for operand in others)
