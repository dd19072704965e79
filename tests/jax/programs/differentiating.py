"""Derivatives, vectorization, and rules of one's own for both."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.jax.programs.program import Call, call, integers, normal, positive, program

jax: Any = pytest.importorskip("jax")
jnp, lax, nn = jax.numpy, jax.lax, jax.nn


@partial(jax.tree_util.register_dataclass, data_fields=["weights", "bias"], meta_fields=["name"])
@dataclass
class Layer:
    """A pytree of JAX's own making: a bias that may be absent, and a name that is static."""

    weights: Any
    bias: Any
    name: str


@program
def logistic_regression(_: Any) -> Call:
    """Value and gradients by two arguments at once."""

    def loss(weights: Any, bias: Any, inputs: Any, labels: Any) -> Any:
        chances = nn.sigmoid(inputs @ weights + bias)
        return -jnp.log(jnp.where(labels, chances, 1 - chances)).sum()

    labels = integers(3, 2, 12).astype(bool)
    return call(jax.value_and_grad(loss, (0, 1)), normal(1, 5), 0.25, normal(2, 12, 5), labels)


@program
def gradients_of_dataclasses(_: Any) -> Call:
    """A structure with None in it, and an auxiliary result."""

    def loss(layers: Any, inputs: Any) -> Any:
        for layer in layers:
            with jax.named_scope(layer.name):
                inputs = jnp.tanh(inputs @ layer.weights + (0 if layer.bias is None else layer.bias))
        return (inputs**2).mean(), {"activations": inputs, "none": None}

    layers = [Layer(normal(1, 4, 6), normal(2, 6), "first"), Layer(normal(3, 6, 3), None, "second")]
    return call(jax.value_and_grad(loss, has_aux=True), layers, normal(4, 5, 4))


@program
def hessian_of_rosenbrock(_: Any) -> Call:
    def rosenbrock(x: Any) -> Any:
        return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()

    return call(jax.hessian(rosenbrock), positive(1, 5))


@program
def jacobians_both_ways(_: Any) -> Call:
    def field(x: Any) -> Any:
        return jnp.stack([x[0] * jnp.sin(x[1]), jnp.exp(x[2]) - x[0], x[0] * x[1] * x[2], jnp.cos(x).prod()])

    return call(lambda x: (jax.jacfwd(field)(x), jax.jacrev(field)(x)), normal(1, 3))


@program
def hessian_vector_product(_: Any) -> Call:
    """Forward over reverse mode."""

    def energy(x: Any) -> Any:
        return jnp.logaddexp(x[:, None], -x).sum() + jnp.log1p(x**2).prod()

    return call(lambda x, v: jax.jvp(jax.grad(energy), (x,), (v,)), positive(1, 6), normal(2, 6))


@program
def linearized_and_transposed(_: Any) -> Call:
    def model(x: Any) -> Any:
        return jnp.cumsum(jnp.sin(x) * x[::-1])

    def both(x: Any, tangent: Any, cotangent: Any) -> Any:
        value, pushed = jax.linearize(model, x)
        (pulled,) = jax.linear_transpose(pushed, x)(cotangent)
        return value, pushed(tangent), pulled

    return call(both, normal(1, 8), normal(2, 8), normal(3, 8))


@program
def pullback_of_many(_: Any) -> Call:
    """A vector-Jacobian product, vectorized over the rows of the identity."""

    def model(x: Any, y: Any) -> Any:
        return {"sum": jnp.hypot(x, y), "quotient": x / (1 + y**2)}

    def rows(x: Any, y: Any) -> Any:
        values, pull = jax.vjp(model, x, y)
        basis = jnp.eye(x.size, dtype=x.dtype)
        return values, jax.vmap(pull)({"sum": basis, "quotient": 2 * basis})

    return call(rows, positive(1, 4), positive(2, 4))


@program
def vmap_of_axes_and_names(_: Any) -> Call:
    """Axes in the middle, arguments that all share, a named axis to reduce over, and one vmap in another."""

    def row(x: Any, scale: Any) -> Any:
        return (x - lax.pmean(x, "rows")) * scale, lax.axis_index("rows"), lax.pmax(x, "rows")

    inner = jax.vmap(row, in_axes=(1, None), out_axes=(1, 0, None), axis_name="rows")
    return call(jax.vmap(inner, in_axes=(0, 0)), normal(1, 3, 4, 5), positive(2, 3))


@program
def checkpointed_layers(_: Any) -> Call:
    """The results of products are kept, the rest is computed again."""

    @partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
    def layer(weights: Any, x: Any) -> Any:
        return jnp.sin(nn.gelu(x @ weights)) + x

    def loss(weights: Any, x: Any) -> Any:
        for each in weights:
            x = layer(each, x)
        return (x**2).mean()

    return call(jax.grad(loss), [normal(1, 6, 6), normal(2, 6, 6)], normal(3, 4, 6))


@program
def custom_jvp_of_softplus(_: Any) -> Call:
    """The derivative where the formula's own would be inf / inf."""

    @jax.custom_jvp
    def softplus(x: Any) -> Any:
        return jnp.log(1 + jnp.exp(x))

    @softplus.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x,), (tangent,) = primals, tangents
        return softplus(x), (1 - 1 / (1 + jnp.exp(x))) * tangent

    x = jnp.array([-3.0, 0.0, 2.0, 100.0])
    return call(lambda x: (softplus(x), jax.vmap(jax.grad(softplus))(x), jax.jvp(softplus, (x,), (x,))), x)


@program
def custom_vjp_that_clips(_: Any) -> Call:
    """Gradients are clipped on their way back; the bounds are no arguments to differentiate by."""

    @partial(jax.custom_vjp, nondiff_argnums=(0, 1))
    def clip(low: float, high: float, x: Any) -> Any:
        return x

    clip.defvjp(lambda low, high, x: (x, None), lambda low, high, _, cotangent: (jnp.clip(cotangent, low, high),))

    return call(jax.vmap(jax.value_and_grad(lambda x: jnp.sin(clip(-0.5, 0.75, x) * 3))), normal(1, 7))


@program
def implicit_root(_: Any) -> Call:
    """A root by bisection, differentiated by the implicit function theorem."""

    def root(a: Any) -> Any:
        def solve(function: Any, start: Any) -> Any:
            def halve(_: Any, bounds: Any) -> Any:
                low, high = bounds
                middle = (low + high) / 2
                return jax.tree.map(partial(jnp.where, function(middle) > 0), (low, middle), (middle, high))

            return lax.fori_loop(0, 30, halve, (start - 4, start + 4))[0]

        return lax.custom_root(lambda x: x**3 + x - a, jnp.zeros_like(a), solve, lambda g, y: y / g(jnp.ones_like(y)))

    return call(jax.vmap(jax.value_and_grad(root)), positive(1, 5))


@program
def gradients_by_integers(_: Any) -> Call:
    """There are none, which JAX says by a type of its own."""

    def loss(x: Any, n: Any) -> Any:
        return (x**2 * n).sum()

    return call(jax.grad(loss, (0, 1), allow_int=True), normal(1, 3), np.int32([1, 2, 3]))
