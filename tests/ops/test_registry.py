"""The registry against the opcodes of the installed XLA."""

from __future__ import annotations

import re

import pytest

import hloexec.ops  # noqa: F401  (fills the registry)
from hloexec.ops.attributes import Grammar, attribute_fields
from hloexec.ops.registry import OPCODES, Opcode, Role, find_opcode, register

_SPELLED_OTHERWISE = {
    "Clz": "count-leading-zeros",
    "Cos": "cosine",
    "Exp": "exponential",
    "Expm1": "exponential-minus-one",
    "Log1p": "log-plus-one",
    "OptimizationBarrier": "opt-barrier",
    "PopulationCount": "popcnt",
    "Sin": "sine",
    "TopK": "topk",
}


def _xla_opcode_names() -> set[str]:
    hlo = pytest.importorskip("jaxlib._hlo")
    members = (name[1:] for name in hlo.HloOpcode.__members__)
    return {_SPELLED_OTHERWISE.get(name) or re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower() for name in members}


def test_registry_covers_every_opcode_of_xla() -> None:
    assert _xla_opcode_names() - OPCODES.keys() == set()


def test_registry_has_no_opcode_that_xla_lacks() -> None:
    assert OPCODES.keys() - _xla_opcode_names() == set()


@pytest.mark.parametrize("name", _SPELLED_OTHERWISE.values())
def test_xla_knows_the_names_that_its_enumeration_does_not_tell(name: str) -> None:
    hlo = pytest.importorskip("jaxlib._hlo")
    with pytest.raises(Exception, match="error") as caught:
        hlo.hlo_module_from_text(f"HloModule m\nENTRY e {{\n  ROOT x = f32[] {name}(y)\n}}")
    assert f"nknown opcode: {name}" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(OPCODES))
def test_every_opcode_documents_its_rule(name: str) -> None:
    assert OPCODES[name].documentation


@pytest.mark.parametrize("name", sorted(OPCODES))
def test_every_opcode_has_a_shape_rule(name: str) -> None:
    assert OPCODES[name].infer is not None


@pytest.mark.parametrize("name", sorted(OPCODES))
def test_every_kernel_opcode_can_be_evaluated(name: str) -> None:
    entry = OPCODES[name]
    assert (entry.evaluate is not None) == (entry.role is Role.KERNEL)


@pytest.mark.parametrize("name", sorted(OPCODES))
def test_enumerations_name_their_choices(name: str) -> None:
    for field in attribute_fields(OPCODES[name].attributes).values():
        if field.grammar in (Grammar.ENUM, Grammar.ENUM_LIST):
            assert field.choices
            if field.grammar is Grammar.ENUM and not field.is_required and field.default is not None:
                assert field.default in field.choices


def test_an_opcode_has_one_entry() -> None:
    with pytest.raises(ValueError, match="two entries"):
        register(Opcode(name="tuple", operands=0))


def test_an_unknown_opcode_is_not_found() -> None:
    assert find_opcode("frobnicate") is None
