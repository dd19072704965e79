"""Names, references, cycles, parameters, calls, and what the header says of the entry computation."""

import json

import attrs
import numpy as np
import pytest

import hloexec
from hloexec.cli import main
from hloexec.core import ir
from hloexec.errors import HloError, VerificationError
from hloexec.language.text import parse
from hloexec.language.verifier import verify
from hloexec.ops.library_calls.user_calls import register_custom_call, unregister_custom_call
from tests.drawing import examples
from tests.text import oracle
from tests.text.building import module, op
from tests.verifier.broken import CALLED, CHAIN, F2, edited, fault, parsed, with_instructions


def test_well_formed_module_has_no_notes() -> None:
    assert verify(parsed(CHAIN)) == []


def test_instruction_names_are_unique() -> None:
    assert "instruction 'a': another instruction" in fault(edited(CHAIN, "b", name="a"))


def test_computation_names_are_unique() -> None:
    found = parsed(CHAIN)
    twice = attrs.evolve(found, computations=found.computations * 2)
    assert "another computation has this name" in fault(twice)


def test_operands_exist() -> None:
    assert "the operand 'nobody' does not exist" in fault(edited(CHAIN, "b", operands=("nobody",)))


def test_operands_may_come_later_in_the_text() -> None:
    found = parsed(CHAIN)
    assert verify(with_instructions(found, list(found.entry.instructions[::-1]))) == []


def test_values_do_not_depend_on_themselves() -> None:
    message = fault(edited(CHAIN, "b", operands=("c",)))
    assert "depends on itself" in message
    assert "b ← c ← b" in message or "c ← b ← c" in message


def test_an_instruction_is_not_its_own_operand() -> None:
    assert "depends on itself: b ← b" in fault(edited(CHAIN, "b", operands=("b",)))


def test_control_predecessors_exist() -> None:
    assert "control predecessor 'nobody' does not exist" in fault(edited(CHAIN, "b", control_predecessors=("nobody",)))


def test_control_predecessors_have_no_cycles() -> None:
    assert "depends on itself" in fault(edited(CHAIN, "b", control_predecessors=("c",)))


@pytest.mark.slow
@pytest.mark.parametrize("backwards", [False, True])
def test_very_long_chains_are_checked_without_recursion(backwards: bool) -> None:
    found = parsed(CHAIN)
    first, *_ = found.entry.instructions
    chain = [first]
    for number in range(100_000):
        chain.append(ir.Instruction(name=f"i{number}", shape=F2, opcode="copy", operands=(chain[-1].name,)))
    entry = ir.Computation(name="main", instructions=tuple(chain[::-1] if backwards else chain), root_name="i99999")
    long = attrs.evolve(found, computations=(entry,))
    assert verify(long) == []


def test_cycle_at_the_end_of_a_long_chain_is_found() -> None:
    chain = [ir.Instruction(name=f"i{n}", shape=F2, opcode="copy", operands=(f"i{n - 1}",)) for n in range(1, 20_000)]
    chain.append(ir.Instruction(name="i0", shape=F2, opcode="copy", operands=("i19999",)))
    looped = ir.Module(
        name="m",
        computations=(ir.Computation(name="main", instructions=tuple(chain), root_name="i0"),),
        entry_name="main",
    )
    assert "depends on itself" in fault(looped)


def test_root_exists() -> None:
    found = parsed(CHAIN)
    entry = attrs.evolve(found.entry, root_name="nobody")
    assert "the root 'nobody' does not exist" in fault(attrs.evolve(found, computations=(entry,)))


def test_entry_computation_exists() -> None:
    assert "the entry computation 'nobody' does not exist" in fault(attrs.evolve(parsed(CHAIN), entry_name="nobody"))


def test_parameter_numbers_have_no_gap() -> None:
    broken = module("a = f32[2] parameter(1)\nROOT b = f32[2] copy(a)")
    assert "parameter 0 is missing" in fault(broken)


def test_parameter_numbers_are_unique() -> None:
    broken = module("a = f32[2] parameter(0)\nb = f32[2] parameter(0)\nROOT c = f32[2] copy(a)")
    assert "parameter 0 is 'a' already" in fault(broken)


def test_number_of_operands_is_that_of_the_opcode() -> None:
    assert "copy takes 1 operand, but has 2" in fault(edited(CHAIN, "b", operands=("a", "a")))
    assert "copy takes 1 operand, but has 0" in fault(edited(CHAIN, "b", operands=()))


def test_variadic_opcodes_name_their_least_number_of_operands() -> None:
    text = op("f32[2] concatenate(a, a), dimensions={0}", a="f32[1]")
    assert "concatenate takes at least 1 operands, but has 0" in fault(edited(text, "root", operands=()))


def test_attributes_belong_to_the_opcode() -> None:
    text = op("f32[2,2] broadcast(a), dimensions={0}", a="f32[2]")
    assert "broadcast lacks its attributes" in fault(edited(text, "root", attributes=None))


def test_called_computations_exist() -> None:
    found = parsed(op("f32[2] call(a), to_apply=inner", CALLED, a="f32[2]"))
    assert "the called computation 'inner' does not exist" in fault(attrs.evolve(found, computations=(found.entry,)))


def test_computations_do_not_call_themselves() -> None:
    found = parsed(op("f32[2] call(a), to_apply=inner", CALLED, a="f32[2]"))
    root = found.entry.root
    looped = attrs.evolve(root, attributes=attrs.evolve(root.attributes, to_apply="main"))
    message = fault(with_instructions(found, [*found.entry.instructions[:-1], looped]))
    assert "the computation calls itself: main → main" in message


def test_long_chains_of_calls_are_checked_without_recursion() -> None:
    text = "HloModule m\ncall0 { ROOT x = f32[] parameter(0) }\n"
    text += "".join(
        f"call{n} {{ x = f32[] parameter(0) ROOT y = f32[] call(x), to_apply=call{n - 1} }}\n" for n in range(1, 5000)
    )
    assert verify(parsed(text)) == []


def test_entry_layout_has_a_shape_per_parameter() -> None:
    broken = module("ROOT a = f32[2] parameter(0)", header=", entry_computation_layout={()->f32[2]{0}}")
    assert "entry_computation_layout has 0 parameters, but the entry computation takes 1" in fault(broken)


def test_entry_layout_has_the_parameters_shapes() -> None:
    broken = module("ROOT a = f32[2] parameter(0)", header=", entry_computation_layout={(f32[3]{0})->f32[2]{0}}")
    assert "parameter 0 the shape f32[3], but its shape is f32[2]" in fault(broken)


def test_entry_layout_has_the_results_shape() -> None:
    broken = module("ROOT a = f32[2] parameter(0)", header=", entry_computation_layout={(f32[2]{0})->s32[2]{0}}")
    assert "the result the shape s32[2], but its shape is f32[2]" in fault(broken)


def test_entry_layout_may_order_dimensions_otherwise() -> None:
    text = module(
        "ROOT a = f32[2,3]{1,0} parameter(0)", header=", entry_computation_layout={(f32[2,3]{0,1})->f32[2,3]{0,1}}"
    )
    assert verify(parsed(text)) == []


_ALIASED = "a = f32[2] parameter(0)\nb = (f32[2], s32[]) parameter(1)\nROOT r = (f32[2], f32[2]) tuple(a, a)"


@pytest.mark.parametrize(
    ("alias", "expected"),
    [
        (ir.Alias((2,), 0, ()), "there is no such output"),
        (ir.Alias((0, 0), 0, ()), "there is no such output"),
        (ir.Alias((0,), 2, ()), "parameter 2 at {}, which is not there"),
        (ir.Alias((0,), -1, ()), "parameter -1 at {}, which is not there"),
        (ir.Alias((0,), 1, (2,)), "parameter 1 at {2}, which is not there"),
        (ir.Alias((0,), 1, ()), "tuples cannot"),
        (ir.Alias((), 0, ()), "tuples cannot"),
        (ir.Alias((0,), 1, (1,)), "differ in size"),
    ],
)
def test_aliases_name_parts_that_can_share_a_buffer(alias: ir.Alias, expected: str) -> None:
    assert expected in fault(attrs.evolve(parsed(module(_ALIASED)), input_output_alias=(alias,)))


def test_a_part_is_aliased_once() -> None:
    aliases = (ir.Alias((0,), 0, ()), ir.Alias((1,), 0, ()))
    assert "are paired once" in fault(attrs.evolve(parsed(module(_ALIASED)), input_output_alias=aliases))


def test_aliases_of_equal_size_are_fine() -> None:
    aliases = (ir.Alias((0,), 0, ()), ir.Alias((1,), 1, (0,)))
    assert verify(attrs.evolve(parsed(module(_ALIASED)), input_output_alias=aliases)) == []


@pytest.mark.parametrize(("number", "index"), [(2, ()), (0, (0,)), (1, (2,))])
def test_donated_buffers_exist(number: int, index: tuple[int, ...]) -> None:
    broken = attrs.evolve(parsed(module(_ALIASED)), buffer_donor=((number, index),))
    assert "which is not there" in fault(broken)


def test_a_buffer_is_donated_or_aliased() -> None:
    broken = attrs.evolve(
        parsed(module(_ALIASED)), buffer_donor=((0, ()),), input_output_alias=(ir.Alias((0,), 0, ()),)
    )
    assert "gives to an output already" in fault(broken)


def test_a_channel_that_the_start_lacks_is_an_error_where_strict() -> None:
    body = "t = token[] after-all()\nr = (f32[2], u32[], token[]) recv(t)\n"
    text = module(body + "ROOT d = (f32[2], token[]) recv-done(r), channel_id=1")
    with pytest.raises(RuntimeError, match="INVALID_ARGUMENT"):
        oracle.parse(text)
    verify(parse(text))
    with pytest.raises(VerificationError, match="channel_id is 1, but that of its start 'r' is None"):
        verify(parse(text), strict=True)


GEMM = json.dumps(
    {
        "alpha_real": 1,
        "beta": 0,
        "dot_dimension_numbers": {"lhs_contracting_dimensions": ["1"], "rhs_contracting_dimensions": ["0"]},
    }
)
LOWER = '"{uplo = 76 : ui8}"'
"""The attribute of a LAPACK call: the letter L."""


def _gemm(declared: str, rhs: str = "f32[3,4]", config: str = GEMM) -> str:
    call = f'{declared} custom-call(x, y), custom_call_target="__cublas$gemm", backend_config={config}'
    return op(call, x="f32[2,3]", y=rhs)


def _call(target: str, declared: str, *operands: str, config: str | None = None) -> str:
    named = {f"x{number}": shape for number, shape in enumerate(operands)}
    configured = "" if config is None else f", backend_config={config}"
    return op(f'{declared} custom-call({", ".join(named)}), custom_call_target="{target}"{configured}', **named)


def test_a_fault_names_the_instruction_the_target_and_both_shapes() -> None:
    text = _gemm("(f32[2,5], s8[8])")
    line = text[: text.index("custom-call")].count("\n") + 1
    message = fault(text)
    assert f"dump.txt:{line}:" in message
    assert "instruction 'root': custom call \"__cublas$gemm\" is declared (f32[2,5], s8[8])" in message
    assert message.endswith("but its operands give (f32[2,4], s8[8])")


def test_a_well_formed_call_verifies() -> None:
    assert verify(parsed(_gemm("(bf16[2,4]{0,1}, s8[8])"))) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_gemm("f32[2,4]", rhs="f32[7,4]"), "contract"),
        (_gemm("f32[]"), "its operands give f32[2,4]"),
        (_gemm("f32[2,4]", config=GEMM.replace('["0"]', '["5"]')), "5"),
        (_gemm("token[]"), "array"),
        (_call("Sharding", "f32[4]", "f32[2]"), "its operands give f32[2]"),
        (_call("Sharding", "bf16[2]", "f32[2]"), "its operands give f32[2]"),
        (_call("Sharding", "f32[2]", "f32[2]", "f32[2]"), "it takes 1 operand, but has 2"),
        (_call("Qr", "(f32[4,3], f32[7])", "f32[4,3]"), "its operands give (f32[4,3], f32[3])"),
        (_call("Qr", "(f32[4,3], f32[3])", "f32[4]"), "Qr"),
        (_call("PadToStatic", "(f32[4], s32[], s32[])", "f32[<=4]"), "its operands give (f32[4], s32[])"),
        (_call("X64Combine", "s64[4]", "s32[4]", "s32[5]"), "same dimensions"),
        (_call("SliceToDynamic", "f32[<=4]", "f32[4]"), "extents"),
        (_call("cu_threefry2x32", "(u32[4], u32[4])", "u32[4]", "u32[4]"), "operands"),
        (_call("lapack_spotrf_ffi", "(f32[3,3], s32[2])", "f32[3,3]", config=LOWER), "info"),
        (_call("lapack_spotrf_ffi", "(f32[3,3], s32[])", config=LOWER), "1 operands"),
    ],
)
def test_ill_formed_calls_are_refused_before_anything_runs(text: str, message: str) -> None:
    module = parsed(text)
    inputs = hloexec.random_inputs(module, verify=False)
    with pytest.raises(VerificationError, match="custom call") as caught:
        hloexec.run(module, *inputs)
    assert message in caught.value.message
    assert f'custom call "{module.entry.root.attributes.custom_call_target}" is declared' in caught.value.message


def test_commands_refuse_an_ill_formed_call(tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "module.hlo"
    path.write_text(_gemm("f32[9]"))
    for command in ("run", "info"):
        assert main([command, str(path)]) == 2
        assert (
            'custom call "__cublas$gemm" is declared f32[9], but its operands give f32[2,4]' in capsys.readouterr().err
        )


def test_a_call_that_cannot_run_is_not_judged() -> None:
    """A dump is readable whether or not hloexec knows a library's ways."""
    assert verify(parsed(_call("X64SplitLow", "bf16[7]", "f64[4]"))) == []
    assert verify(parsed(_gemm("f32[9]", config=GEMM.replace('"beta"', '"epilogue": "NEW", "beta"')))) == []
    assert verify(parsed(_call("no_such_library", "f32[9]", "f32[2]"))) == []


def test_a_users_function_is_not_held_to_the_rule_that_it_replaces() -> None:
    register_custom_call("Sharding", lambda x: np.concatenate([x, x]))
    try:
        assert hloexec.run(parsed(_call("Sharding", "f32[4]", "f32[2]")), np.ones(2, np.float32)).shape == (4,)
    finally:
        unregister_custom_call("Sharding")


SHAPES = "f32[] f32[0] s32[2,2] c64[3,1,2] token[] (f32[2]) () f32[<=2] u8[4] pred[1,1,1,1]".split()
CONFIGS = {"__cublas$gemm": GEMM, "__cublas$lt$matmul": GEMM, "lapack_spotrf_ffi": LOWER}


def test_no_shape_makes_a_rule_fail_with_anything_but_a_fault() -> None:
    from hloexec.ops.registry import CUSTOM_CALLS

    generator = np.random.default_rng(0)
    for target, entry in CUSTOM_CALLS.items():
        most = entry.maximum_operands
        for _ in range(examples(6)):
            count = generator.integers(entry.minimum_operands, (6 if most is None else most) + 1)
            operands = [SHAPES[i] for i in generator.integers(0, len(SHAPES), count)]
            declared = SHAPES[generator.integers(0, len(SHAPES))]
            try:
                verify(parsed(_call(target, declared, *operands, config=CONFIGS.get(target))))
            except HloError as error:
                assert isinstance(error, VerificationError), (target, operands, error)


def test_an_output_can_have_the_buffer_of_a_parameter_that_tiles_pad_to_its_size() -> None:
    text = """HloModule m, input_output_alias={{ {{}}: (0, {{}}, may-alias) }}

ENTRY main {{
  x = f32[4096]{{0:T(1024)}} parameter(0)
  ROOT r = f32[12,256]{layout} bitcast(x)
}}
"""
    verify(parse(text.format(layout="{1,0:T(8,128)}")))
    with pytest.raises(VerificationError, match="differ in size"):
        verify(parse(text.format(layout="{1,0}")))
