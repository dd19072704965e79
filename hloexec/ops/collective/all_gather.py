"""all-gather: concatenating what several devices hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hloexec.core.ir import Shape, TupleShape, parts_of
from hloexec.core.structs import frozen
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.collective.groups import (
    CollectiveAttributes,
    Members,
    Results,
    collective,
    one_or_all,
)
from hloexec.ops.collective.shares import pairs_of_shares, relate_share, require_shares, shares_in
from hloexec.ops.registry import Role, opcode
from hloexec.ops.relations import Relating
from hloexec.ops.signatures import element_of_operand, one_or_tuple, require_same_shape, require_tuple

if TYPE_CHECKING:
    from hloexec.ops.relations import Value


@frozen
class AllGatherAttributes(CollectiveAttributes):
    constrain_layout: bool = attribute(Grammar.BOOL, default=False)
    dimension: int = attribute(Grammar.INT_IN_LIST, name="dimensions")
    use_global_device_ids: bool = attribute(Grammar.BOOL, default=False)


@collective("all-gather", attributes=AllGatherAttributes, gives_same=True, moves=(0,), crosses_devices=True)
class AllGather:
    """Concatenates the operands of a group's devices along `dimensions` (XLA: AllGather)."""

    @staticmethod
    def group_members(operands: Sequence[Shape], result: Shape, attributes: AllGatherAttributes) -> int | None:
        return shares_in(operands[0], result, attributes.dimension)

    @staticmethod
    def relate(use: Relating) -> None:
        _relate_gathered(use, use.result)

    @staticmethod
    def infer(*operands: Shape, attributes: AllGatherAttributes, shape: Shape) -> Shape:
        return _gathered(operands, shape, attributes, "all-gather")

    @staticmethod
    def exchange(members: Members, *, attributes: AllGatherAttributes) -> Results:
        parts = zip(*members.values(), strict=True)
        whole = one_or_all([np.concatenate(arrays, attributes.dimension) for arrays in parts])
        return dict.fromkeys(members, whole)


@collective(
    "all-gather-start", attributes=AllGatherAttributes, gives_same=True, begins=True, opens=True, owns_tuple=True
)
class AllGatherStart:
    """Starts an all-gather; the value is (operands, results)."""

    @staticmethod
    def group_members(operands: Sequence[Shape], result: Shape, attributes: AllGatherAttributes) -> int | None:
        parts = parts_of(result)
        return AllGather.group_members(operands, parts[1], attributes) if len(parts) > 1 else None

    @staticmethod
    def relate(use: Relating) -> None:
        for ours, theirs in zip(use.operands, use.result.part(0).leaves.values(), strict=False):
            use.same(ours.axes, theirs)
        _relate_gathered(use, use.result.part(1))

    @staticmethod
    def infer(*operands: Shape, attributes: AllGatherAttributes, shape: Shape) -> Shape:
        parts = require_tuple(shape, 2, "all-gather-start")
        require_same_shape(parts[0], one_or_tuple(operands), "element 0 of all-gather-start, its operands,")
        return TupleShape((parts[0], _gathered(operands, parts[1], attributes, "all-gather-start"), *parts[2:]))

    exchange = AllGather.exchange


@opcode("all-gather-done", operands=1, role=Role.PART, aliases=(((), (1,)),), owns_tuple=True)
class AllGatherDone:
    """The results of a started all-gather."""

    infer = element_of_operand("all-gather-done", 1)


def _gathered(operands: tuple[Shape, ...], shape: Shape, attributes: AllGatherAttributes, opcode_name: str) -> Shape:
    for number, operand, result in pairs_of_shares(operands, shape, attributes, opcode_name):
        require_shares(operand, result, attributes, f"operand {number} of {opcode_name}", "a part of its result")
    return shape


def _relate_gathered(use: Relating, result: Value) -> None:
    for operand, axes in zip(use.operands, result.leaves.values(), strict=False):
        relate_share(use, axes, operand.axes)
