"""Ordinary programs of 500 to 3000 instructions, on which the time of `diff` is measured: most are training steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from evaluation.programs.learning import adam
from evaluation.programs.program import Program, integers, normal, positive, registering

PROGRAMS: list[Program] = []
_program = registering(PROGRAMS)


def trained(jax: Any, loss: Callable[..., Any], parameters: Any, *data: Any) -> Any:
    """A step of Adam on a loss of parameters and data, and its arguments."""

    def step(parameters: Any, moments: Any, number: Any, *data: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, *data)
        return value, *adam(jax, parameters, gradients, moments, number)

    moments = (
        jax.tree.map(lambda each: 0.1 * normal(6, *each.shape), parameters),
        jax.tree.map(lambda each: 0.1 * positive(7, *each.shape), parameters),
    )
    return step, (parameters, moments, np.int32(3), *data)


def layers(seed: int, *sizes: int) -> list[tuple[Any, Any]]:
    """The weights and biases of dense layers."""
    pairs = pairwise(sizes)
    return [(normal(seed + n, a, b), 0.1 * normal(seed + 50 + n, b)) for n, (a, b) in enumerate(pairs)]


def dense(layers: Sequence[tuple[Any, Any]], x: Any, activation: Callable[[Any], Any]) -> Any:
    for weights, bias in layers[:-1]:
        x = activation(x @ weights + bias)
    return x @ layers[-1][0] + layers[-1][1]


def attention(jax: Any, block: Any, x: Any, heads: int, mask: Any) -> Any:
    """Attention of several heads within a sequence [time, features]."""
    jnp = jax.numpy
    q, k, v = (each.reshape(len(x), heads, -1) for each in jnp.split(x @ block["qkv"], 3, axis=-1))
    scores = jnp.einsum("qhd,khd->hqk", q, k) / np.float32(np.sqrt(q.shape[-1]))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
    return jnp.einsum("hqk,khd->qhd", weights, v).reshape(x.shape) @ block["out"]


def normed(jax: Any, x: Any, scale: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale


@_program
def _ppo_step(jax: Any) -> Any:
    """A rollout in a small world by a scan, advantages by another, and a step of PPO."""
    jnp, lax = jax.numpy, jax.lax

    def world(state: Any, action: Any) -> Any:
        push = jnp.where(action == 1, 0.3, -0.3)[:, None]
        speed = 0.95 * state[:, 2:] + push * jnp.cos(state[:, :2])
        place = state[:, :2] + 0.1 * speed
        return jnp.concatenate([place, speed], 1), 1 - jnp.square(place).sum(1)

    def loss(parameters: Any, start: Any, noise: Any, old: Any) -> Any:
        def move(state: Any, noise: Any) -> Any:
            logits = dense(parameters["actor"], state, jnp.tanh)
            action = jnp.argmax(logits + noise, -1)
            following, reward = world(state, action)
            return following, (state, action, reward)

        last, (states, actions, rewards) = lax.scan(move, start, noise)
        states, actions, rewards = map(lax.stop_gradient, (states, actions, rewards))
        values = dense(parameters["critic"], states, jnp.tanh)[..., 0]
        after = dense(parameters["critic"], last, jnp.tanh)[..., 0]

        def back(carry: Any, step: Any) -> Any:
            advantage, following = carry
            reward, value = step
            advantage = reward + 0.99 * following - value + 0.95 * advantage
            return (advantage, value), advantage

        fixed = lax.stop_gradient(values)
        first = jnp.zeros_like(after), lax.stop_gradient(after)
        _, advantages = lax.scan(back, first, (rewards, fixed), reverse=True)
        targets = advantages + fixed
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
        logs = jax.nn.log_softmax(dense(parameters["actor"], states, jnp.tanh))
        chosen = jnp.take_along_axis(logs, actions[..., None], -1)[..., 0]
        ratio = jnp.exp(chosen - old)
        clipped = jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages)
        entropy = -(jnp.exp(logs) * logs).sum(-1)
        return jnp.square(values - targets).mean() / 2 - clipped.mean() - 0.01 * entropy.mean()

    parameters = {"actor": layers(10, 4, 16, 16, 2), "critic": layers(20, 4, 16, 16, 1)}
    return trained(jax, loss, parameters, normal(1, 8, 4), normal(2, 16, 8, 2), -positive(3, 16, 8))


@_program
def _ode_training(jax: Any) -> Any:
    """A field that a network gives, integrated by Runge and Kutta's method in a scan, and trained through it."""
    jnp, lax = jax.numpy, jax.lax

    def loss(parameters: Any, start: Any, targets: Any) -> Any:
        def field(state: Any, time: Any) -> Any:
            return dense(parameters, jnp.concatenate([state, jnp.sin(time)[None]]), jnp.tanh)

        def step(state: Any, time: Any) -> Any:
            width = jnp.float32(0.1)
            k1 = field(state, time)
            k2 = field(state + width / 2 * k1, time + width / 2)
            k3 = field(state + width / 2 * k2, time + width / 2)
            k4 = field(state + width * k3, time + width)
            state = state + width / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            return state, state

        _, states = lax.scan(step, start, jnp.arange(12, dtype=jnp.float32) * 0.1)
        return jnp.square(states - targets).mean()

    return trained(jax, loss, layers(10, 4, 16, 3), normal(1, 3), normal(2, 12, 3))


@_program
def _ode_solver(jax: Any) -> Any:
    """Dormand and Prince's method with steps that adapt, of three bodies; and the energy along the way."""
    jnp, lax = jax.numpy, jax.lax
    rows = (
        (1 / 5,),
        (3 / 40, 9 / 40),
        (44 / 45, -56 / 15, 32 / 9),
        (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
        (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
        (35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
    )
    errors = (71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)

    def ode_solver(places: Any, speeds: Any, masses: Any) -> Any:
        def field(state: Any) -> Any:
            places, speeds = state
            gaps = places[None] - places[:, None]
            distances = jnp.square(gaps).sum(-1) + 0.05
            forces = (masses[None, :, None] * gaps * distances[..., None] ** -1.5).sum(1)
            return speeds, forces - 0.01 * speeds

        def weighted(slopes: Any, factors: Any) -> Any:
            return [sum(f * slope[part] for f, slope in zip(factors, slopes, strict=False) if f) for part in (0, 1)]

        def attempt(carry: Any) -> Any:
            state, time, width, energies, count = carry
            slopes = [field(state)]
            made = state
            for row in rows:
                made = tuple(old + width * more for old, more in zip(state, weighted(slopes, row), strict=True))
                slopes.append(field(made))
            off = [width * each for each in weighted(slopes, errors)]
            error = jnp.sqrt(
                sum(jnp.square(each / (1e-3 + 1e-3 * jnp.abs(old))).mean() for each, old in zip(off, made, strict=True))
            )
            is_kept = error < 1
            state = tuple(jnp.where(is_kept, new, old) for new, old in zip(made, state, strict=True))
            time = jnp.where(is_kept, time + width, time)
            width = jnp.minimum(width * jnp.clip(0.9 * (error + 1e-6) ** -0.2, 0.2, 5.0), 1.5 - time)
            energy = (masses * jnp.square(state[1]).sum(-1)).sum() / 2
            return state, time, width, energies.at[count].set(energy), count + 1

        def goes_on(carry: Any) -> Any:
            return (carry[1] < 1.4999) & (carry[4] < 40)

        start = (places, speeds), jnp.float32(0), jnp.float32(0.05), jnp.zeros(40), jnp.int32(0)
        return lax.while_loop(goes_on, attempt, start)

    return ode_solver, (normal(1, 3, 2) * 2, normal(2, 3, 2) * 0.3, positive(3, 3))


@_program
def _language_model_step(jax: Any) -> Any:
    """A step of a decoder of two layers with tied embeddings."""
    jnp = jax.numpy

    def loss(parameters: Any, tokens: Any, places: Any) -> Any:
        mask = jnp.tril(jnp.ones((12, 12), bool))

        def one(tokens: Any) -> Any:
            x = parameters["tokens"][tokens[:-1]] + parameters["places"][places]
            for block in parameters["blocks"]:
                x = x + attention(jax, block, normed(jax, x, block["first"]), 2, mask)
                hidden = jax.nn.gelu(normed(jax, x, block["second"]) @ block["up"])
                x = x + hidden @ block["down"]
            logs = jax.nn.log_softmax(normed(jax, x, parameters["last"]) @ parameters["tokens"].T)
            return -jnp.take_along_axis(logs, tokens[1:, None], -1).mean()

        return jax.vmap(one)(tokens).mean()

    blocks = [
        {
            "qkv": normal(n, 16, 48),
            "out": normal(n + 1, 16, 16),
            "first": 1 + 0.1 * normal(n + 2, 16),
            "second": 1 + 0.1 * normal(n + 3, 16),
            "up": normal(n + 4, 16, 32),
            "down": normal(n + 5, 32, 16),
        }
        for n in (10, 20)
    ]
    parameters = {"tokens": normal(1, 32, 16), "places": normal(2, 12, 16), "blocks": blocks, "last": 1 + normal(3, 16)}
    return trained(jax, loss, parameters, integers(4, 32, 3, 13), np.arange(12, dtype=np.int32))


@_program
def _autoencoder_step(jax: Any) -> Any:
    """A variational autoencoder, with the noise as an input."""
    jnp = jax.numpy

    def loss(parameters: Any, x: Any, noise: Any) -> Any:
        mean, log = jnp.split(dense(parameters["encoder"], x, jax.nn.silu), 2, axis=-1)
        code = mean + jnp.exp(log / 2) * noise
        logits = dense(parameters["decoder"], code, jax.nn.silu)
        likelihood = (x * jax.nn.log_sigmoid(logits) + (1 - x) * jax.nn.log_sigmoid(-logits)).sum(-1)
        divergence = (jnp.exp(log) + mean**2 - 1 - log).sum(-1) / 2
        return (divergence - likelihood).mean()

    parameters = {"encoder": layers(10, 20, 24, 24, 8), "decoder": layers(20, 4, 24, 24, 20)}
    return trained(jax, loss, parameters, positive(1, 10, 20), normal(2, 10, 4))


@_program
def _adversarial_step(jax: Any) -> Any:
    """A generator and a critic with a penalty on its gradient, each with a step of Adam."""
    jnp = jax.numpy

    def critic_loss(critic: Any, generator: Any, real: Any, noise: Any, mix: Any) -> Any:
        made = dense(generator, noise, jax.nn.relu)
        between = mix * real + (1 - mix) * made

        def judged(x: Any) -> Any:
            return dense(critic, x, jax.nn.softplus)[..., 0]

        slopes = jax.vmap(jax.grad(judged))(between)
        penalty = jnp.square(jnp.sqrt(jnp.square(slopes).sum(-1) + 1e-6) - 1).mean()
        return judged(made).mean() - judged(real).mean() + 10 * penalty

    def adversarial_step(critic: Any, generator: Any, moments: Any, real: Any, noise: Any, mix: Any) -> Any:
        value, slopes = jax.value_and_grad(critic_loss)(critic, generator, real, noise, mix)
        critic, *critic_moments = adam(jax, critic, slopes, moments[0], np.int32(4))

        def loss(generator: Any) -> Any:
            return -dense(critic, dense(generator, noise, jax.nn.relu), jax.nn.softplus).mean()

        other, slopes = jax.value_and_grad(loss)(generator)
        return value, other, critic, critic_moments, adam(jax, generator, slopes, moments[1], np.int32(4))

    critic, generator = layers(10, 6, 16, 16, 1), layers(20, 4, 16, 6)
    moments = [
        tuple(jax.tree.map(lambda each, k=kind: 0.1 * k(6, *each.shape), net) for kind in (normal, positive))
        for net in (critic, generator)
    ]
    return adversarial_step, (critic, generator, moments, normal(1, 8, 6), normal(2, 8, 4), positive(3, 8, 1))


@_program
def _recurrent_step(jax: Any) -> Any:
    """A language model of two LSTM layers in a scan."""
    jnp, lax = jax.numpy, jax.lax

    def loss(parameters: Any, tokens: Any) -> Any:
        def cell(layer: Any, state: Any, x: Any) -> Any:
            hidden, memory = state
            gates = x @ layer[0] + hidden @ layer[1] + layer[2]
            i, f, g, o = jnp.split(gates, 4, axis=-1)
            memory = jax.nn.sigmoid(f + 1) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
            return jax.nn.sigmoid(o) * jnp.tanh(memory), memory

        def step(states: Any, tokens: Any) -> Any:
            x, made = parameters["tokens"][tokens[0]], []
            for layer, state in zip(parameters["layers"], states, strict=True):
                made.append(cell(layer, state, x))
                x = made[-1][0]
            logs = jax.nn.log_softmax(x @ parameters["head"])
            return made, -jnp.take_along_axis(logs, tokens[1][:, None], -1)

        start = [(jnp.zeros((4, 12)), jnp.zeros((4, 12)))] * 2
        _, losses = lax.scan(step, start, (tokens[:-1], tokens[1:]))
        return losses.mean()

    cells = [(normal(n, 12, 48), normal(n + 1, 12, 48), 0.1 * normal(n + 2, 48)) for n in (10, 20)]
    parameters = {"tokens": normal(1, 20, 12), "layers": cells, "head": normal(2, 12, 20)}
    return trained(jax, loss, parameters, integers(3, 20, 11, 4))


@_program
def _image_step(jax: Any) -> Any:
    """A convolutional network with batch norm and two residual blocks."""
    jnp, lax = jax.numpy, jax.lax

    def convolved(x: Any, kernel: Any, stride: int = 1) -> Any:
        return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def over_batch(x: Any, scale: Any, bias: Any) -> Any:
        mean = x.mean((0, 1, 2))
        variance = jnp.square(x - mean).mean((0, 1, 2))
        return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + bias

    def loss(parameters: Any, x: Any, labels: Any) -> Any:
        x = convolved(x, parameters["stem"], 2)
        for block in parameters["blocks"]:
            y = jax.nn.relu(over_batch(x, *block["first"]))
            y = jax.nn.relu(over_batch(convolved(y, block["in"]), *block["second"]))
            x = x + convolved(y, block["out"])
        logs = jax.nn.log_softmax(jax.nn.relu(x).mean((1, 2)) @ parameters["head"])
        return -jnp.take_along_axis(logs, labels[:, None], -1).mean() + 1e-4 * jnp.square(parameters["head"]).sum()

    def norm(seed: int) -> Any:
        return 1 + 0.1 * normal(seed, 6), 0.1 * normal(seed + 1, 6)

    blocks = [
        {
            "first": norm(n),
            "second": norm(n + 2),
            "in": normal(n + 4, 3, 3, 6, 6) / 3,
            "out": normal(n + 5, 3, 3, 6, 6) / 3,
        }
        for n in (10, 20)
    ]
    parameters = {"stem": normal(1, 3, 3, 3, 6), "blocks": blocks, "head": normal(2, 6, 5)}
    return trained(jax, loss, parameters, normal(3, 4, 12, 12, 3), integers(4, 5, 4))


@_program
def _value_learning_step(jax: Any) -> Any:
    """Double Q-learning with a target network, a Huber loss and priorities."""
    jnp = jax.numpy

    def loss(
        parameters: Any, target: Any, states: Any, actions: Any, rewards: Any, following: Any, weights: Any
    ) -> Any:
        def dueling(net: Any, x: Any) -> Any:
            hidden = dense(net["body"], x, jax.nn.elu)
            advantages = dense(net["advantages"], hidden, jax.nn.elu)
            return dense(net["values"], hidden, jax.nn.elu) + advantages - advantages.mean(-1, keepdims=True)

        best = jnp.argmax(dueling(parameters, following), -1)
        later = jnp.take_along_axis(dueling(target, following), best[:, None], -1)[:, 0]
        wanted = jax.lax.stop_gradient(rewards + 0.97 * later)
        chosen = jnp.take_along_axis(dueling(parameters, states), actions[:, None], -1)[:, 0]
        gap = jnp.abs(wanted - chosen)
        return (weights * jnp.where(gap < 1, gap**2 / 2, gap - 0.5)).mean()

    def net(seed: int) -> Any:
        return {
            "body": layers(seed, 6, 16, 16),
            "values": layers(seed + 5, 16, 8, 1),
            "advantages": layers(seed + 8, 16, 8, 4),
        }

    data = normal(1, 16, 6), integers(2, 4, 16), normal(3, 16), normal(4, 16, 6), positive(5, 16)
    return trained(jax, loss, net(10), net(30), *data)


@_program
def _flow_step(jax: Any) -> Any:
    """A normalizing flow of four couplings with learned scales, by its likelihood."""
    jnp = jax.numpy

    def loss(parameters: Any, x: Any) -> Any:
        volume = jnp.zeros(len(x))
        for number, (net, scale) in enumerate(parameters):
            x = (x + scale[1]) * jnp.exp(scale[0])
            volume = volume + scale[0].sum()
            kept, changed = jnp.split(x if number % 2 else x[:, ::-1], 2, axis=-1)
            log, shift = jnp.split(dense(net, kept, jnp.tanh), 2, axis=-1)
            log = 2 * jnp.tanh(log / 2)
            x = jnp.concatenate([kept, changed * jnp.exp(log) + shift], -1)
            volume = volume + log.sum(-1)
        return (jnp.square(x).sum(-1) / 2 - volume).mean()

    parameters = [(layers(n, 3, 12, 6), 0.1 * normal(n + 8, 2, 6)) for n in (10, 20, 30, 40)]
    return trained(jax, loss, parameters, normal(1, 10, 6))
