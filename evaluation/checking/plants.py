"""Training steps in which a NaN or an infinity is made by the line marked `here`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from evaluation.checking.cases import Table

PLANTS = Table()
_chance = np.random.default_rng(7)


def _normal(*shape: int, scale: float = 1.0) -> Any:
    return (_chance.normal(size=shape) * scale).astype(np.float32)


def with_value(array: Any, index: Any, value: float) -> Any:
    array = np.array(array)
    array[index] = value
    return array


X, W, V = _normal(8, 4), _normal(4, 6), _normal(6, 1)
ONE, ZERO = np.float32(1), np.float32(0)
LABELS = np.arange(8) % 6


@PLANTS.add((X, W, V), (X, W, V), (X * 1e30, W * 1e20, V))
def mlp(x: Any, w: Any, v: Any) -> Any:
    hidden = x @ w  # here
    return jnp.mean(jax.nn.relu(hidden) @ v)


@PLANTS.add((X, W, V, _normal(8, 1)), (X, W, V, with_value(_normal(8, 1), 3, 3e38)))
def mlp_gradient(x: Any, w: Any, v: Any, target: Any) -> Any:
    def loss(w: Any, v: Any) -> Any:
        error = jnp.tanh(x @ w) @ v - target
        return jnp.mean(error**2)  # here

    value, (of_w, of_v) = jax.value_and_grad(loss, (0, 1))(w, v)
    return value, w - 0.1 * of_w, v - 0.1 * of_v


@PLANTS.add((_normal(5, 4), _normal(5, 4), _normal(5, 4), 2), (_normal(5, 4), _normal(5, 4), _normal(5, 4), 0))
def attention_with_no_key(q: Any, k: Any, v: Any, length: Any) -> Any:
    scores = jnp.where(jnp.arange(5) < length, q @ k.T, -jnp.inf)
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))  # here
    return weights / weights.sum(-1, keepdims=True) @ v


@PLANTS.add((X[:, :4], np.float32(0.5)), (X[:, :4], np.float32(1e8)))
def rnn(inputs: Any, scale: Any) -> Any:
    def cell(state: Any, x: Any) -> Any:
        state = state * scale + x  # here
        return state, jnp.sum(state)

    return lax.scan(cell, jnp.zeros(4), inputs)


@PLANTS.add((X, np.int32(3)), (X, np.int32(3)), (X, np.int32(40)))
def power_iterations(x: Any, count: Any) -> Any:
    matrix = x.T @ x

    def body(state: Any) -> Any:
        number, vector = state
        return number + 1, matrix @ vector * 100  # here

    return lax.while_loop(lambda state: state[0] < count, body, (0, jnp.ones(4)))[1]


@PLANTS.add((X, True), (X, True), (X, False))
def branches(x: Any, usual: Any) -> Any:
    def rare(x: Any) -> Any:
        return jnp.log(jnp.sum(jnp.abs(x)) * 0.0)  # here

    return lax.cond(usual, jnp.sum, rare, x)


@PLANTS.add((with_value(np.abs(X), (3, 1), 0),))
def vmapped_entropy(p: Any) -> Any:
    def entropy(row: Any) -> Any:
        return -jnp.sum(row * jnp.log(row))  # here

    return jax.vmap(entropy)(p)


def over_devices(function: Any) -> Any:
    mesh = Mesh(np.array(jax.devices()[:8]), ("d",))
    spec = PartitionSpec("d")
    return jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec)


@PLANTS.add((np.arange(1, 17, dtype=np.float32),), (np.arange(16, dtype=np.float32),))
def sharded_loss(x: Any) -> Any:
    def shard(x: Any) -> Any:
        return x * lax.psum(jnp.sum(1 / x), "d")  # here

    return over_devices(shard)(x)


@PLANTS.add((np.full(16, 2e38, np.float32),))
def sharded_mean(x: Any) -> Any:
    def shard(x: Any) -> Any:
        total = lax.psum(x, "d")  # here
        return total / 8

    return over_devices(shard)(x)


@PLANTS.add((with_value(X, (2, 2), 0), W))
def custom_gradient(x: Any, w: Any) -> Any:
    @jax.custom_vjp
    def norm(x: Any) -> Any:
        return jnp.abs(x)

    def backward(x: Any, g: Any) -> Any:
        return (g * x / jnp.abs(x),)

    norm.defvjp(lambda x: (norm(x), x), backward)
    # JAX gives the operations of a backward rule the line at which the function is called.
    return jax.grad(lambda x: jnp.sum(norm(x) @ w))(x)  # here


@PLANTS.add((X.astype("float16"), np.float16(1)), (X.astype("float16"), np.float16(300)))
def half_squares(x: Any, scale: Any) -> Any:
    scaled = (x * scale) ** 2  # here
    return jnp.mean(scaled.astype(jnp.float32))


@PLANTS.add((X, np.float32(3.4e38)))
def cast_to_bf16(x: Any, scale: Any) -> Any:
    return jnp.tanh(x), scale.astype(jnp.bfloat16)  # here


@PLANTS.add((LABELS, np.eye(6, dtype=np.float32)[LABELS]), (LABELS, 1 - np.eye(6, dtype=np.float32)[LABELS]))
def cross_entropy(labels: Any, p: Any) -> Any:
    chosen = jnp.take_along_axis(p, labels[:, None], 1)
    return -jnp.mean(jnp.log(chosen))  # here


@PLANTS.add((X, np.ones(8, np.float32)), (X, np.zeros(8, np.float32)))
def masked_mean(x: Any, mask: Any) -> Any:
    return jnp.sum(x * mask[:, None], 0) / jnp.sum(mask)  # here


@PLANTS.add((X + 9,), (with_value(X + 9, (0, 0), 0),))
def root_gradient(x: Any) -> Any:
    return jax.grad(lambda x: jnp.sum(jnp.sqrt(x)))(x)  # here


@PLANTS.add((X,), (X * 0,))
def norm_gradient(x: Any) -> Any:
    return jax.grad(lambda x: jnp.sum(jnp.linalg.norm(x, axis=1)))(x)  # here


@PLANTS.add((X**2 + 1,), (with_value(X**2 + 1, (1, 1), 0),))
def where_trap(x: Any) -> Any:
    def loss(x: Any) -> Any:
        return jnp.sum(jnp.where(x > 0, jnp.log(x), 0.0))  # here

    return jax.grad(loss)(x)


@PLANTS.add((X, np.float32(1)), (X, np.float32(1)), (X, np.float32(200)))
def naive_softmax(x: Any, temperature: Any) -> Any:
    exponentials = jnp.exp(x * temperature)  # here
    return exponentials / exponentials.sum(-1, keepdims=True)


@PLANTS.add((np.abs(X), np.float32(0.5)), (X, np.float32(0.5)))
def power(x: Any, exponent: Any) -> Any:
    return jnp.sum(x**exponent)  # here


@PLANTS.add((X / 9, ONE / 2), (X / 9, ONE))
def angle_gradient(x: Any, cosine: Any) -> Any:
    return jnp.sum(x) * jax.grad(lambda c: jnp.arccos(c))(cosine)  # here


@PLANTS.add((X, np.zeros(4, np.float32)), (X, np.full(4, -np.inf, np.float32)))
def softmax_of_no_choice(x: Any, mask: Any) -> Any:
    return jnp.mean(jax.nn.softmax(x + mask, -1))  # here


@PLANTS.add((X.T @ X + np.eye(4, dtype=np.float32),), (-X.T @ X,))
def cholesky_of_indefinite(covariance: Any) -> Any:
    factor = jnp.linalg.cholesky(covariance)  # here
    return jnp.sum(jnp.log(jnp.diag(factor)))


@PLANTS.add((W, W), (W, with_value(W, (2, 2), 0)))
def adam_without_epsilon(w: Any, g: Any) -> Any:
    mean, square = 0.1 * g, 0.001 * g**2
    update = (mean / 0.1) / jnp.sqrt(square / 0.001)  # here
    return w - 1e-3 * update, mean, square


@PLANTS.add((X, W), (X, W), (X * 100, W))
def remat(x: Any, w: Any) -> Any:
    @jax.checkpoint
    def layer(x: Any, w: Any) -> Any:
        return jnp.exp(x @ w)  # here

    return jax.value_and_grad(lambda w: jnp.sum(layer(x, w)))(w)


@PLANTS.add((np.ones((3, 4), np.float32),), (with_value(np.ones((3, 4), np.float32), (1, 2), 0),))
def nested_scans(rows: Any) -> Any:
    def inner(total: Any, x: Any) -> Any:
        return total + 1 / x, total  # here

    def outer(total: Any, row: Any) -> Any:
        return lax.scan(inner, total, row)

    return lax.scan(outer, 0.0, rows)


@PLANTS.add((X, np.arange(4, dtype=np.float32)), (X * 0, np.arange(4, dtype=np.float32)))
def layer_norm(x: Any, scale: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True)) * scale  # here


@PLANTS.add((X, X[::-1] + 3), (X, X))
def contrastive(x: Any, y: Any) -> Any:
    distance = jnp.sqrt(jnp.sum((x - y) ** 2, -1))
    return jnp.mean(jnp.log(distance))  # here


@PLANTS.add((ZERO, ONE), (ZERO, ZERO))
def gaussian_likelihood(x: Any, sigma: Any) -> Any:
    z = (x - 1) / sigma  # here
    return -0.5 * z**2 - jnp.log(sigma + 1)


@PLANTS.add((X, np.float32(2)), (X, np.float32(3e38)))
def gradient_norm(x: Any, scale: Any) -> Any:
    g = jax.grad(lambda x: jnp.sum(jnp.sin(x) * scale))(x)
    norm = jnp.sqrt(jnp.sum(g * g))  # here
    return g * jnp.minimum(1.0, 1.0 / norm), norm


@PLANTS.add((np.eye(4, dtype=np.float32), X[0]), (np.ones((4, 4), np.float32), X[0]))
def solve_singular(matrix: Any, b: Any) -> Any:
    return jnp.linalg.solve(matrix, b)  # here
