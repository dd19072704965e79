"""JAX programs that lose their digits in ways that are known.

What is to blame in each was decided before `shadow` ran on it, and stands in the scope `culprit`. Programs that are
correct and look as if they were not are in `test_false_alarms`.
"""

from collections.abc import Callable
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np

from tests.drawing import normal

culprit = jax.named_scope("culprit")


@attrs.frozen
class Program:
    """A function, its arguments, and what `shadow` should say."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    kinds: tuple[str, ...]
    """The kinds of loss that are right; more than one where the words overlap."""
    survives: bool = True
    """Whether XLA:CPU leaves the culprit in the program."""


def lowered(program: Program) -> Any:
    """The jitted function, lowered with the program's arguments."""
    return jax.jit(program.function).lower(*program.arguments)


def naive_variance(x: Any) -> Any:
    mean, square = x.mean(-1), (x * x).mean(-1)
    with culprit:
        return square - mean * mean


def softmax_without_max(x: Any) -> Any:
    with culprit:
        e = jnp.exp(x)
    return e / e.sum(-1, keepdims=True)


def log_sum_exp(x: Any) -> Any:
    with culprit:
        e = jnp.exp(x)
    return jnp.log(e.sum(-1))


def kahan_undone(xs: Any) -> Any:
    """Kahan's sum after (s + y) − s − y has been simplified to 0."""

    def step(total: Any, x: Any) -> Any:
        with culprit:
            return total + x, None

    return jax.lax.scan(step, jnp.float32(1e8), xs)[0]


def running_sum(xs: Any) -> Any:
    def step(total: Any, x: Any) -> Any:
        with culprit:
            return total + x, None

    return jax.lax.scan(step, jnp.zeros((), jnp.bfloat16), xs)[0]


def smaller_root(a: Any, b: Any, c: Any) -> Any:
    root = jnp.sqrt(b * b - 4 * a * c)
    with culprit:
        top = root - b
    return top / (2 * a)


def one_minus_cosine(x: Any) -> Any:
    cosine = jnp.cos(x)
    with culprit:
        top = 1 - cosine
    return top / (x * x)


def exp_minus_one(x: Any) -> Any:
    e = jnp.exp(x)
    with culprit:
        top = e - 1
    return top / x


def lost_epsilon(x: Any) -> Any:
    """A norm of bf16 rows whose variance is E[x²] + ε − E[x]². In rows that are nearly constant, ε is all that is left;
    ε is less than half an ULP of E[x²], and what E[x²] itself is rounded by is far less than ε."""
    mean, square = x.mean(-1, keepdims=True), (x * x).mean(-1, keepdims=True)
    with culprit:
        square = square + jnp.bfloat16(5e-3)
    return (x - mean) * jax.lax.rsqrt(jnp.maximum(square - mean * mean, jnp.bfloat16(1e-6)))


def adam(parameters: Any, gradients: Any) -> Any:
    """300 steps with second moments in bf16."""

    def step(state: Any, gradient: Any) -> Any:
        p, first, second = state
        first = 0.9 * first + 0.1 * gradient
        square = gradient * gradient
        with culprit:
            second = second + (0.001 * (square - second.astype(jnp.float32))).astype(jnp.bfloat16)
        p = p - 1e-3 * first / (jnp.sqrt(second.astype(jnp.float32)) + 1e-8)
        return (p, first, second), None

    start = parameters, jnp.zeros_like(parameters), jnp.ones(parameters.shape, jnp.bfloat16)
    return jax.lax.scan(step, start, gradients)[0]


def masked_attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Attention in f16 whose mask is −1e9; a row is masked altogether."""
    scores = jnp.einsum("qd,kd->qk", q, k) / np.float16(q.shape[-1] ** 0.5)
    bias = jnp.where(mask, jnp.float32(0), jnp.float32(-1e9))
    with culprit:
        bias = bias.astype(jnp.float16)
    return jax.nn.softmax(scores + bias) @ v


def rotary(x: Any, positions: Any) -> Any:
    """Rotary embeddings whose angles are in bf16."""
    half = x.shape[-1] // 2
    frequencies = jnp.asarray(10000.0 ** (-np.arange(half) / half), jnp.bfloat16)
    with culprit:
        angles = positions.astype(jnp.bfloat16)[:, None] * frequencies
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    first, second = x[:, :half], x[:, half:]
    return jnp.concatenate([first * cosine - second * sine, first * sine + second * cosine], -1)


def train_step(parameters: Any, tokens: Any) -> Any:
    """A step of gradient descent of a decoder layer in bf16, whose norm has the naive variance, of rows with a mean
    of 4 and a variance of 1: E[x²] and E[x]² are about 16, where bf16 has steps of an eighth."""

    def norm(x: Any) -> Any:
        mean, square = x.mean(-1, keepdims=True), (x * x).mean(-1, keepdims=True)
        with culprit:
            variance = square - mean * mean
        return (x - mean) * jax.lax.rsqrt(jnp.maximum(variance, 0) + 1e-5)

    def loss(p: Any) -> Any:
        p = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), p)
        x = 8 * p["embedding"][tokens[:, :-1]] + jnp.bfloat16(4)
        y = norm(x)
        q, k, v = (y @ p[name] for name in "qkv")
        scores = jnp.einsum("bqd,bkd->bqk", q, k) * x.shape[-1] ** -0.5
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[1:], bool)), scores, -jnp.inf)
        x = x + jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), v) @ p["out"]
        x = x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]
        logits = (norm(x) @ p["embedding"].T).astype(jnp.float32)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1).mean()

    value, gradient = jax.value_and_grad(loss)(parameters)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradient)


def _decoder(width: int, words: int) -> dict[str, Any]:
    shapes = {
        "embedding": (words, width), "q": (width, width), "k": (width, width), "v": (width, width),
        "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width),
    }  # fmt: skip
    return {
        name: normal(*shape, seed=n) * np.float32(shape[0] ** -0.5) for n, (name, shape) in enumerate(shapes.items())
    }


def _mask(length: int) -> Any:
    mask = np.tril(np.ones((length, length), np.bool_))
    mask[0] = False
    return mask


def _rows(rows: int, width: int) -> Any:
    x = np.full((rows, width), 1.5, jnp.bfloat16)
    x[np.arange(rows), np.arange(rows)] = 1.5 + 2.0**-7
    return x


CULPRITS: dict[str, Program] = {
    "naive variance": Program(naive_variance, (1000 + normal(16, 256),), ("cancellation",)),
    "softmax without max": Program(softmax_without_max, (60 * normal(16, 64),), ("overflow",)),
    "log-sum-exp": Program(log_sum_exp, (np.float32(1000) + normal(8, 64),), ("overflow",)),
    "kahan undone": Program(kahan_undone, (np.abs(normal(500)),), ("lost updates",)),
    "bf16 running sum": Program(running_sum, (np.ones(1024, jnp.bfloat16),), ("lost updates",)),
    "quadratic formula": Program(
        smaller_root,
        (np.ones(64, np.float32), 1e3 + np.abs(normal(64)), np.abs(normal(64, seed=1))),
        ("cancellation",),
    ),
    "1 - cos x": Program(one_minus_cosine, (1e-3 * (1 + np.abs(normal(64))),), ("cancellation",)),
    "expm1 by exp": Program(exp_minus_one, (1e-4 * (1 + np.abs(normal(64))),), ("cancellation",)),
    "lost epsilon": Program(lost_epsilon, (_rows(16, 64),), ("absorption",)),
    "adam": Program(adam, (normal(32), normal(300, 32, seed=1) / 8), ("lost updates",)),
    "attention mask": Program(
        masked_attention, (*(normal(16, 8, seed=n, dtype=np.float16) for n in range(3)), _mask(16)), ("overflow",)
    ),
    "rotary": Program(rotary, (normal(8, 32, dtype=jnp.bfloat16), np.arange(100000, 100008)), ("rounding",)),
    "transformer": Program(
        train_step, (_decoder(32, 64), np.random.default_rng(0).integers(0, 64, (2, 17))), ("cancellation",)
    ),
}
"""By name."""


# What follows was held back until `shadow` was finished. The series was (1 − r⁸)/(1 − r) at first, of which both
# differences cancel alike.


def welford(xs: Any) -> Any:
    """Welford's variance with its state in bf16."""

    def step(state: Any, x: Any) -> Any:
        count, mean, squares = state
        count = count + 1
        distance = x - mean
        mean = mean + distance / count
        with culprit:
            squares = squares + distance * (x - mean)
        return (count, mean, squares), None

    zero = jnp.zeros((), jnp.bfloat16)
    return jax.lax.scan(step, (zero, zero, zero), xs)[0][2]


def geometric_series(x: Any) -> Any:
    ratio = jnp.exp(-x)
    with culprit:
        bottom = 1 - ratio
    return 1 / bottom


def cosine_of_a_large_angle(time: Any, frequency: Any) -> Any:
    with culprit:
        angle = time * frequency
    return jnp.cos(angle)


def variance_of_a_large_mean(x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    with culprit:
        centred = x - mean
    return (centred * centred).mean(-1)


def softplus(x: Any) -> Any:
    e = jnp.exp(x)
    with culprit:
        total = 1 + e
    return jnp.log(total)


def vandermonde(matrix: Any, right: Any) -> Any:
    return jnp.linalg.solve(matrix, right)


HELD_BACK: dict[str, Program] = {
    "welford": Program(welford, (normal(400, seed=7, dtype=jnp.bfloat16),), ("lost updates",)),
    "geometric series": Program(
        geometric_series, ((2e-3 * (1 + np.abs(normal(32)))).astype(np.float16),), ("cancellation",)
    ),
    "cosine of a large angle": Program(
        cosine_of_a_large_angle, (1e6 * (1 + np.abs(normal(64))), np.abs(normal(64, seed=1))), ("rounding",)
    ),
    "variance of a large mean": Program(
        variance_of_a_large_mean, ((100 + normal(16, 64) / 2).astype(jnp.bfloat16),), ("cancellation",)
    ),
    "softplus": Program(softplus, (-12 - 4 * np.abs(normal(64)),), ("absorption",)),
}
"""The same, of programs that `shadow` was not made with."""
