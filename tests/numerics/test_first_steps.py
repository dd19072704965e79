"""Verdicts of first steps of Adam and of Lion: where a gradient is nearly 0, rounding decides the sign of the step."""

from functools import cache
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.analysis.numerics.comparison import Comparison

LR = 0.01


def step_of(kind: str, dtype: str, seed: int) -> tuple[str, list[Any], list[Any]]:
    """The text of a training step of a small network, its inputs, and what JAX makes of them."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def loss(weights: Any, x: Any, y: Any) -> Any:
        first, second = (each.astype(dtype) for each in weights)
        hidden = jnp.tanh(x.astype(dtype) @ first)
        return jnp.mean(((hidden @ second).astype("float32") - y) ** 2)

    def step(first: Any, second: Any, x: Any, y: Any) -> Any:
        gradients = jax.grad(loss)((first, second), x, y)
        if kind == "lion":
            return [w - LR * jnp.sign(0.1 * g) for w, g in zip((first, second), gradients, strict=True)] + [*gradients]
        means = [0.1 * g for g in gradients]
        squares = [0.001 * g * g for g in gradients]
        moved = [
            w - LR * (m / (1 - 0.9)) / (jnp.sqrt(v / (1 - 0.999)) + 1e-8)
            for w, m, v in zip((first, second), means, squares, strict=True)
        ]
        return [*moved, *means]

    draw = np.random.default_rng(seed)
    shapes = ((32, 64), (64, 32), (48, 32), (48, 32))
    inputs = [draw.standard_normal(shape).astype(np.float32) for shape in shapes]
    inputs[0] /= np.float32(6)
    inputs[1] /= np.float32(8)
    lowered = jax.jit(step).lower(*inputs)
    text = lowered.compiler_ir("hlo").as_hlo_text(True)
    return text, inputs, [np.array(leaf) for leaf in lowered.compile()(*inputs)]


cached = cache(step_of)


def against(case: tuple[str, list[Any], list[Any]], theirs: list[Any]) -> Comparison:
    parsed = hloexec.parse(case[0])
    return hloexec.compare(hloexec.run(parsed, *case[1]), tuple(theirs), module=parsed, inputs=case[1])


@pytest.mark.parametrize("seed", [1, 3])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("kind", ["adam", "lion"])
def test_a_right_first_step_is_not_different(kind: str, dtype: str, seed: int) -> None:
    case = cached(kind, dtype, seed)
    found = against(case, case[2])
    assert not found.different, str(found)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("kind", ["adam", "lion"])
def test_faults_in_a_first_step_are_different(kind: str, dtype: str) -> None:
    case = cached(kind, dtype, 1)
    first, second, *gradients = case[2]
    # The sign of lr, the bias correction, a part of a gradient, and one element that is none of the values.
    sure = np.unravel_index(np.abs(gradients[0]).argmax(), first.shape)
    one = first.copy()
    one[sure] += np.float32(3 * LR)
    flipped = first.copy()
    flipped[sure] = 2 * case[1][0][sure] - first[sure]
    scaled = case[1][0] + (first - case[1][0]) * np.float32(0.1 / np.sqrt(0.001))
    faults = {
        "sign": [2 * case[1][0] - first, second, *gradients],
        "bias correction": [scaled, second, *gradients],
        "gradient": [first, second, gradients[0] * np.float32(1.03), gradients[1]],
        "element": [one, second, *gradients],
        "flipped": [flipped, second, *gradients],
    }
    for name, theirs in faults.items():
        found = against(case, theirs)
        leaf = "2" if name == "gradient" else "0"
        assert leaf in [each.label for each in found.different], name
