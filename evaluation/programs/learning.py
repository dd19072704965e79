"""Training steps and losses."""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluation.programs.program import Program, integers, normal, positive, registering

PROGRAMS: list[Program] = []
_program = registering(PROGRAMS)


def adam(jax: Any, parameters: Any, gradients: Any, moments: Any, step: Any, rate: float = 1e-2) -> Any:
    """One step of Adam with weight decay and a clipped norm; `moments` are trees like `parameters`."""
    jnp, tree = jax.numpy, jax.tree
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(each.astype(jnp.float32))) for each in tree.leaves(gradients)))
    factor = jnp.minimum(1.0, 1.0 / (norm + 1e-6))
    gradients = tree.map(lambda each: each.astype(jnp.float32) * factor, gradients)
    first = tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradients)
    second = tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, moments[1], gradients)
    time = step.astype(jnp.float32) + 1
    corrections = 1 - 0.9**time, 1 - 0.99**time

    def update(p: Any, m: Any, v: Any) -> Any:
        change = (m / corrections[0]) / (jnp.sqrt(v / corrections[1]) + 1e-8)
        wide = p.astype(jnp.float32)
        return (wide - rate * (change + 0.01 * wide)).astype(p.dtype)

    return tree.map(update, parameters, first, second), first, second


@_program
def _layer_norm_mlp(jax: Any) -> Any:
    """Two residual blocks with layer norm and gelu, cross entropy with smoothed labels, and a step of Adam."""

    def apply(parameters: Any, x: Any) -> Any:
        for block in parameters["blocks"]:
            centred = x - x.mean(-1, keepdims=True)
            normed = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
            normed = normed * block["scale"] + block["bias"]
            x = x + jax.nn.gelu(normed @ block["up"], approximate=True) @ block["down"]
        return x @ parameters["head"]

    def layer_norm_mlp(parameters: Any, moments: Any, x: Any, labels: Any, step: Any) -> Any:
        def loss(parameters: Any) -> Any:
            logits = jax.nn.log_softmax(apply(parameters, x))
            targets = 0.9 * jax.nn.one_hot(labels, 10) + 0.01
            return -(targets * logits).sum(-1).mean()

        value, gradients = jax.value_and_grad(loss)(parameters)
        return value, *adam(jax, parameters, gradients, moments, step)

    blocks = [
        {
            "scale": 1 + 0.1 * normal(n, 16),
            "bias": 0.1 * normal(n + 1, 16),
            "up": normal(n + 2, 16, 32),
            "down": normal(n + 3, 32, 16),
        }
        for n in (10, 20)
    ]
    parameters = {"blocks": blocks, "head": normal(5, 16, 10)}
    moments = (
        jax.tree.map(lambda each: 0.1 * normal(6, *each.shape), parameters),
        jax.tree.map(lambda each: 0.1 * positive(7, *each.shape), parameters),
    )
    return layer_norm_mlp, (parameters, moments, normal(1, 12, 16), integers(2, 10, 12), np.int32(3))


@_program
def _adam_bf16(jax: Any) -> Any:
    """A two-layer network in bf16 with moments in f32."""
    jnp = jax.numpy

    def adam_bf16(parameters: Any, moments: Any, x: Any, y: Any, step: Any) -> Any:
        def loss(parameters: Any) -> Any:
            w1, b1, w2, b2 = parameters
            hidden = jax.nn.silu(x @ w1 + b1)
            out = (hidden @ w2 + b2).astype(jnp.float32)
            return ((out - y) ** 2).mean()

        value, gradients = jax.value_and_grad(loss)(parameters)
        return value, *adam(jax, parameters, gradients, moments, step)

    shapes = ((16, 24), (24,), (24, 8), (8,))
    parameters = tuple(jnp.asarray(normal(n, *shape), jnp.bfloat16) for n, shape in enumerate(shapes))
    moments = (
        tuple(0.1 * normal(10 + n, *shape) for n, shape in enumerate(shapes)),
        tuple(0.1 * positive(20 + n, *shape) for n, shape in enumerate(shapes)),
    )
    x = jnp.asarray(normal(1, 20, 16), jnp.bfloat16)
    return adam_bf16, (parameters, moments, x, normal(2, 20, 8), np.int32(2))


@_program(keeps=[4, 5])
def _ppo_loss(jax: Any) -> Any:
    """Advantages by a scan from the end, a clipped ratio, a value loss and an entropy; with the gradient."""
    jnp, lax = jax.numpy, jax.lax

    def ppo_loss(weights: Any, critic: Any, observations: Any, rewards: Any, actions: Any, old: Any) -> Any:
        def loss(weights: Any, critic: Any) -> Any:
            logits = jnp.tanh(observations @ weights) * 3
            values = (observations @ critic)[..., 0]

            def back(carry: Any, step: Any) -> Any:
                advantage, following = carry
                reward, value = step
                advantage = reward + 0.97 * following - value + 0.9 * advantage
                return (advantage, value), advantage

            start = (jnp.zeros(values.shape[1]), jnp.zeros(values.shape[1]))
            _, advantages = lax.scan(back, start, (rewards, lax.stop_gradient(values)), reverse=True)
            returns = advantages + lax.stop_gradient(values)
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            every = jax.nn.log_softmax(logits)
            chosen = jnp.take_along_axis(every, actions[..., None], -1)[..., 0]
            ratio = jnp.exp(chosen - old)
            clipped = jnp.clip(ratio, 0.8, 1.2)
            policy = -jnp.minimum(ratio * advantages, clipped * advantages).mean()
            entropy = -(jnp.exp(every) * every).sum(-1).mean()
            return policy + 0.5 * ((values - returns) ** 2).mean() - 0.01 * entropy

        return jax.value_and_grad(loss, (0, 1))(weights, critic)

    observations = normal(3, 10, 6, 8)
    old = -np.abs(normal(6, 10, 6)).astype(np.float32) - 1
    return ppo_loss, (normal(1, 8, 4), normal(2, 8, 1), observations, normal(4, 10, 6), integers(5, 4, 10, 6), old)


@_program
def _expert_mixture_bf16(jax: Any) -> Any:
    """Tokens go to two of their experts by a one-hot dispatch with a limited capacity; a loss for balance."""
    jnp = jax.numpy

    def expert_mixture_bf16(x: Any, gate: Any, up: Any, down: Any) -> Any:
        probabilities = jax.nn.softmax((x @ gate).astype(jnp.float32))
        weights, chosen = jax.lax.top_k(probabilities, 2)
        masks = jax.nn.one_hot(chosen, 4, dtype=jnp.float32)
        places = jnp.cumsum(masks.reshape(-1, 4), 0).reshape(masks.shape) * masks - 1
        kept = (places < 10) & (places >= 0)
        slots = jax.nn.one_hot(places.astype(jnp.int32), 10, dtype=jnp.float32) * kept[..., None]
        combine = jnp.einsum("tk,tkec->tec", weights, slots)
        dispatch = (combine > 0).astype(jnp.bfloat16)
        inputs = jnp.einsum("tec,td->ecd", dispatch, x)
        hidden = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", inputs, up))
        outputs = jnp.einsum("ecf,efd->ecd", hidden, down)
        result = jnp.einsum("tec,ecd->td", combine.astype(jnp.bfloat16), outputs)
        balance = (probabilities.mean(0) * masks[:, 0].mean(0)).sum() * 4
        return result, balance

    def bf16(array: Any) -> Any:
        return jnp.asarray(array, jnp.bfloat16)

    return expert_mixture_bf16, (
        bf16(normal(1, 16, 12) * 2),
        bf16(normal(2, 12, 4)),
        bf16(normal(3, 4, 12, 16)),
        bf16(normal(4, 4, 16, 12)),
    )


@_program
def _contrastive_bf16(jax: Any) -> Any:
    """Two encoders in bf16, similarities of all pairs with a learnt temperature, and the gradient."""
    jnp = jax.numpy

    def contrastive_bf16(first: Any, second: Any, x: Any, y: Any, temperature: Any) -> Any:
        def loss(first: Any, second: Any, temperature: Any) -> Any:
            left, right = (jnp.tanh(a @ w).astype(jnp.float32) for a, w in ((x, first), (y, second)))
            left = left * jax.lax.rsqrt((left**2).sum(-1, keepdims=True) + 1e-6)
            right = right * jax.lax.rsqrt((right**2).sum(-1, keepdims=True) + 1e-6)
            logits = (left.astype(jnp.bfloat16) @ right.T.astype(jnp.bfloat16)).astype(jnp.float32)
            logits = logits * jnp.exp(temperature)
            rows, columns = jax.nn.log_softmax(logits, 1), jax.nn.log_softmax(logits, 0)
            return -(jnp.diagonal(rows) + jnp.diagonal(columns)).mean() / 2

        return jax.value_and_grad(loss, (0, 1, 2))(first, second, temperature)

    arrays = [jnp.asarray(each, jnp.bfloat16) for each in (normal(1, 12, 12), normal(2, 12, 12))]
    data = [jnp.asarray(each, jnp.bfloat16) for each in (normal(3, 12, 12), normal(4, 12, 12))]
    return contrastive_bf16, (*arrays, *data, np.float32(1.5))


@_program(keeps=[3, 4])
def _graph_network(jax: Any) -> Any:
    """Messages along edges, summed and averaged by segments, in two rounds, with the gradient."""
    jnp = jax.numpy

    def graph_network(nodes: Any, message: Any, update: Any, senders: Any, receivers: Any) -> Any:
        def loss(message: Any, update: Any) -> Any:
            hidden = nodes
            for _ in range(2):
                messages = jax.nn.leaky_relu(jnp.concatenate([hidden[senders], hidden[receivers]], 1) @ message, 0.1)
                scores = messages.sum(-1)
                top = jax.ops.segment_max(scores, receivers, 12)
                weights = jnp.exp(scores - top[receivers])
                total = jax.ops.segment_sum(weights, receivers, 12)
                messages = messages * (weights / (total[receivers] + 1e-9))[:, None]
                gathered = jax.ops.segment_sum(messages, receivers, 12)
                hidden = jnp.tanh(jnp.concatenate([hidden, gathered], 1) @ update)
            return (hidden**2).sum(), hidden

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(message, update)

    edges = np.concatenate([np.arange(12, dtype=np.int32), integers(4, 12, 24)])
    receivers = np.concatenate([np.roll(np.arange(12, dtype=np.int32), 1), integers(5, 12, 24)])
    return graph_network, (normal(1, 12, 8), normal(2, 16, 8), normal(3, 16, 8), edges, receivers)


@_program
def _decoder_training(jax: Any) -> Any:
    """Two blocks of a decoder with causal attention, tied embeddings and dropout by a mask; a step of Adam."""
    jnp = jax.numpy

    def normed(x: Any, scale: Any) -> Any:
        return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale

    def attention(x: Any, block: Any) -> Any:
        q, k, v = jnp.split(x @ block["qkv"], 3, -1)
        q, k, v = (each.reshape(2, 6, 2, 6).transpose(0, 2, 1, 3) for each in (q, k, v))
        scores = q @ k.swapaxes(2, 3) / np.sqrt(6)
        scores = jnp.where(jnp.tril(jnp.ones((6, 6), bool)), scores, -1e30)
        return (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(2, 6, 12) @ block["out"]

    def decoder_training(parameters: Any, moments: Any, tokens: Any, kept: Any, step: Any) -> Any:
        def loss(parameters: Any) -> Any:
            x = parameters["table"][tokens[:, :-1]] * np.sqrt(12) + parameters["places"]
            for block, mask in zip(parameters["blocks"], kept, strict=True):
                x = x + attention(normed(x, block["scale"]), block) * mask / 0.9
                gate, value = jnp.split(normed(x, block["scale"]) @ block["up"], 2, -1)
                x = x + (jax.nn.silu(gate) * value) @ block["down"]
            logits = x @ parameters["table"].T
            top = jax.nn.logsumexp(logits, -1)
            chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
            counted = tokens[:, 1:] > 0
            total = jnp.where(counted, top - chosen + 1e-3 * top**2, 0.0).sum()
            return total / jnp.maximum(counted.sum(), 1)

        value, gradients = jax.value_and_grad(loss)(parameters)
        return value, *adam(jax, parameters, gradients, moments, step)

    def block(seed: int) -> Any:
        shapes = {"qkv": (12, 36), "out": (12, 12), "up": (12, 32), "down": (16, 12)}
        made = {name: normal(seed + n, *shape) for n, (name, shape) in enumerate(shapes.items())}
        return made | {"scale": 1 + 0.1 * normal(seed + 9, 12)}

    parameters = {"table": normal(1, 14, 12), "places": normal(2, 6, 12), "blocks": [block(10), block(30)]}
    moments = (
        jax.tree.map(lambda each: 0.1 * normal(6, *each.shape), parameters),
        jax.tree.map(lambda each: 0.1 * positive(7, *each.shape), parameters),
    )
    kept = (np.random.default_rng(8).random((2, 2, 6, 12)) < 0.9).astype(np.float32)
    return decoder_training, (parameters, moments, integers(3, 14, 2, 7), kept, np.int32(4))
