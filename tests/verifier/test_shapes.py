"""Declared shapes against inferred ones, and the widths of floats."""

import attrs

from hloexec.core import ir
from hloexec.language.verifier import verify
from tests.text.building import module, op
from tests.verifier.broken import CALLED, CHAIN, F2, F3, F32, edited, fault, parsed, with_instructions


def test_declared_shapes_are_the_inferred_ones() -> None:
    assert "copy is declared f32[3], but its operands give f32[2]" in fault(edited(CHAIN, "b", shape=F3))


def test_layouts_of_declared_shapes_do_not_count() -> None:
    assert verify(parsed(op("f32[2,3]{0,1:T(8,128)} copy(a)", a="f32[2,3]{1,0}"))) == []


def test_dynamic_flags_of_declared_shapes_do_not_count() -> None:
    assert verify(parsed(op("f32[<=2] copy(a)", a="f32[2]"))) == []


def test_rules_of_opcodes_are_reported_with_their_place() -> None:
    text = op('f32[2,2] broadcast(a), dimensions={5}, metadata={source_file="model.py" source_line=17}', a="f32[2]")
    line = text[: text.index("broadcast")].count("\n") + 1
    message = fault(text)
    assert f"dump.txt:{line}:" in message
    assert "computation 'main', instruction 'root' (model.py:17): " in message


def test_place_is_left_out_where_there_is_no_text() -> None:
    broken = attrs.evolve(edited(CHAIN, "b", shape=F3), source=None)
    assert fault(broken).startswith("module 'm' has 2 faults:\ncomputation 'main', instruction 'b': ")


def test_several_faults_are_reported_together() -> None:
    broken = module("a = f32[2] parameter(0)\nb = f32[3] copy(a)\nROOT c = f32[4] copy(a)")
    message = fault(broken)
    assert message.startswith("module 'm' has 2 faults:\n")
    assert message.count("\n") == 2


def test_very_many_faults_are_counted() -> None:
    broken = module("a = f32[2] parameter(0)\n" + "".join(f"b{n} = f32[3] copy(a)\n" for n in range(50)))
    message = fault(broken)
    assert "has 50 faults" in message
    assert message.endswith("… and 30 more")


def test_other_widths_of_floats_are_notes() -> None:
    text = op("bf16[2] copy(a)", a="f32[2]")
    (note,) = verify(parsed(text))
    assert str(note).endswith("note: copy is declared bf16[2], but its operands give f32[2]")
    assert "dump.txt:" in note.place


def test_other_widths_of_floats_are_errors_when_strict() -> None:
    assert "copy is declared bf16[2]" in fault(op("bf16[2] copy(a)", a="f32[2]"), strict=True)


def test_other_widths_of_floats_in_tuples_are_notes() -> None:
    text = op("(bf16[2], s32[]) tuple(a, b)", a="f32[2]", b="s32[]")
    assert len(verify(parsed(text))) == 1


def test_calls_with_other_widths_of_floats_are_notes() -> None:
    text = op("f32[2] fusion(a), kind=kLoop, calls=inner", CALLED, a="bf16[2]")
    (note,) = verify(parsed(text))
    assert "operand 0 of fusion is bf16[2], but the called computation takes f32[2]" in note.message


def test_elementwise_operands_of_other_widths_are_notes() -> None:
    text = op("f32[2] add(a, b)", a="f32[2]", b="bf16[2]")
    (note,) = verify(parsed(text))
    assert note.message == "the operands of add mix bf16 and f32"


def test_integers_of_other_widths_are_errors() -> None:
    assert "copy is declared s16[2]" in fault(op("s16[2] copy(a)", a="s32[2]"))


def test_floats_are_no_integers() -> None:
    assert "copy is declared s32[2]" in fault(op("s32[2] copy(a)", a="f32[2]"))


def test_layouts_are_permutations() -> None:
    broken = edited(CHAIN, "b", shape=attrs.evolve(F2, layout=ir.Layout(minor_to_major=(1,))))
    assert "the layout {1} of f32[2] is not a permutation of its 1 dimensions" in fault(broken)


def test_sizes_are_not_negative() -> None:
    broken = edited(CHAIN, "a", shape=ir.ArrayShape(F32, (-2,)))
    assert "dimension 0 of f32 has the negative size -2" in fault(broken)


def test_unbounded_sizes_are_dynamic() -> None:
    assert "negative size -1" in fault(edited(CHAIN, "a", shape=ir.ArrayShape(F32, (ir.UNBOUNDED,))))
    assert verify(parsed(op("f32[?] copy(a)", a="f32[?]"))) == []


def test_dynamic_flags_are_one_per_dimension() -> None:
    broken = edited(CHAIN, "a", shape=attrs.evolve(F2, dynamic_dimensions=(True, False)))
    assert "1 dimensions, but 2 dynamic flags" in fault(broken)


def test_parameter_replication_has_a_flag_per_leaf() -> None:
    broken = edited(CHAIN, "a", parameter_replication=(True, False))
    assert "parameter_replication has 2 flags, but the shape has 1 leaves" in fault(broken)


def test_unknown_opcodes_are_taken_as_they_are() -> None:
    text = module("a = f32[2] parameter(0)\nb = s32[7] transmogrify(a, a, a), odd=1\nROOT c = s32[7] copy(b)")
    assert verify(parsed(text)) == []


def test_operands_of_unknown_opcodes_still_exist() -> None:
    broken = attrs.evolve(parsed(CHAIN).entry.instructions[1], opcode="transmogrify", operands=("nobody",))
    found = parsed(CHAIN)
    assert "'nobody' does not exist" in fault(with_instructions(found, [found.entry.instructions[0], broken, broken]))


ASYNC = """a = f32[2] parameter(0)
s = ((f32[2]), f32[2], s32[]) async-start(a), calls=inner
u = ((f32[2]), f32[2], s32[]) async-update(s)
ROOT d = f32[2] async-done(u)"""


def test_what_is_done_does_not_go_on() -> None:
    text = module(ASYNC.replace("ROOT d", "d") + "\nROOT e = f32[2] async-done(d)", CALLED)
    assert "the operand of async-done must come from an async-start or async-update, but 'd' is a async-done" in fault(
        text
    )


def test_async_update_gives_what_it_is_given_and_further_operands() -> None:
    assert "declared ((f32[2]), f32[2], u32[])" in fault(
        module(ASYNC.replace("s32[]) async-u", "u32[]) async-u"), CALLED)
    )
    late = ASYNC.replace("(f32[2]), f32[2], s32[]) async-start(a)", "(), (), s32[]) async-start()")
    verify(parsed(module(late.replace("update(s)", "update(s, a)"), CALLED)))
    wrong = late.replace("((f32[2]), f32[2], s32[]) async-update(s)", "((f32[3]), f32[2], s32[]) async-update(s, a)")
    assert "async-update is declared ((f32[3])" in fault(module(wrong, CALLED))


def test_async_done_repeats_the_computation_of_its_start() -> None:
    text = module(
        ASYNC.replace("async-done(u)", "async-done(s), calls=other"), CALLED + CALLED.replace("inner", "other")
    )
    assert "calls is other, but that of its start 's' is inner" in fault(text)


def test_transfers_end_on_the_channel_they_began_on() -> None:
    text = module(
        "t = token[] after-all()\nr = (f32[2], u32[], token[]) recv(t), channel_id=1\n"
        "ROOT d = (f32[2], token[]) recv-done(r), channel_id=2"
    )
    assert "channel_id is 2, but that of its start 'r' is 1" in fault(text)


def test_equal_instructions_are_each_reported_where_they_stand() -> None:
    text = module("a = f32[2] parameter(0)\nb = bf16[2] parameter(1)\nc = f32[2] add(a, b)\nROOT d = f32[2] add(a, b)")
    notes = verify(parsed(text))
    lines = [text[: text.index(name)].count("\n") + 1 for name in ("c = ", "ROOT d")]
    assert [note.place.partition(": ")[0].split(":")[1] for note in notes] == [str(line) for line in lines]


def test_each_of_several_equal_faults_is_reported() -> None:
    broken = module("a = f32[2] parameter(0)\nb = f32[3] copy(a)\nc = f32[3] copy(a)\nROOT d = f32[2] copy(a)")
    message = fault(broken)
    assert "instruction 'b'" in message
    assert "instruction 'c'" in message
    assert "instruction 'd'" not in message


def test_calls_that_are_equal_but_for_the_computation_are_checked_against_their_own() -> None:
    other = CALLED.replace("inner", "other").replace("[2]", "[3]")
    body = "a = f32[2] parameter(0)\nb = f32[2] call(a), to_apply=inner\nROOT c = f32[2] call(b), to_apply=other"
    message = fault(CALLED + other + module(body).partition("\n")[2])
    assert "instruction 'c'" in message
    assert "instruction 'b'" not in message


def test_what_other_widths_cost_is_noted_for_each_of_equal_instructions() -> None:
    mixed = "a = f32[2] parameter(0)\nb = bf16[2] parameter(1)\nc = f32[2] add(a, b)\nROOT d = f32[2] add(a, b)"
    assert [note.place.rpartition("instruction ")[2] for note in verify(parsed(module(mixed)))] == ["'c'", "'d'"]


def test_attributes_that_hold_lists_are_checked_too() -> None:
    text = module("a = f32[2,3] parameter(0)\nb = f32[3,2] transpose(a), dimensions={1,0}\nROOT c = f32[3,2] copy(b)")
    attributes = parsed(text).entry.by_name["b"].attributes
    right, wrong = (attrs.evolve(attributes, dimensions=dimensions) for dimensions in ([1, 0], [0, 1]))
    assert verify(edited(text, "b", attributes=right)) == []
    assert "transpose is declared f32[3,2]" in fault(edited(text, "b", attributes=wrong))
