"""Ways to make broken modules, and to hear what the verifier says of them."""

import warnings

import attrs
import pytest

from hloexec.core import ir
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.errors import HloWarning, VerificationError
from hloexec.language.text import parse
from hloexec.language.verifier import verify
from tests.text.building import module

F32 = ELEMENT_TYPES["f32"]
F2 = ir.ArrayShape(F32, (2,))
F3 = ir.ArrayShape(F32, (3,))

CALLED = """inner {
  x = f32[2] parameter(0)
  ROOT r = f32[2] copy(x)
}
"""


def parsed(text: str) -> ir.Module:
    """A module parsed without complaint about what is unknown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HloWarning)
        return parse(text, filename="dump.txt")


def edited(text: str, name: str, /, **changes: object) -> ir.Module:
    """The module of a text, with fields of the instruction `name` of the entry computation changed."""
    found = parsed(text)
    return with_instructions(
        found, [attrs.evolve(i, **changes) if i.name == name else i for i in found.entry.instructions]
    )


def with_instructions(found: ir.Module, instructions: list[ir.Instruction]) -> ir.Module:
    entry = attrs.evolve(found.entry, instructions=tuple(instructions))
    return attrs.evolve(found, computations=tuple(entry if c.name == entry.name else c for c in found.computations))


def fault(broken: ir.Module | str, strict: bool = False) -> str:
    """What the verifier says of a broken module."""
    with pytest.raises(VerificationError) as caught:
        verify(parsed(broken) if isinstance(broken, str) else broken, strict=strict)
    return str(caught.value)


CHAIN = module("a = f32[2] parameter(0)\nb = f32[2] copy(a)\nROOT c = f32[2] copy(b)")
