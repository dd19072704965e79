"""JSON of protocol buffers says the same in several ways: names of fields, numbers and enumerators each have two.

Values are those of the call whose config is spelled as XLA prints it now, which other tests compare with XLA:CPU. The
numbers of enumerators are those in the protocol buffers that XLA writes.
"""

import json
import re
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import hloexec
from conformance import xla
from hloexec.errors import UnsupportedError
from hloexec.ops.contraction.dot import DOT_ALGORITHMS
from hloexec.ops.library_calls.configs import checked_attributes, enumerator, ffi_attributes, json_object
from hloexec.ops.library_calls.cublas.matmul import gemm_config
from tests.text.building import op

_CONVOLUTION = (
    "(f32[1,3,6,6]{{3,2,1,0}}, u8[0]{{0}}) custom-call(x, k), window={{size=1x1}}, dim_labels=bf01_01io->bf01, "
    'custom_call_target="__cudnn$convForward", backend_config="{}"'
)
_GEMM = {
    "alpha_real": 1,
    "beta": 0,
    "dot_dimension_numbers": {"lhs_contracting_dimensions": ["1"], "rhs_contracting_dimensions": ["0"]},
    "precision_config": {"operand_precision": ["HIGHEST", "DEFAULT"], "algorithm": "ALG_DOT_BF16_BF16_F32_X3"},
    "epilogue": "BIAS_RELU",
    "selected_algorithm": "-1",
}


def _in_camel_case(config: object) -> object:
    if not isinstance(config, dict):
        return config
    return {re.sub("_(.)", lambda match: match[1].upper(), name): _in_camel_case(each) for name, each in config.items()}


def test_a_convolution_of_2020_runs() -> None:
    """Without `algorithm`, as XLA wrote it before it chose one."""
    found = []
    for config in ('{"tensorOpsEnabled":true,"convResultScale":1}', '{"conv_result_scale":1}'):
        body = _CONVOLUTION.format(config.replace('"', '\\"'))
        module = hloexec.parse(op(body, x="f32[1,4,6,6]{3,2,1,0}", k="f32[1,1,4,3]{1,0,2,3}"))
        x, k = np.arange(144, dtype=np.float32).reshape(1, 4, 6, 6), np.arange(12, dtype=np.float32).reshape(1, 1, 4, 3)
        found.append(hloexec.run(module, x, k)[0])
        assert_array_equal(found[-1], np.einsum("nchw,co->nohw", x, k[0, 0]))


@pytest.mark.parametrize("field", [None, "gemm_backend_config", "gemmBackendConfig"])
def test_fields_have_two_names(field: str | None) -> None:
    config = _in_camel_case(_GEMM)
    assert "alphaReal" in json.dumps(config)
    spelled = json.dumps(config if field is None else {"operationQueueId": "0", field: config})
    assert gemm_config(spelled) == gemm_config(json.dumps(_GEMM))


def test_enumerators_are_words_or_numbers() -> None:
    numbers = {"operand_precision": [2, "0"], "algorithm": 7}
    assert gemm_config(json.dumps(_GEMM | {"precision_config": numbers, "epilogue": 3})) == gemm_config(
        json.dumps(_GEMM)
    )
    assert gemm_config(json.dumps(_GEMM | {"epilogue": "7"})).epilogue.has_auxiliary
    assert enumerator(8, ["A", "B"]) == "8"
    with pytest.raises(UnsupportedError, match="epilogue '99'"):
        gemm_config(json.dumps(_GEMM | {"epilogue": 99}))


def test_a_triangular_solve_says_its_transposition_by_number() -> None:
    body = (
        '(f32[2,2], s8[0]) custom-call(a, b), custom_call_target="__cublas$triangularSolve", '
        'backend_config={{"leftSide":true,"lower":true,"transposeA":{}}}'
    )
    a, b = np.float32([[2, 0], [1, 4]]), np.float32([[2, 4], [5, 6]])
    for word, matrix in ((1, a), ('"TRANSPOSE"', a.T), (2, a.T)):
        module = hloexec.parse(op(body.format(word), a="f32[2,2]", b="f32[2,2]"))
        assert_array_equal(matrix @ hloexec.run(module, a, b)[0], b)


def test_a_field_that_is_given_in_both_spellings_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="gives alpha_real twice"):
        json_object('{"alpha_real": 1, "alphaReal": 2}')


def test_the_trip_count_of_a_loop_has_two_spellings() -> None:
    loop = (
        "HloModule m\nc { i = s32[] parameter(0)\n n = s32[] constant(5)\n ROOT l = pred[] compare(i, n), direction=LT }\n"
        "b { i = s32[] parameter(0)\n o = s32[] constant(1)\n ROOT s = s32[] add(i, o) }\n"
        'ENTRY e { z = s32[] constant(0)\n ROOT w = s32[] while(z), condition=c, body=b, backend_config={"%s":{"n":"5"}} }'
    )
    from hloexec.ops.costs import trip_count_of

    for name in ("known_trip_count", "knownTripCount"):
        assert trip_count_of(hloexec.parse(loop % name).entry.root) == 5


def test_algorithms_have_the_numbers_that_xla_writes() -> None:
    pytest.importorskip("jaxlib")
    for number, word in enumerate(DOT_ALGORITHMS[1:], 1):
        text = op(
            f"f32[] dot(a, b), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}, algorithm={word}",
            a="f32[2]",
            b="f32[2]",
        )
        # PrecisionConfig.algorithm is field 2 of field 51 of an instruction.
        found = xla.parse_hlo(text).as_serialized_hlo_module_proto()
        assert bytes([2 << 3, number]) in found.partition(bytes([0x9A, 0x03]))[2][:10]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, {}),
        ("", {}),
        ("{}", {}),
        ("{ }", {}),
        ("{uplo = 76 : ui8}", {"uplo": 76}),
        ("{left = true, transpose = false}", {"left": True, "transpose": False}),
        ("{high = 7 : i32, low = -1 : i64}", {"high": 7, "low": -1}),
        ("{recall = 9.500000e-01 : f32, one = 1.0}", {"recall": 0.95, "one": 1.0}),
        ('{"a b" = "x, {y} = \\" z", k = 3}', {"a b": 'x, {y} = \\" z', "k": 3}),
    ],
)
def test_attributes_are_read(text, expected):
    found = ffi_attributes(text)
    assert found == expected
    assert [type(value) for value in found.values()] == [type(value) for value in expected.values()]


@pytest.mark.parametrize(
    "text", ["uplo = 76", "{uplo}", "{uplo = }", "{uplo = 76", "{= 3}", "{a = [1]}", "{a = 1 b = 2}", "{a = 1, , b = 2}", "{a = 0x7FC00000 : f32}", "{" * 100_000]
)  # fmt: skip
def test_other_texts_are_refused(text):
    with pytest.raises(UnsupportedError, match="its backend_config"):
        ffi_attributes(text)


@given(st.text('{}=:," -.0123456789abtruefalsi8\\\n', max_size=40))
def test_whatever_the_text_nothing_else_is_raised(text):
    with suppress(UnsupportedError):
        ffi_attributes("{" + text + "}")


def test_each_attribute_must_be_there_known_and_permitted():
    permitted = {"mode": (1, 2)}
    assert checked_attributes("{mode = 2 : i8}", permitted) == {"mode": 2}
    for text, message in (("{}", "lacks"), ("{mode = 3}", "is 3"), ("{mode = 1, more = 2}", "more")):
        with pytest.raises(UnsupportedError, match=message):
            checked_attributes(text, permitted)
