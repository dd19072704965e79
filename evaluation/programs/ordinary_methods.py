"""More ordinary programs of 500 to 3000 instructions: see `ordinary`."""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluation.programs.ordinary import attention, dense, layers, normed, trained
from evaluation.programs.program import Program, integers, normal, positive, registering

PROGRAMS: list[Program] = []
_program = registering(PROGRAMS)


@_program
def _heat_equation_step(jax: Any) -> Any:
    """A network that solves the heat equation: its residual has second derivatives."""
    jnp = jax.numpy

    def loss(parameters: Any, points: Any, edges: Any) -> Any:
        def heat(point: Any) -> Any:
            return dense(parameters, point, jnp.tanh)[0]

        def residual(point: Any) -> Any:
            slope = jax.grad(heat)(point)
            curvature = jax.grad(lambda place: jax.grad(heat)(place)[0])(point)[0]
            return slope[1] - 0.1 * curvature

        inside = jnp.square(jax.vmap(residual)(points)).mean()
        known = jnp.exp(-jnp.square(edges).sum(-1))
        return inside + jnp.square(jax.vmap(heat)(edges) - known).mean()

    return trained(jax, loss, layers(10, 2, 12, 12, 1), positive(1, 12, 2), positive(2, 6, 2))


@_program
def _graph_attention_step(jax: Any) -> Any:
    """Two layers of attention over the edges of a graph."""
    jnp = jax.numpy

    def loss(parameters: Any, nodes: Any, senders: Any, receivers: Any, labels: Any) -> Any:
        def summed(values: Any) -> Any:
            return jax.ops.segment_sum(values, receivers, 12)

        x = nodes
        for layer in parameters["layers"]:
            x = x @ layer["weights"]
            scores = jax.nn.leaky_relu(x[senders] @ layer["from"] + x[receivers] @ layer["to"])
            largest = jax.lax.stop_gradient(jax.ops.segment_max(scores, receivers, 12))
            shares = jnp.exp(scores - largest[receivers])
            shares = shares / (summed(shares)[receivers] + 1e-9)
            x = jax.nn.elu(summed(shares[:, None] * x[senders])) + x
        logs = jax.nn.log_softmax(x @ parameters["head"])
        return -jnp.take_along_axis(logs, labels[:, None], -1).mean()

    made = [{"weights": normal(n, 8, 8), "from": normal(n + 1, 8), "to": normal(n + 2, 8)} for n in (10, 20, 30)]
    parameters = {"layers": made, "head": normal(1, 8, 4)}
    receivers = np.concatenate([np.arange(12), integers(3, 12, 20)]).astype(np.int32)
    return trained(jax, loss, parameters, normal(2, 12, 8), integers(4, 12, 32), receivers, integers(5, 4, 12))


@_program
def _meta_learning_step(jax: Any) -> Any:
    """The gradient through two steps of gradient descent on each of several tasks."""
    jnp = jax.numpy

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        def error(parameters: Any, x: Any, y: Any) -> Any:
            return jnp.square(dense(parameters, x, jnp.tanh) - y).mean()

        def of_task(x: Any, y: Any) -> Any:
            adapted = parameters
            for _ in range(2):
                slopes = jax.grad(error)(adapted, x[:6], y[:6])
                adapted = jax.tree.map(lambda each, slope: each - 0.1 * slope, adapted, slopes)
            return error(adapted, x[6:], y[6:])

        return jax.vmap(of_task)(x, y).mean()

    return trained(jax, loss, layers(10, 1, 12, 12, 1), normal(1, 4, 12, 1), normal(2, 4, 12, 1))


@_program
def _mixture_fit(jax: Any) -> Any:
    """Six rounds of expectation and maximization for a mixture of Gaussians with full covariances."""
    jnp = jax.numpy

    def mixture_fit(x: Any, means: Any, factors: Any, weights: Any) -> Any:
        values = []
        for _ in range(6):
            gaps = x[None] - means[:, None]
            a, b, d = factors[:, 0, 0], factors[:, 0, 1], factors[:, 1, 1]
            determinant = a * d - b * b
            u, v = gaps[..., 0], gaps[..., 1]
            square = d[:, None] * u * u - 2 * b[:, None] * u * v + a[:, None] * v * v
            logs = jnp.log(weights)[:, None] - jnp.log(determinant)[:, None] / 2 - square / determinant[:, None] / 2
            total = jax.nn.logsumexp(logs, axis=0)
            shares = jnp.exp(logs - total)
            counts = shares.sum(1) + 1e-3
            weights = counts / counts.sum()
            means = (shares[..., None] * x[None]).sum(1) / counts[:, None]
            gaps = x[None] - means[:, None]
            factors = jnp.einsum("kn,kni,knj->kij", shares, gaps, gaps) / counts[:, None, None] + 0.05 * jnp.eye(2)
            values.append(total.mean())
        return means, factors, weights, jnp.stack(values)

    start = np.tile(np.eye(2, dtype=np.float32), (3, 1, 1))
    return mixture_fit, (normal(1, 40, 2) * 3, normal(2, 3, 2), start, np.full(3, 1 / 3, np.float32))


@_program
def _actor_critic_step(jax: Any) -> Any:
    """Two critics and an actor with a squashed Gaussian, each trained on its own loss."""
    jnp = jax.numpy

    def loss(parameters: Any, states: Any, actions: Any, rewards: Any, following: Any, noise: Any) -> Any:
        stop = jax.lax.stop_gradient

        def acted(actor: Any, states: Any) -> Any:
            mean, log = jnp.split(dense(actor, states, jax.nn.relu), 2, axis=-1)
            log = jnp.clip(log, -4, 1)
            raw = mean + jnp.exp(log) * noise
            action = jnp.tanh(raw)
            likelihood = (-(noise**2) / 2 - log - 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))).sum(-1)
            return action, likelihood

        def judged(critic: Any, states: Any, actions: Any) -> Any:
            return dense(critic, jnp.concatenate([states, actions], -1), jax.nn.relu)[:, 0]

        critics, alpha = parameters["critics"], jnp.exp(parameters["alpha"])
        later, likelihood = acted(stop(parameters["actor"]), following)
        least = jnp.minimum(*(judged(stop(critic), following, later) for critic in critics))
        wanted = stop(rewards + 0.98 * (least - alpha * likelihood))
        error = sum(jnp.square(judged(critic, states, actions) - wanted).mean() for critic in critics)
        action, likelihood = acted(parameters["actor"], states)
        least = jnp.minimum(*(judged(stop(critic), states, action) for critic in critics))
        return error + (stop(alpha) * likelihood - least).mean() - (alpha * stop(likelihood + 2)).mean()

    critics = [layers(n, 7, 12, 12, 1) for n in (10, 20)]
    parameters = {"critics": critics, "actor": layers(30, 5, 12, 12, 4), "alpha": np.float32(-1)}
    data = normal(1, 10, 5), np.tanh(normal(2, 10, 2)), normal(3, 10), normal(4, 10, 5), normal(5, 10, 2)
    return trained(jax, loss, parameters, *data)


@_program
def _translation_step(jax: Any) -> Any:
    """An encoder and a decoder with attention between them."""
    jnp = jax.numpy

    def loss(parameters: Any, source: Any, target: Any) -> Any:
        def one(source: Any, target: Any) -> Any:
            x = parameters["source"][source]
            block = parameters["encoder"]
            x = x + attention(jax, block, normed(jax, x, block["scale"]), 2, True)
            x = x + jax.nn.relu(x @ block["up"]) @ block["down"]
            y = parameters["target"][target[:-1]]
            block = parameters["decoder"]
            mask = jnp.tril(jnp.ones((8, 8), bool))
            y = y + attention(jax, block, normed(jax, y, block["scale"]), 2, mask)
            q, k = y @ parameters["q"], x @ parameters["k"]
            y = y + jax.nn.softmax(q @ k.T / 4) @ (x @ parameters["v"])
            y = y + jax.nn.relu(y @ block["up"]) @ block["down"]
            logs = jax.nn.log_softmax(y @ parameters["target"].T)
            return -jnp.take_along_axis(logs, target[1:, None], -1).mean()

        return jax.vmap(one)(source, target).mean()

    def block(n: int) -> Any:
        return {
            "qkv": normal(n, 12, 36),
            "out": normal(n + 1, 12, 12),
            "scale": 1 + 0.1 * normal(n + 2, 12),
            "up": normal(n + 3, 12, 24),
            "down": normal(n + 4, 24, 12),
        }

    parameters = {"source": normal(1, 20, 12), "target": normal(2, 20, 12), "encoder": block(10), "decoder": block(20)}
    parameters |= {name: normal(n, 12, 12) for n, name in enumerate("qkv", 30)}
    return trained(jax, loss, parameters, integers(3, 20, 2, 10), integers(4, 20, 2, 9))


@_program
def _state_space_step(jax: Any) -> Any:
    """Two layers of diagonal recurrences by an associative scan, with gates."""
    jnp = jax.numpy

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        def joined(one: Any, other: Any) -> Any:
            return one[0] * other[0], other[0] * one[1] + other[1]

        for layer in parameters["layers"]:
            decay = jnp.exp(-jax.nn.softplus(layer["decay"] + x @ layer["rate"]))
            _, states = jax.lax.associative_scan(joined, (decay, x @ layer["in"]))
            x = normed(jax, x + (states * jax.nn.silu(x @ layer["gate"])) @ layer["out"], layer["scale"])
        return jnp.square(x @ parameters["head"] - y).mean()

    made = [
        {
            "decay": normal(n, 12),
            **{name: normal(n + k, 12, 12) for k, name in enumerate(("rate", "in", "gate", "out"), 1)},
            "scale": 1 + 0.1 * normal(n + 6, 12),
        }
        for n in (10, 20)
    ]
    return trained(jax, loss, {"layers": made, "head": normal(1, 12, 3)}, normal(2, 16, 12), normal(3, 16, 3))
