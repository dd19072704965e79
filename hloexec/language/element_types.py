"""The element types that each opcode accepts, found by applying its shape rule to tiny programs.

There is no separate list, which could only contradict the shape rules.
"""

from __future__ import annotations

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType
from hloexec.core.ir import ArrayShape
from hloexec.core.process import remembered
from hloexec.errors import HloError
from hloexec.ops.registry import Entry
from hloexec.ops.traits import Probe


@remembered
def accepted_element_types(entry: Entry) -> tuple[ElementType, ...] | None:
    """The element types of an opcode's first operand (of its result, where it has no such operand) that verify.

    None for opcodes that have no rule about them: control flow, tuples, and what moves values between devices.
    """
    arrays = [element_type for element_type in ELEMENT_TYPES.values() if element_type.is_array]
    probe = entry.traits.probe
    if probe is not None:
        return tuple(element_type for element_type in arrays if _verifies(probe, element_type))
    if not entry.is_elementwise or entry.infer is None:
        return None
    return tuple(element_type for element_type in arrays if _infers(entry, element_type))


def _infers(entry: Entry, element_type: ElementType) -> bool:
    assert entry.infer is not None
    try:
        entry.infer(*[ArrayShape(element_type, (2,))] * entry.minimum_operands)
    except HloError:
        return False
    return True


def _verifies(probe: Probe, element_type: ElementType) -> bool:
    from hloexec.language.text import parse
    from hloexec.language.verifier import verify

    try:
        verify(parse(probe.text(element_type)))
    except HloError:
        return probe.otherwise is not None and _verifies(probe.otherwise, element_type)
    return True
