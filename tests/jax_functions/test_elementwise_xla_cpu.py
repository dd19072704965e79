"""Under the `xla-cpu` policy everyday elementwise functions have the bits of XLA:CPU, optimized or not."""

from inspect import signature
from typing import Any

import numpy as np
import pytest

import hloexec

pytest.importorskip("conformance.xla")
jax: Any = pytest.importorskip("jax")
jnp = jax.numpy

pytestmark = pytest.mark.fused_multiply_add

_FUNCTIONS = {
    "adam_moment": lambda m, g: m * 0.9 + g * 0.1,
    "erf_inv": lambda x: jax.lax.erf_inv(jnp.tanh(x)),
    "gelu": lambda x: jax.nn.gelu(x),
    "gelu_erf": lambda x: jax.nn.gelu(x, approximate=False),
    "gradient": lambda x: jax.vmap(jax.grad(lambda x: jnp.tanh(x) * jnp.exp(-x * x)))(x),
    "interpolation": lambda a, b, t: a + (b - a) * t,
    "logaddexp": lambda a, b: jnp.logaddexp(a, b),
    "lstm_cell": lambda f, c, i, g: jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g),
    "polynomial": lambda x: jnp.polyval(jnp.array([1.5, 2.3, 0.7, 0.1], np.float32), x),
    "rotation": lambda x, cosine, y, sine: x * cosine + y * sine,
    "silu": lambda x, y, z: jax.nn.silu(x) * y + z,
    "softplus": lambda x: jax.nn.softplus(x),
    "squared_error": lambda a, b, c: (a - b) ** 2 * 0.3 + c,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("size", [5, 1003, 4096])
@pytest.mark.parametrize("name", _FUNCTIONS)
def test_everyday_functions_have_the_bits_of_xla(name: str, size: int) -> None:
    function = _FUNCTIONS[name]
    generator = np.random.default_rng(size)
    operands = [generator.normal(size=size).astype(np.float32) for _ in signature(function).parameters]
    lowered = jax.jit(function).lower(*operands)
    compiled = lowered.compile()
    expected = np.asarray(compiled(*operands))
    (optimized,) = compiled.runtime_executable().hlo_modules()
    for module in (hloexec.from_jax(lowered), hloexec.parse(optimized.to_string())):
        actual = hloexec.run(module, *operands, numerics="xla-cpu")
        assert actual.dtype == expected.dtype
        assert actual.tobytes() == expected.tobytes()
