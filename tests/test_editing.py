"""Editing modules: fresh names, and parts in the place of those of their names."""

import attrs

import hloexec
from hloexec.core.ir.editing import (
    map_instructions,
    rename_operands,
    replace_computation,
    replace_instruction,
    take_name,
)

TEXT = """HloModule m
double { a = f32[] parameter(0)
  ROOT b = f32[] add(a, a) }
ENTRY main { x = f32[] parameter(0)
  y = f32[] call(x), to_apply=double
  ROOT z = f32[] subtract(y, x) }
"""


def test_names_are_numbered_from_the_second_on() -> None:
    taken = {"x", "x.3"}
    assert [take_name("x", taken) for _ in range(3)] == ["x.2", "x.4", "x.5"]
    assert take_name("y", taken) == "y"
    assert [take_name("y", taken, 1) for _ in range(2)] == ["y.1", "y.2"]
    assert taken == {"x", "x.2", "x.3", "x.4", "x.5", "y", "y.1", "y.2"}


def test_only_what_has_another_name_is_renamed() -> None:
    root = hloexec.parse(TEXT).entry.root
    assert rename_operands(root, {"y": "x", "z": "w"}).operands == ("x", "x")
    assert rename_operands(root, {}, name="w") == attrs.evolve(root, name="w")


def test_parts_are_replaced_by_those_of_their_names() -> None:
    module = hloexec.parse(TEXT)
    double = module.by_name["double"]
    product = replace_instruction(double, attrs.evolve(double.root, opcode="multiply"))
    edited = replace_computation(module, product, name="n")
    assert edited.name == "n"
    assert edited.entry == module.entry
    assert [float(hloexec.run(each, 3.0)) for each in (module, edited)] == [3.0, 6.0]


def test_every_instruction_is_seen_with_its_computation() -> None:
    module = hloexec.parse(TEXT)
    seen = []
    same = map_instructions(module, lambda computation, each: seen.append((computation.name, each.name)) or each)
    assert same == module
    assert seen == [("double", "a"), ("double", "b"), ("main", "x"), ("main", "y"), ("main", "z")]
