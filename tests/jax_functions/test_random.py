"""jax.random draws the same bits on hloexec as on XLA, for every kind of key that runs on any backend.

Bits, integers, choices and permutations are equal bit for bit; so is `uniform`, where it only scales by powers of two.
Other samples are transformations of equal bits. Under `reference` they agree as far as functions do: XLA:CPU has a log1p
of its own, and contracts a multiplication and an addition to one rounding, where HLO says two. Under `xla-cpu`, which
does the same, they are equal, too: see `test_random_xla_cpu`.
"""

from typing import Any

import numpy as np
import pytest

import hloexec

pytest.importorskip("conformance.xla")
jax: Any = pytest.importorskip("jax")
jnp, random = jax.numpy, jax.random

KINDS = ("threefry2x32", "rbg", "unsafe_rbg")

SAME_BITS = {
    "bits": lambda key: random.bits(key, (3, 5)),
    "bits_u8": lambda key: random.bits(key, (7,), jnp.uint8),
    "bits_u16": lambda key: random.bits(key, (7,), jnp.uint16),
    "uniform": lambda key: random.uniform(key, (40, 25)),
    "uniform_range": lambda key: random.uniform(key, (999,), minval=-2.0, maxval=6.0),
    "uniform_bf16": lambda key: random.uniform(key, (9,), jnp.bfloat16),
    "uniform_f16": lambda key: random.uniform(key, (9,), jnp.float16),
    "randint": lambda key: random.randint(key, (999,), -5, 1000),
    "randint_s8": lambda key: random.randint(key, (9,), -100, 100, jnp.int8),
    "bernoulli": lambda key: random.bernoulli(key, 0.3, (20,)),
    "permutation": lambda key: random.permutation(key, 170),
    "permutation_rows": lambda key: random.permutation(key, jnp.arange(12).reshape(3, 4), axis=1, independent=True),
    "choice": lambda key: random.choice(key, 10, (4,), replace=False),
    "rademacher": lambda key: random.rademacher(key, (9,)),
    "split": lambda key: random.key_data(random.split(key, 3)),
    "fold_in": lambda key: random.key_data(random.fold_in(key, 7)),
    "categorical": lambda key: random.categorical(key, jnp.log(jnp.arange(1.0, 9.0)), shape=(400,)),
    "geometric": lambda key: random.geometric(key, 0.3, (999,)),
    "poisson": lambda key: random.poisson(key, 3.0, (99,)),
    "normal_bf16": lambda key: random.normal(key, (999,), jnp.bfloat16),
}
ONLY_THREEFRY = {"poisson"}

# How many units of the last place, of the sample or of 1 where the sample is smaller: parts of that size are added up.
CLOSE = {
    "normal": (lambda key: random.normal(key, (40, 25)), 4),
    "uniform_odd_range": (lambda key: random.uniform(key, (999,), minval=-3.3, maxval=7.1), 4),
    "truncated_normal": (lambda key: random.truncated_normal(key, -1.0, 2.0, (999,)), 16),
    "exponential": (lambda key: random.exponential(key, (999,)), 4),
    "gumbel": (lambda key: random.gumbel(key, (999,)), 16),
    "laplace": (lambda key: random.laplace(key, (999,)), 16),
    "logistic": (lambda key: random.logistic(key, (999,)), 16),
    "cauchy": (lambda key: random.cauchy(key, (999,)), 32),
    "gamma": (lambda key: random.gamma(key, 2.0, (5,)), 64),
    "beta": (lambda key: random.beta(key, 2.0, 3.0, (5,)), 64),
    "dirichlet": (lambda key: random.dirichlet(key, jnp.ones(3), (2,)), 64),
    "ball": (lambda key: random.ball(key, 3, shape=(2,)), 64),
    "rayleigh": (lambda key: random.rayleigh(key, jnp.ones(5)), 16),
    "weibull": (lambda key: random.weibull_min(key, 2.0, 1.5, (5,)), 16),
    "maxwell": (lambda key: random.maxwell(key, (5,)), 16),
    "pareto": (lambda key: random.pareto(key, 2.0, (5,)), 16),
}


def _both(function: Any, kind: str) -> tuple[Any, Any]:
    key = random.key(12345, impl=kind)
    lowered = jax.jit(function).lower(key)
    expected = np.asarray(lowered.compile()(key))
    return hloexec.run(hloexec.from_jax(lowered), np.asarray(random.key_data(key))), expected


@pytest.mark.slow_cases("bits-threefry2x32", "categorical-threefry2x32")
@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in SAME_BITS for kind in KINDS if kind == "threefry2x32" or name not in ONLY_THREEFRY],
)
def test_draws_have_the_bits_of_xla(name: str, kind: str) -> None:
    actual, expected = _both(SAME_BITS[name], kind)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert actual.tobytes() == expected.tobytes(), f"{actual}\nXLA:\n{expected}"


@pytest.mark.slow_cases("dirichlet-threefry2x32")
@pytest.mark.sampled(10)
@pytest.mark.parametrize(("name", "kind"), [*((name, "threefry2x32") for name in CLOSE), ("normal", "rbg")])
def test_transformed_draws_agree(name: str, kind: str) -> None:
    function, units = CLOSE[name]
    actual, expected = _both(function, kind)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    unit = float(np.finfo(np.float32).eps) * np.maximum(1, np.abs(expected))
    assert float((np.abs(actual - expected) / unit).max()) <= units
