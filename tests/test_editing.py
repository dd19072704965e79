"""Editing modules: fresh names, and parts in the place of those of their names."""

import attrs

import hloexec
from hloexec.core.ir import Module
from hloexec.core.ir.editing import (
    change_entry,
    inline,
    map_instructions,
    rename,
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


HEADER = """HloModule m, is_scheduled=true, input_output_alias={ {}: (1, {}, may-alias) }, buffer_donor={ (0, {}) }, \
entry_computation_layout={(f32[2]{0},f32[2]{0})->f32[2]{0}}, allow_spmd_sharding_propagation_to_output={true}
inner { a = f32[2]{0} parameter(0)
  ROOT b = f32[2]{0} negate(a) }
ENTRY main { x = f32[2]{0} parameter(0)
  y = f32[2]{0} parameter(1)
  z = f32[2]{0} call(x), to_apply=inner
  ROOT w = f32[2]{0} add(y, z) }
"""


def test_the_header_says_nothing_of_an_entry_that_is_no_longer_one() -> None:
    changed = change_entry(hloexec.parse(HEADER), "inner")
    hloexec.verify(changed)
    assert hloexec.format(changed).splitlines()[0] == "HloModule m, is_scheduled=true"


def test_the_layout_of_an_entry_stays_where_its_shapes_do() -> None:
    module = hloexec.parse(HEADER)

    def with_root(**changes: object) -> Module:
        return replace_computation(
            module, replace_instruction(module.entry, attrs.evolve(module.entry.root, **changes))
        )

    same = with_root(opcode="subtract")
    assert same.entry_computation_layout == module.entry_computation_layout and same.source is None
    assert with_root(shape=hloexec.parse(TEXT).entry.root.shape).entry_computation_layout is None
    assert with_root().input_output_alias == module.input_output_alias


def test_a_call_is_inlined_under_names_of_its_own() -> None:
    module = hloexec.parse(TEXT.replace("b = ", "z = "))
    callee, entry = module.by_name["double"], module.entry
    taken = {*entry.by_name}
    made, root = inline(callee, callee.instructions, ("x",), taken)
    assert root == "z.2" and "z.2" in taken
    assert [(each.name, each.operands) for each in made] == [("z.2", ("x", "x"))]
    kept = (rename(each, {"y": root}) for each in entry if each.name != "y")
    opened = replace_computation(module, attrs.evolve(entry, instructions=(*made, *kept)))
    assert hloexec.run(opened, 3.0) == hloexec.run(module, 3.0) == 3.0
