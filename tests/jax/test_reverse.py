"""Modules as functions of JAX: XLA computes what hloexec computes."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.errors import UnsupportedError

jax = pytest.importorskip("jax")
hx = pytest.importorskip("hloexec.jax")
jnp = jax.numpy

FUSED = """HloModule fused, is_scheduled=true

fused_add {
  a = f32[2,3]{1,0} parameter(0)
  b = f32[3,2]{0,1} bitcast(a)
  ROOT c = f32[3,2]{0,1} add(b, b)
}

ENTRY main {
  x = f32[2,3]{1,0} parameter(0)
  ROOT y = f32[3,2]{0,1} fusion(x), kind=kLoop, calls=fused_add
}
"""


def test_a_module_is_a_function_within_others() -> None:
    module = hloexec.from_jax(lambda a, b: (a @ b, a + 1), jnp.ones((2, 2)), jnp.ones((2, 2)))
    function = module.to_jax()
    product, more = jax.jit(lambda x: function(x, 2 * x))(jnp.ones((2, 2)))
    assert_array_equal(product, np.full((2, 2), 4))
    assert_array_equal(more, np.full((2, 2), 2))


def test_a_result_is_an_array_or_a_tuple_as_the_module_has_it() -> None:
    tupled = "HloModule m\n\nENTRY e {\n  p = f32[2] parameter(0)\n  ROOT t = (f32[2]) tuple(p)\n}\n"
    assert isinstance(hloexec.parse(tupled).to_jax()(jnp.ones(2)), tuple)
    assert (
        hloexec.from_jax(lambda a: -a, jnp.ones(2, jnp.bfloat16)).to_jax()(jnp.ones(2, jnp.bfloat16)).dtype
        == "bfloat16"
    )


def test_a_module_after_optimization_computes_the_same() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert_array_equal(hloexec.parse(FUSED).to_jax()(x), 2 * x.T)


def test_there_and_back_computes_the_same() -> None:
    module = hloexec.load("examples/rnn_scan.hlo")
    inputs = hloexec.random_inputs(module)
    again = hloexec.from_jax(module.to_jax(), *inputs)
    for ours, theirs in zip(hloexec.run(module, *inputs), hloexec.run(again, *inputs), strict=True):
        assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("parameter", "header", "reason"),
    [
        ("f32[2]", ", replica_count=4", "is for 4 devices"),
        ("f64[2]", "", "needs jax_enable_x64"),
        ("token[]", "", "takes and gives arrays"),
        ("(f32[2], f32[2])", "", "takes and gives arrays"),
        ("f32[<=2]", "", "takes and gives arrays"),
    ],
)
def test_what_cannot_be_a_function_is_refused_by_reason(parameter: str, header: str, reason: str) -> None:
    module = hloexec.parse(f"HloModule m{header}\n\nENTRY e {{\n  ROOT p = {parameter} parameter(0)\n}}\n")
    with pytest.raises(UnsupportedError, match=reason):
        module.to_jax()


def test_what_stablehlo_cannot_express_is_refused() -> None:
    call = '  ROOT c = f32[2]{0} custom-call(p), custom_call_target="__cublas$lt$unheard"'
    module = hloexec.parse(
        f"HloModule m, is_scheduled=true\n\nENTRY e {{\n  p = f32[2]{{0}} parameter(0)\n{call}\n}}\n"
    )
    with pytest.raises(UnsupportedError, match="%c"):
        module.to_jax()
