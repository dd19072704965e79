"""The registry against the opcodes of the installed XLA."""

import re
import subprocess
import sys

import pytest

from hloexec.ops import LATEST, MODULES
from hloexec.ops.attributes import Grammar, attribute_fields
from hloexec.ops.registry import OPCODES, Entry, Role, find_opcode

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


def _in_a_fresh_process(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout


def test_modules_are_imported_when_one_of_their_opcodes_is_asked_for() -> None:
    program = """
import sys
from hloexec.ops.registry import OPCODES, find_opcode
home = "hloexec.ops.linalg"
print(home in sys.modules, "fft" in OPCODES, find_opcode("fftt"), home in sys.modules)
print(find_opcode("fft").name, home in sys.modules, "hloexec.ops.sorting" in sys.modules)
"""
    assert _in_a_fresh_process(program).split("\n")[:2] == ["False True None False", "fft True False"]


def test_entries_are_found_in_the_modules_that_list_them_and_keep_one_order() -> None:
    program = """
from hloexec.ops import MODULES
from hloexec.ops.registry import OPCODES, find_opcode
for name in reversed([name for names in MODULES.values() for name in names.split()]):
    assert find_opcode(name).name == name
print(*OPCODES)
"""
    listed = [name for names in MODULES.values() for name in names.split()]
    assert _in_a_fresh_process(program).split() == listed == list(OPCODES)


def test_registry_covers_every_opcode_of_xla() -> None:
    assert _xla_opcode_names() - OPCODES.keys() == set()


def test_registry_has_no_opcode_that_xla_lacks() -> None:
    assert OPCODES.keys() - _xla_opcode_names() <= LATEST


@pytest.mark.parametrize("name", _SPELLED_OTHERWISE.values())
def test_xla_knows_the_names_that_its_enumeration_does_not_tell(name: str) -> None:
    hlo = pytest.importorskip("jaxlib._hlo")
    with pytest.raises(Exception, match="error") as caught:
        hlo.hlo_module_from_text(f"HloModule m\nENTRY e {{\n  ROOT x = f32[] {name}(y)\n}}")
    assert f"nknown opcode: {name}" not in str(caught.value)


def test_every_opcode_documents_its_rule() -> None:
    assert [name for name in sorted(OPCODES) if not OPCODES[name].documentation] == []


def test_every_opcode_has_a_shape_rule() -> None:
    assert [name for name in sorted(OPCODES) if OPCODES[name].infer is None] == []


def test_every_kernel_opcode_can_be_evaluated() -> None:
    for name in sorted(OPCODES):
        entry = OPCODES[name]
        assert (entry.evaluate is not None) == (entry.role is Role.KERNEL), name


def test_enumerations_name_their_choices() -> None:
    for name in sorted(OPCODES):
        for field in attribute_fields(OPCODES[name].attributes).values():
            if field.grammar in (Grammar.ENUM, Grammar.ENUM_LIST):
                assert field.choices, name
                if field.grammar is Grammar.ENUM and not field.is_required and field.default is not None:
                    assert field.default in field.choices, name


def test_an_opcode_has_one_entry() -> None:
    with pytest.raises(ValueError, match="two entries"):
        OPCODES.add(Entry(name="tuple", operands=0))


def test_an_unknown_opcode_is_not_found() -> None:
    assert find_opcode("frobnicate") is None
