"""What library calls declare, against what their own rules infer."""

from __future__ import annotations

import json

import numpy as np
import pytest

import hloexec
from hloexec.cli import main
from hloexec.errors import HloError, VerificationError
from hloexec.language.verifier import verify
from hloexec.ops.library_calls.user_calls import register_custom_call, unregister_custom_call
from tests.drawing import examples
from tests.text.building import op
from tests.verifier.broken import fault, parsed

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


SHAPES = (
    "f32[]",
    "f32[0]",
    "s32[2,2]",
    "c64[3,1,2]",
    "token[]",
    "(f32[2])",
    "()",
    "f32[<=2]",
    "u8[4]",
    "pred[1,1,1,1]",
)
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
