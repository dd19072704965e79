"""Custom calls that are all in the computation they call: host offloading, and Triton's fusions of 2023."""

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.errors import HloError, UnsupportedError

CALL = """HloModule m
called {
  p = f32[4] parameter(0)
  q = f32[4] parameter(1)
  ROOT r = f32[4] subtract(p, q)
}, execution_thread="host"
ENTRY e {
  a = f32[4] parameter(0)
  b = f32[4] parameter(1)
  ROOT c = f32[4] custom-call(b, a), custom_call_target="TARGET", WHAT
}"""
A, B = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32)


@pytest.mark.parametrize("target", "HostExecute __triton __triton_gemm __triton_softmax".split())
@pytest.mark.parametrize("what", ["called_computations={called}", "to_apply=called"])
def test_the_computation_is_called(target: str, what: str) -> None:
    module = hloexec.parse(CALL.replace("TARGET", target).replace("WHAT", what))
    for planner in (True, False):
        assert np.array_equal(hloexec.run(module, A, B, planner=planner), B - A)  # type: ignore[arg-type]
    assert hloexec.run(module, A, B, numerics="exact").tolist() == (B - A).tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("target", "what", "message"),
    [
        ("HostExecute", 'backend_config="x"', "runs a program on the host that the text does not hold"),
        ("HostExecute", "called_computations={called, called}", "calls 2 computations"),
        ("__triton", 'backend_config="x"', "calls no computations"),
        ("__xla_other", "called_computations={called}", '"__xla_other"'),
    ],
)
def test_what_calls_no_one_computation_is_refused_by_name(target: str, what: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        hloexec.run(hloexec.parse(CALL.replace("TARGET", target).replace("WHAT", what)), A, B)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("custom-call(b, a)", "custom-call(b)"),
        ("custom-call(b, a)", "custom-call(b, a, a)"),
        ("ROOT c = f32[4]", "ROOT c = f32[5]"),
        ("ROOT c = f32[4]", "ROOT c = s32[4]"),
        ("q = f32[4] parameter(1)\n  ROOT r = f32[4] subtract(p, q)", "ROOT r = f32[4] negate(p)"),
    ],
)
def test_a_call_that_does_not_fit_its_computation_is_refused(text: str, other: str) -> None:
    module = CALL.replace("TARGET", "HostExecute").replace("WHAT", "called_computations={called}")
    with pytest.raises(HloError, match="called"):
        hloexec.run(hloexec.parse(module.replace(text, other)), A, B)


def test_a_host_computation_in_an_asynchronous_pair_runs() -> None:
    text = """HloModule m
host_computation {
  p = s32[3] parameter(0)
  ROOT r = s32[3] multiply(p, p)
}, execution_thread="host"
ENTRY e {
  a = s32[3] parameter(0)
  s = ((s32[3]), s32[3], u32[]) custom-call-start(a), async_execution_thread="host",
    custom_call_target="HostExecute", called_computations={host_computation}
  ROOT d = s32[3] custom-call-done(s)
}"""
    assert hloexec.run(hloexec.parse(text), np.array([1, -2, 3])).tolist() == [1, 4, 9]  # type: ignore[union-attr]


def test_a_triton_gemm_of_two_types_converts_as_its_text_says() -> None:
    text = """HloModule m
triton_dot {
  p = s8[2,4] parameter(0)
  q = bf16[4,3] parameter(1)
  c = bf16[2,4] convert(p)
  ROOT r = bf16[2,3] dot(c, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
ENTRY e {
  a = s8[2,4] parameter(0)
  b = bf16[4,3] parameter(1)
  c = bf16[2,3] custom-call(a, b), custom_call_target="__triton", called_computations={triton_dot},
    backend_config="{\\"block_m\\":\\"64\\"}"
  ROOT t = bf16[3,2] transpose(c), dimensions={1,0}
}"""
    a = np.arange(8, dtype=np.int8).reshape(2, 4)
    b = np.arange(12).reshape(4, 3).astype(ml_dtypes.bfloat16)
    exact = (a.astype(np.int64) @ np.arange(12).reshape(4, 3)).T.astype(ml_dtypes.bfloat16)  # rounded once
    assert np.array_equal(hloexec.run(hloexec.parse(text), a, b), exact)  # type: ignore[arg-type]
