"""Texts that XLA rejects only because it does not know something, as a future XLA may write.

The default mode keeps what it does not know.
"""

from __future__ import annotations

from tests.text.building import ADD, module, op

_F2 = "f32[2]{0}"


def _unary(text: str) -> str:
    return op(text, a=_F2)


def _binary(text: str, computations: str = "") -> str:
    return op(text, computations, a=_F2, b=_F2)


def _header(attributes: str) -> str:
    return module("ROOT a = f32[2] parameter(0)", "", f", {attributes}")


def _carries(attributes: str) -> str:
    return _unary(f"f32[2] copy(a), {attributes}")


def _constant(text: str) -> str:
    return module(f"ROOT c = {text}")


UNKNOWN: dict[str, str] = {
    "opcode": _unary("f32[2] §transmogrify(a)"),
    "opcode with attributes": _unary('f32[2] §transmogrify(a, a), way={1,2}, how="x", metadata={op_name="n"}'),
    "opcode without operands": op("f32[2] §transmogrify()"),
    "opcode asynchronous": _unary("((f32[2]), f32[2]) §transmogrify-start(a)"),
    "opcode of something else": _unary('f32[2] §transmogrify(3 : {a [b]}, ")"), x=y'),
    "attribute with a word": _carries("§unheard_of=word"),
    "attribute with a number": _carries("§unheard_of=12"),
    "attribute with a string": _carries('§unheard_of="a, b)"'),
    "attribute with braces": _carries('§unheard_of={a={1,2}, b="}"}'),
    "attribute with brackets": _carries("§unheard_of=[2,2]<=[4]T(1,0)"),
    "attribute with parentheses": _carries("§unheard_of=(a, b)"),
    "attribute with a shape": _carries("§unheard_of=f32[2,3]{1,0:T(8,128)}"),
    "attribute with a pattern": _carries("§unheard_of=1x2_3->4x5"),
    "attribute between known ones": op(
        'f32[2,2] broadcast(a), §unheard_of=word, dimensions={0}, metadata={op_name="n"}', a=_F2
    ),
    "attribute of a parameter": module("ROOT a = f32[2] parameter(0), §unheard_of=1"),
    "attribute of a constant": _constant("f32[] constant(1), §unheard_of=1"),
    "attribute of another opcode": _unary("f32[2] negate(a), §dimensions={0}"),
    "header field": _header("§unheard_of=word"),
    "header field with braces": _header("§unheard_of={ {0}: (1, {}) }, is_scheduled=true"),
    "header field before others": _header("§unheard_of=1, replica_count=2"),
    "metadata field": _carries('metadata={op_name="n" §unheard_of="x"}'),
    "metadata field with braces": _carries("metadata={§unheard_of={1,2}}"),
    "metadata fields without commas": _carries('metadata={§unheard_of={1,2} op_name="n"}'),
    "direction": _binary("pred[2] compare(a, b), direction=§XX"),
    "direction in lower case": _binary("pred[2] compare(a, b), direction=§eq"),
    "comparison type in lower case": _binary("pred[2] compare(a, b), direction=LT, type=§float"),
    "fft type in lower case": op("c64[2] fft(a), fft_type=§fft, fft_length={2}", a="c64[2]"),
    "comparison type": _binary("pred[2] compare(a, b), direction=EQ, type=§PARTIAL"),
    "fusion kind": _binary("f32[] fusion(a, b), kind=§kOdd, calls=add_f32", ADD),
    "fft type": op("c64[2] fft(a), fft_type=§DCT, fft_length={2}", a="c64[2]"),
    "distribution": op("f32[8] rng(a, b), distribution=§rng_odd", a="f32[]", b="f32[]"),
    "random algorithm": op("(u64[2], u32[8]) rng-bit-generator(a), algorithm=§rng_odd", a="u64[2]"),
    "transposition": op("f32[2,2] triangular-solve(a, b), transpose_a=§ODD", a="f32[2,2]", b="f32[2,2]"),
    "precision": _binary("f32[] dot(a, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}, operand_precision={§odd}"),
    "precision beside another": _binary(
        "f32[] dot(a, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}, operand_precision={high,§odd}"
    ),
    "dot algorithm": _binary("f32[] dot(a, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}, algorithm=§dot_odd"),
    "padding type": _unary('f32[2] custom-call(a), custom_call_target="x", padding_type=§PADDING_ODD'),
    "schedule": _unary('f32[2] custom-call(a), custom_call_target="x", schedule=§SCHEDULE_ODD'),
    "API version": _unary('f32[2] custom-call(a), custom_call_target="x", api_version=§API_VERSION_ODD'),
    "API version unspecified": _unary(
        'f32[2] §custom-call(a), custom_call_target="x", api_version=§API_VERSION_UNSPECIFIED§'
    ),
    "convolution kind": op(
        "f32[2,8] convolution(a, k), dim_labels=bf_io->bf, convolution_kind=§odd", a="f32[2,4]", k="f32[4,8]"
    ),
    "result accuracy mode": _unary("f32[2] log(a), result_accuracy={mode=§odd}"),
    "collective mode": op("f32[2] all-reduce(a), mode=§odd, to_apply=add_f32", ADD, a=_F2),
    "kind of alias": _header("input_output_alias={ {}: (0, {}, §never-alias§) }"),
}  # fmt: skip
