"""Modules that `hloexec.testing` draws: well-formed for us and for XLA, and small once they shrink."""

import warnings
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

import hloexec
from hloexec import testing
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import leaf_shapes
from hloexec.errors import InputError
from hloexec.testing.bodies import Program
from hloexec.testing.modules import _steps
from tests.drawing import examples
from tests.families import of_each_family
from tests.plan.ways import bits

FINDING = settings(max_examples=2000, deadline=None, database=None, suppress_health_check=[*HealthCheck])
ANY = settings(FINDING, phases=[Phase.generate])


def _opcodes(module: hloexec.Module) -> set[str]:
    return {instruction.opcode for computation in module for instruction in computation}


def _required_by_all(module: hloexec.Module, data: st.DataObject) -> None:
    """Verifies, prints, is read again by us and by XLA, and has the same bits under the plan and without it."""
    hlo = pytest.importorskip("jaxlib._hlo")
    hloexec.verify(module)
    text = hloexec.format(module)
    assert hloexec.parse(text) == module
    hlo.hlo_module_from_text(text)
    inputs = data.draw(testing.inputs(module))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bits(hloexec.run(module, *inputs)) == bits(hloexec.run(module, *inputs, planner=False))


@settings(max_examples=examples(120), deadline=None)
@given(testing.modules(), st.data())
def test_modules_verify_print_and_run(module: hloexec.Module, data: st.DataObject) -> None:
    _required_by_all(module, data)


@settings(max_examples=examples(20), deadline=None)
@given(testing.modules(min_instructions=8, max_instructions=24, min_size=3, max_size=8, max_elements=60), st.data())
def test_longer_modules_of_larger_arrays_do_so_too(module: hloexec.Module, data: st.DataObject) -> None:
    _required_by_all(module, data)


@settings(max_examples=examples(50), deadline=None)
@given(testing.modules(min_size=0, max_size=3, max_depth=2), st.data())
def test_modules_with_empty_arrays_and_nested_calls_do_so_too(module: hloexec.Module, data: st.DataObject) -> None:
    _required_by_all(module, data)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("opcode", _steps())
def test_every_opcode_comes_when_it_is_asked_for(opcode: str) -> None:
    module = find(testing.modules([opcode]), lambda module: opcode in _opcodes(module), settings=ANY)
    hloexec.verify(module)


@pytest.mark.parametrize("name", of_each_family(name for name, entry in ELEMENT_TYPES.items() if entry.is_array))
def test_every_element_type_comes_when_it_is_asked_for(name: str) -> None:
    module = find(testing.modules(["transpose", "add"], name), lambda module: len(module.entry) > 3, settings=ANY)
    assert {leaf.element_type.name for i in module.entry for _, leaf in leaf_shapes(i.shape)} == {name}


@settings(max_examples=examples(30), deadline=None)
@given(testing.modules(["add", "reduce"], ["f32", "bf16"], max_instructions=3, max_rank=2, max_size=4))
def test_modules_keep_to_what_is_asked_for(module: hloexec.Module) -> None:
    written = [instruction for instruction in module.entry if instruction.opcode in ("add", "reduce")]
    assert len(written) <= 3
    assert {instruction.opcode for instruction in module.entry} <= {"add", "reduce", "parameter", "constant", "tuple"}
    for instruction in written:
        assert instruction.shape.element_type.name in ("f32", "bf16")
        assert len(instruction.shape.dimensions) <= 2 and max(instruction.shape.dimensions, default=0) <= 4


def _minimal(opcode: str, **options: Any) -> hloexec.Module:
    strategy = testing.modules(["add", "negate", "transpose", "sort", "while", opcode], **options)
    return find(strategy, lambda module: any(i.opcode == opcode for i in module.entry), settings=FINDING)


@pytest.mark.slow
def test_a_module_shrinks_to_one_instruction_on_a_small_parameter() -> None:
    for opcode, shape in (("acos", "f32[]"), ("sort", "f32[1]")):
        entry = _minimal(opcode).entry
        assert [(str(i.shape), i.opcode) for i in entry] == [(shape, "parameter"), (shape, opcode)]


@pytest.mark.slow
def test_a_failure_shrinks_and_shows_its_module() -> None:
    @settings(max_examples=500, database=None, deadline=None)
    @given(testing.modules(["add", "negate", "sine"], "f32", max_instructions=4, max_rank=1))
    def test(module: hloexec.Module) -> None:
        assert not any(
            i.opcode == "sine" and module.entry.by_name[i.operands[0]].opcode == "negate" for i in module.entry
        )

    with pytest.raises(AssertionError) as caught:
        test()
    notes = "\n".join(caught.value.__notes__)
    assert "module=<Module random: 3 instructions in 1 computation>" in notes
    lines = [line.split(" = ")[1] for line in notes.splitlines() if " = f32" in line]
    assert [line.partition("(")[0] for line in lines] == ["f32[] parameter", "f32[] negate", "f32[] sine"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["ad"],), "opcode 'ad' cannot be drawn; there are abs, acos"),
        ((["all-reduce"],), "opcode 'all-reduce' cannot be drawn"),
        ((["and"], "f32"), "and takes none of the element types f32"),
        (("add",), r"opcodes must be a list of str, but the Python str 'add' was given"),
        (([],), "opcodes is empty"),
        ((None, "f31"), "'f31' is no element type of arrays; there are f32, s32"),
        ((None, []), "element_types is empty"),
        ((None, "token"), "'token' is no element type of arrays"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        testing.modules(*arguments)


@pytest.mark.parametrize(
    "options",
    [{"min_instructions": 0}, {"max_instructions": 0}, {"max_size": 0}, {"max_rank": -1}, {"max_elements": 1.5}],
)
def test_bounds_that_are_wrong_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        testing.modules(**options)


def test_no_name_of_a_long_module_is_an_element_type() -> None:
    program = Program(
        pytest.fail, (), {}, {}, max_depth=1, keeps_all=True, max_rank=1, min_size=1, max_size=1, max_elements=1
    )
    assert {program.fresh("c") for _ in range(130)}.isdisjoint(ELEMENT_TYPES)
