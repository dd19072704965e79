"""Under the `xla-cpu` policy jax.random draws the same bits on hloexec as on XLA:CPU, transformations and all."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hloexec
from tests.drawing import examples

xla: Any = pytest.importorskip("conformance.xla")
jax: Any = pytest.importorskip("jax")

jnp, random = jax.numpy, jax.random

pytestmark = pytest.mark.fused_multiply_add

DRAWS = {
    "normal": lambda shape: lambda key: random.normal(key, shape),
    "uniform": lambda shape: lambda key: random.uniform(key, shape, minval=-3.3, maxval=7.1),
    "uniform_below_1": lambda shape: lambda key: random.uniform(key, shape, minval=0.1, maxval=0.7),
    "truncated_normal": lambda shape: lambda key: random.truncated_normal(key, -1.0, 2.0, shape),
    "exponential": lambda shape: lambda key: random.exponential(key, shape),
    "gumbel": lambda shape: lambda key: random.gumbel(key, shape),
    "laplace": lambda shape: lambda key: random.laplace(key, shape),
    "logistic": lambda shape: lambda key: random.logistic(key, shape),
    "categorical": lambda shape: lambda key: random.categorical(key, jnp.log(jnp.arange(1.0, 9.0)), shape=shape),
}


def _both(function: Any, kind: str, seed: int) -> tuple[Any, Any]:
    key = random.key(seed, impl=kind)
    lowered = jax.jit(function).lower(key)
    expected = np.asarray(lowered.compile()(key))
    return hloexec.run(hloexec.from_jax(lowered), np.asarray(random.key_data(key)), numerics="xla-cpu"), expected


_SHAPES = st.one_of(
    st.lists(st.integers(1, 12), max_size=3).map(tuple),
    st.sampled_from([(16,), (63,), (65,), (40, 25), (1003,), (128, 127), (100_003,)]),
)
_SEEDS = st.integers(0, 2**31 - 1)


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("name", ["normal", "uniform"])
@settings(max_examples=examples(10), deadline=None)
@given(shape=_SHAPES, seed=_SEEDS)
def test_draws_of_any_shape_have_the_bits_of_xla(name: str, kind: str, shape: tuple[int, ...], seed: int) -> None:
    actual, expected = _both(DRAWS[name](shape), kind, seed)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert actual.tobytes() == expected.tobytes()


@pytest.mark.slow_cases("normal-threefry2x32", "gumbel-threefry2x32", "logistic-rbg")
@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("name", DRAWS)
def test_transformed_draws_have_the_bits_of_xla(name: str, kind: str) -> None:
    actual, expected = _both(DRAWS[name]((123, 81)), kind, 7)
    if name == "logistic" and xla.jaxlib_version() >= (0, 11):
        # jaxlib 0.12 computes it otherwise: log(u) - log(1 - u), with both logarithms within 6 ULP.
        logarithms = [np.logaddexp(np.float32(0), sign * expected) for sign in (-1, 1)]
        bound = 12 * sum(np.spacing(np.abs(value), dtype=np.float32) for value in logarithms)
        assert (np.abs(actual.astype(np.float64) - expected) <= bound).all()
        return
    assert actual.tobytes() == expected.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
def test_draws_outside_of_jit_have_the_bits_of_xla(kind: str) -> None:
    """JAX compiles one function of its library at a time; hloexec runs the whole."""
    key = random.key(99, impl=kind)
    function = DRAWS["normal"]((1003,))
    actual, _ = _both(function, kind, 99)
    assert actual.tobytes() == np.asarray(function(key)).tobytes()


@pytest.mark.slow_cases("normal", "truncated_normal", "gumbel")
@pytest.mark.parametrize("name", "normal uniform truncated_normal gumbel".split())
def test_optimized_draws_have_the_bits_of_xla(name: str) -> None:
    """What XLA:CPU makes of the program, with constants it has merged and fusions it has chosen, is the same again."""
    key = random.key(5)
    function = DRAWS[name]((999,))
    compiled = jax.jit(lambda key: 0.3 + 1.7 * function(key)).lower(key).compile()
    (module,) = compiled.runtime_executable().hlo_modules()
    actual = hloexec.run(hloexec.parse(module.to_string()), np.asarray(random.key_data(key)), numerics="xla-cpu")
    assert actual.tobytes() == np.asarray(compiled(key)).tobytes()
