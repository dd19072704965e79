"""Small programs for the same mesh whose devices exchange values in different ways."""

from __future__ import annotations

from typing import Any

from evaluation.partitioned.program import Program


def _turned(jax: Any, constrain: Any) -> Any:
    """Each device needs what its neighbour has, all around."""

    def turned(x: Any, w: Any) -> Any:
        s = jax.numpy.sin(x)
        return jax.numpy.tanh((s + jax.numpy.roll(s, 1, 0)) @ w)

    return turned


def _difference(jax: Any, constrain: Any) -> Any:
    """Each device needs one row of its neighbour, and the first one a row of zeros."""

    def difference(x: Any, w: Any) -> Any:
        s = jax.numpy.sin(x)
        return jax.numpy.tanh((2 * s - jax.numpy.pad(s[:-1], ((1, 0), (0, 0)))) @ w)

    return difference


def _norm(jax: Any, constrain: Any) -> Any:
    """Sums of squares over columns on several devices, and a product over them."""

    def norm(x: Any, w: Any, bias: Any) -> Any:
        normed = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        return jax.numpy.tanh(constrain(normed @ w) + bias) * 2

    return norm


def _regression(jax: Any, constrain: Any) -> Any:
    """Two steps of learning, with the samples on several devices."""
    jnp = jax.numpy

    def regression(w: Any, b: Any, x: Any, y: Any) -> Any:
        def loss(w: Any, b: Any) -> Any:
            return ((jnp.tanh(x @ w + b) - y) ** 2).mean()

        for _ in range(2):
            of_w, of_b = jax.grad(loss, (0, 1))(w, b)
            w, b = w - 0.3 * of_w, b - 0.3 * of_b
        return w, b

    return regression


def _transposed(jax: Any, constrain: Any) -> Any:
    """Rows become columns between two steps, and the other way round."""

    def transposed(x: Any, w: Any) -> Any:
        rows = constrain(jax.nn.softmax(constrain(x @ w, "m", None), -1), None, "m")
        return constrain(jax.numpy.cumsum(rows, 0) * rows, "m", None) @ w.T

    return transposed


def _gathered(jax: Any, constrain: Any) -> Any:
    """Weights are gathered before they are used, as where each device keeps a part of them."""

    def gathered(x: Any, w1: Any, w2: Any) -> Any:
        hidden = jax.nn.silu(x @ constrain(w1 / 4, None, None))
        return hidden @ constrain(w2 / 4, None, None) + x

    return gathered


SMALL = {
    "turned": Program(_turned, ((16, 6), (6, 6)), (("m",), ()), ("m",)),
    "difference": Program(_difference, ((16, 6), (6, 6)), (("m",), ()), ("m",)),
    "norm": Program(_norm, ((8, 16), (16, 6), (6,)), (("d", "m"), ("m",), ()), ("d",)),
    "regression": Program(_regression, ((8, 6), (6,), (16, 8), (16, 6)), ((), (), ("d",), ("d",)), ((), ())),
    "transposed": Program(_transposed, ((16, 8), (8, 16)), (("m",), ()), ("m",)),
    "gathered": Program(_gathered, ((8, 8), (8, 16), (16, 8)), (("d",), ("m",), (None, "m")), ("d",)),
}
"""Seen, like `PROGRAMS`."""


def _vocabulary(jax: Any, constrain: Any) -> Any:
    """A loss over words on several devices: the largest, and a sum."""
    jnp = jax.numpy

    def vocabulary(x: Any, w: Any, targets: Any) -> Any:
        logits = constrain(x @ w, "d", "m")
        largest = logits.max(-1, keepdims=True)
        logs = logits - largest - jnp.log(jnp.exp(logits - largest).sum(-1, keepdims=True))
        return -(targets * logs).sum(-1), jax.grad(lambda w: (x @ w).std())(w)

    return vocabulary


def _stencil(jax: Any, constrain: Any) -> Any:
    """A field on a plane that both axes of the mesh cut."""
    jnp = jax.numpy

    def stencil(u: Any, k: Any) -> Any:
        for _ in range(2):
            around = sum(jnp.roll(u, step, axis) for axis in (0, 1) for step in (1, -1))
            u = constrain(u + k * jnp.sin(around - 4 * u), "d", "m")
        return u

    return stencil


def _moments(jax: Any, constrain: Any) -> Any:
    """Mean and variance over samples on all devices, and gradients through them."""
    jnp = jax.numpy

    def moments(x: Any, gain: Any, w: Any) -> Any:
        def loss(gain: Any, w: Any) -> Any:
            mean = x.mean(0)
            variance = ((x - mean) ** 2).mean(0)
            return jnp.log1p(jnp.exp((x - mean) / jnp.sqrt(variance + 1e-3) * gain @ w)).sum()

        return jax.value_and_grad(loss, (0, 1))(gain, w)

    return moments


def _powers(jax: Any, constrain: Any) -> Any:
    """A loop whose rounds multiply by a matrix in strips, and divide by a norm."""

    def powers(a: Any, v: Any) -> Any:
        def step(_: Any, v: Any) -> Any:
            v = a @ v
            return v / jax.numpy.sqrt((v * v).sum())

        v = jax.lax.fori_loop(0, 4, step, v)
        return v, v @ (a @ v)

    return powers


def _experts(jax: Any, constrain: Any) -> Any:
    """Samples go to the devices of experts, and come back."""
    jnp = jax.numpy

    def experts(x: Any, gate: Any, w: Any) -> Any:
        shares = jax.nn.softmax(x @ gate, -1)
        sent = constrain(jnp.einsum("be,bd->ebd", shares, x), None, "m", None)
        done = jax.nn.relu(jnp.einsum("ebd,edf->ebf", constrain(sent, "m", None, None), w))
        return constrain(constrain(done, None, "m", None).sum(0), "m", None)

    return experts


def _clipped(jax: Any, constrain: Any) -> Any:
    """Gradients of weights on several devices, clipped by their norm."""
    jnp = jax.numpy

    def clipped(w1: Any, w2: Any, x: Any) -> Any:
        def loss(w1: Any, w2: Any) -> Any:
            return (jnp.cos(jnp.tanh(x @ w1) @ w2) * x).sum()

        gradients = jax.grad(loss, (0, 1))(w1, w2)
        norm = jnp.sqrt(sum((each * each).sum() for each in gradients))
        return tuple(w - 0.1 * each / jnp.maximum(norm, 1) for w, each in zip((w1, w2), gradients, strict=True))

    return clipped


def _kernel(jax: Any, constrain: Any) -> Any:
    """Distances between points on several devices."""
    jnp = jax.numpy

    def kernel(x: Any, y: Any) -> Any:
        near = jnp.exp(-((x[:, None] - x[None]) ** 2).sum(-1) / 2)
        return (near @ y) / near.sum(-1, keepdims=True)

    return kernel


def _residual(jax: Any, constrain: Any) -> Any:
    """Two layers, each cut by its hidden units, around which values are added."""

    def residual(x: Any, w1: Any, w2: Any, bias: Any) -> Any:
        for _ in range(2):
            x = x + jax.numpy.tanh(constrain(jax.nn.gelu(x @ w1) @ w2, "d", None) + bias)
        return x

    return residual


ONCE_HELD = {
    "vocabulary": Program(_vocabulary, ((8, 6), (6, 16), (8, 16)), (("d",), (None, "m"), ("d", "m")), (("d",), ())),
    "stencil": Program(_stencil, ((8, 16), ()), (("d", "m"), ()), ("d", "m")),
    "moments": Program(_moments, ((16, 6), (6,), (6, 4)), (("d",), (), (None, "m"))),
    "powers": Program(_powers, ((16, 16), (16,)), (("m",), ())),
    "experts": Program(_experts, ((16, 8), (8, 4), (4, 8, 6)), (("m",), (), ("m",)), ("m",)),
    "clipped": Program(_clipped, ((6, 16), (16, 6), (8, 6)), ((None, "m"), ("m",), ("d",)), ((None, "m"), ("m",))),
    "kernel": Program(_kernel, ((16, 3), (16, 5)), (("m",), ("m",)), ("m",)),
    "residual": Program(_residual, ((4, 8), (8, 16), (16, 8), (8,)), (("d",), (None, "m"), ("m",), ()), ("d",)),
}
"""Held back until they had been looked at; seen since."""
