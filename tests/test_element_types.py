"""The element types that opcodes are said to take are those whose programs verify."""

import pytest

import hloexec
import hloexec.ops
from conformance.cell import TYPES, module_text
from conformance.matrix import examples_of
from hloexec.language.element_types import accepted_element_types
from hloexec.ops.registry import OPCODES


def verifies(text: str) -> bool:
    try:
        hloexec.verify(hloexec.parse(text))
    except hloexec.HloError:
        return False
    return True


@pytest.mark.parametrize("opcode", "add and compare dot cholesky fft sort topk rng iota scaled-dot erf".split())
def test_accepted_types_are_those_whose_programs_verify(opcode: str) -> None:
    accepted = accepted_element_types(OPCODES[opcode])
    assert accepted is not None
    for element_type in TYPES:
        examples = examples_of(opcode, element_type.name, 1, 0)
        if examples:
            assert verifies(module_text(examples[:1])) == (element_type in accepted), element_type
