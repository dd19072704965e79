"""Texts that XLA rejects only because it does not know something, as a future XLA may write.

The default mode keeps what it does not know.
"""

from tests.text.building import ADD, F2, binary, carries, constant, module, op, unary, with_header

UNKNOWN: dict[str, str] = {
    "opcode": unary("f32[2] §transmogrify(a)"),
    "opcode with attributes": unary('f32[2] §transmogrify(a, a), way={1,2}, how="x", metadata={op_name="n"}'),
    "opcode without operands": op("f32[2] §transmogrify()"),
    "opcode asynchronous": unary("((f32[2]), f32[2]) §transmogrify-start(a)"),
    "opcode of something else": unary('f32[2] §transmogrify(3 : {a [b]}, ")"), x=y'),
    "attribute with a word": carries("§unheard_of=word"),
    "attribute with a number": carries("§unheard_of=12"),
    "attribute with a string": carries('§unheard_of="a, b)"'),
    "attribute with braces": carries('§unheard_of={a={1,2}, b="}"}'),
    "attribute with brackets": carries("§unheard_of=[2,2]<=[4]T(1,0)"),
    "attribute with parentheses": carries("§unheard_of=(a, b)"),
    "attribute with a shape": carries("§unheard_of=f32[2,3]{1,0:T(8,128)}"),
    "attribute with a pattern": carries("§unheard_of=1x2_3->4x5"),
    "attribute between known ones": op(
        'f32[2,2] broadcast(a), §unheard_of=word, dimensions={0}, metadata={op_name="n"}', a=F2
    ),
    "attribute of a parameter": module("ROOT a = f32[2] parameter(0), §unheard_of=1"),
    "attribute of a constant": constant("f32[] constant(1), §unheard_of=1"),
    "attribute of another opcode": unary("f32[2] negate(a), §dimensions={0}"),
    "header field": with_header("§unheard_of=word"),
    "header field with braces": with_header("§unheard_of={ {0}: (1, {}) }, is_scheduled=true"),
    "header field before others": with_header("§unheard_of=1, replica_count=2"),
    "metadata field": carries('metadata={op_name="n" §unheard_of="x"}'),
    "metadata field with braces": carries("metadata={§unheard_of={1,2}}"),
    "metadata fields without commas": carries('metadata={§unheard_of={1,2} op_name="n"}'),
    "direction": binary("pred[2] compare(a, b), direction=§XX"),
    "direction in lower case": binary("pred[2] compare(a, b), direction=§eq"),
    "comparison type in lower case": binary("pred[2] compare(a, b), direction=LT, type=§float"),
    "fft type in lower case": op("c64[2] fft(a), fft_type=§fft, fft_length={2}", a="c64[2]"),
    "comparison type": binary("pred[2] compare(a, b), direction=EQ, type=§PARTIAL"),
    "fusion kind": binary("f32[] fusion(a, b), kind=§kOdd, calls=add_f32", ADD),
    "fft type": op("c64[2] fft(a), fft_type=§DCT, fft_length={2}", a="c64[2]"),
    "distribution": op("f32[8] rng(a, b), distribution=§rng_odd", a="f32[]", b="f32[]"),
    "random algorithm": op("(u64[2], u32[8]) rng-bit-generator(a), algorithm=§rng_odd", a="u64[2]"),
    "transposition": op("f32[2,2] triangular-solve(a, b), transpose_a=§ODD", a="f32[2,2]", b="f32[2,2]"),
    "precision": binary("f32[] dot(a, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}, operand_precision={§odd}"),
    "precision beside another": binary(
        "f32[] dot(a, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}, operand_precision={high,§odd}"
    ),
    "dot algorithm": binary("f32[] dot(a, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}, algorithm=§dot_odd"),
    "padding type": unary('f32[2] custom-call(a), custom_call_target="x", padding_type=§PADDING_ODD'),
    "schedule": unary('f32[2] custom-call(a), custom_call_target="x", schedule=§SCHEDULE_ODD'),
    "API version": unary('f32[2] custom-call(a), custom_call_target="x", api_version=§API_VERSION_ODD'),
    "API version unspecified": unary(
        'f32[2] §custom-call(a), custom_call_target="x", api_version=§API_VERSION_UNSPECIFIED§'
    ),
    "convolution kind": op(
        "f32[2,8] convolution(a, k), dim_labels=bf_io->bf, convolution_kind=§odd", a="f32[2,4]", k="f32[4,8]"
    ),
    "result accuracy mode": unary("f32[2] log(a), result_accuracy={mode=§odd}"),
    "collective mode": op("f32[2] all-reduce(a), mode=§odd, to_apply=add_f32", ADD, a=F2),
    "kind of alias": with_header("input_output_alias={ {}: (0, {}, §never-alias§) }"),
}  # fmt: skip
