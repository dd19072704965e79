"""Programs of the reserve: optimizers, networks, decoding and metrics, and all programs for eight devices."""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluation.programs.devices import mapped
from evaluation.programs.program import Program, integers, normal, positive, registering

PROGRAMS: list[Program] = []
_program = registering(PROGRAMS)


def _bf16(jax: Any, array: Any) -> Any:
    return jax.numpy.asarray(array, jax.numpy.bfloat16)


@_program
def _lion_bf16(jax: Any) -> Any:
    """A gated network in bf16 and a step of Lion, whose momenta are stored in bf16 too."""
    jnp, tree = jax.numpy, jax.tree

    def lion_bf16(parameters: Any, momenta: Any, x: Any, labels: Any, rate: Any) -> Any:
        def loss(parameters: Any) -> Any:
            wide = x.astype(jnp.float32)
            normed = (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype)
            gate, value = jnp.split(normed @ parameters["up"], 2, -1)
            hidden = x + (jax.nn.silu(gate) * value) @ parameters["down"]
            logits = (hidden @ parameters["head"]).astype(jnp.float32)
            top = jax.nn.logsumexp(logits, -1)
            chosen = jnp.take_along_axis(logits, labels[:, None], 1)[:, 0]
            return (top - chosen + 1e-2 * top**2).mean()

        def update(p: Any, m: Any, g: Any) -> Any:
            direction = jnp.sign(0.9 * m.astype(jnp.float32) + 0.1 * g.astype(jnp.float32))
            wide = p.astype(jnp.float32)
            return (wide - rate * (direction + 0.1 * wide)).astype(p.dtype)

        value, gradients = jax.value_and_grad(loss)(parameters)
        kept = tree.map(lambda m, g: (0.95 * m + 0.05 * g).astype(m.dtype), momenta, gradients)
        return value, tree.map(update, parameters, momenta, gradients), kept

    shapes = {"up": (12, 32), "down": (16, 12), "head": (12, 7)}
    parameters = {name: _bf16(jax, normal(n, *shape)) for n, (name, shape) in enumerate(shapes.items())}
    momenta = {name: _bf16(jax, 0.3 * normal(10 + n, *shape)) for n, (name, shape) in enumerate(shapes.items())}
    return lion_bf16, (parameters, momenta, _bf16(jax, normal(5, 14, 12) * 3), integers(6, 7, 14), np.float32(0.01))


@_program(keeps=[2, 3, 4, 5])
def _shampoo(jax: Any) -> Any:
    """A step of Shampoo for two layers: preconditioners, whose inverse fourth roots are iterated for until they are exact."""
    jnp = jax.numpy

    def root(matrix: Any) -> Any:
        eye = jnp.eye(matrix.shape[0])
        matrix = matrix + 1e-3 * jnp.trace(matrix) * eye
        scale = 2.5 / jnp.sqrt((matrix**2).sum())

        def goes_on(state: Any) -> Any:
            return (jnp.abs(state[0] - eye).max() > 1e-3) & (state[2] < 25)

        def body(state: Any) -> Any:
            power, inverse, count = state
            factor = (5 * eye - power) / 4
            square = factor @ factor
            return square @ square @ power, inverse @ factor, count + 1

        _, inverse, count = jax.lax.while_loop(goes_on, body, (scale * matrix, scale**0.25 * eye, 0))
        return inverse, count

    def step(weights: Any, gradient: Any, left: Any, right: Any) -> Any:
        left, right = 0.9 * left + gradient @ gradient.T, 0.9 * right + gradient.T @ gradient
        (first, rounds), (second, others) = root(left), root(right)
        direction = first @ gradient @ second
        length = jnp.sqrt((gradient**2).sum() / ((direction**2).sum() + 1e-12))
        return weights - 0.5 * length * direction, left, right, rounds + others

    def shampoo(weights: Any, lefts: Any, rights: Any, x: Any, y: Any) -> Any:
        def loss(weights: Any) -> Any:
            wrong = jnp.abs(jnp.tanh(x @ weights[0]) @ weights[1] - y)
            return jnp.where(wrong < 1, 0.5 * wrong**2, wrong - 0.5).sum(-1).mean()

        value, gradients = jax.value_and_grad(loss)(weights)
        return value, [step(*given) for given in zip(weights, gradients, lefts, rights, strict=True)]

    lefts, rights = ([0.1 * half @ half.T for half in (normal(n, 8, 8), normal(n + 1, 6, 6))] for n in (2, 4))
    rights = rights[::-1]
    weights = [normal(6, 8, 6), normal(7, 6, 8)]
    return shampoo, (weights, lefts, rights, normal(8, 15, 8) * 3, normal(9, 15, 8))


@_program
def _wkv_bf16(jax: Any) -> Any:
    """Linear attention with decays, by a scan that keeps the largest exponent apart; and the gradient."""
    jnp = jax.numpy

    def shifted(x: Any, mix: Any) -> Any:
        before = jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])
        return mix * x + (1 - mix) * before

    def layer(x: Any, p: Any, decay: Any, bonus: Any) -> Any:
        r, k, v = (shifted(x, p["mix"][n]) @ p["rkv"][n] for n in range(3))
        fade = -jnp.exp(decay)

        def step(state: Any, given: Any) -> Any:
            above, below, top = state
            k, v = given
            now = jnp.maximum(top, bonus + k)
            old, new = jnp.exp(top - now), jnp.exp(bonus + k - now)
            read = (old * above + new * v) / (old * below + new)
            after = jnp.maximum(top + fade, k)
            old, new = jnp.exp(top + fade - after), jnp.exp(k - after)
            return (old * above + new * v, old * below + new, after), read

        zeros = jnp.zeros(x.shape[1:], jnp.float32)
        given = (k.astype(jnp.float32), v.astype(jnp.float32))
        state, read = jax.lax.scan(step, (zeros, zeros, zeros - 1e9), given)
        x = x + (jax.nn.sigmoid(r) * read.astype(x.dtype)) @ p["out"]
        hidden = jnp.square(jax.nn.relu(shifted(x, p["mix"][3]) @ p["up"]))
        return x + jax.nn.sigmoid(x @ p["gate"]) * (hidden @ p["down"]), state

    def wkv_bf16(x: Any, p: Any, decay: Any, bonus: Any, target: Any) -> Any:
        def loss(p: Any, decay: Any) -> Any:
            hidden, state = layer(x, p, decay, bonus)
            return ((hidden.astype(jnp.float32) - target) ** 2).mean(), state

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(p, decay)

    shapes = {"rkv": (3, 8, 8), "out": (8, 8), "up": (8, 16), "gate": (8, 8), "down": (16, 8)}
    weights = {name: _bf16(jax, normal(n, *shape)) for n, (name, shape) in enumerate(shapes.items())}
    weights["mix"] = _bf16(jax, positive(8, 4, 8))
    x = _bf16(jax, normal(9, 12, 2, 8) * 3)
    return wkv_bf16, (x, weights, normal(10, 8), normal(11, 8), normal(12, 12, 2, 8))


@_program
def _radiance_field_bf16(jax: Any) -> Any:
    """Points along rays in sines and cosines, a network in bf16, light summed up along the rays, and the gradient."""
    jnp = jax.numpy

    def encoded(places: Any) -> Any:
        angles = (places[..., None] * 2.0 ** jnp.arange(3)).reshape(*places.shape[:-1], 9)
        return jnp.concatenate([places, jnp.sin(angles), jnp.cos(angles)], -1)

    def radiance_field_bf16(weights: Any, origins: Any, directions: Any, colours: Any) -> Any:
        directions = directions / jnp.sqrt((directions**2).sum(-1, keepdims=True) + 1e-6)
        depths = jnp.linspace(0.5, 3.0, 6)
        places = origins[:, None] + depths[:, None] * directions[:, None]

        def loss(weights: Any) -> Any:
            hidden = jax.nn.relu(encoded(places).astype(jnp.bfloat16) @ weights[0])
            hidden = jax.nn.relu(hidden @ weights[1]) + hidden
            seen = jnp.broadcast_to(directions[:, None], places.shape).astype(jnp.bfloat16)
            out = (jnp.concatenate([hidden, seen], -1) @ weights[2]).astype(jnp.float32)
            opaque = 1 - jnp.exp(-jax.nn.softplus(out[..., 3] - 0.5) * 0.5)
            clear = jnp.cumprod(1 - opaque + 1e-6, 1)
            share = opaque * jnp.concatenate([jnp.ones_like(clear[:, :1]), clear[:, :-1]], 1)
            light = (share[..., None] * jax.nn.sigmoid(out[..., :3])).sum(1)
            return ((light - colours) ** 2).mean(), (light, (share * depths).sum(1))

        return jax.value_and_grad(loss, has_aux=True)(weights)

    weights = tuple(_bf16(jax, normal(n, *shape)) for n, shape in enumerate(((21, 16), (16, 16), (19, 4))))
    return radiance_field_bf16, (weights, normal(5, 7, 3), normal(6, 7, 3), positive(7, 7, 3))


@_program
def _beam_search(jax: Any) -> Any:
    """The best three continuations, grown by a token at a time until the best of them have ended."""
    jnp, lax = jax.numpy, jax.lax

    def beam_search(table: Any, w: Any, out: Any, start: Any) -> Any:
        def goes_on(state: Any) -> Any:
            _, _, ended, _, place = state
            return jnp.logical_not(ended.all()) & (place < 10)

        def body(state: Any) -> Any:
            hidden, tokens, ended, scores, place = state
            last = lax.dynamic_index_in_dim(tokens, place - 1, 1, keepdims=False)
            hidden = jnp.tanh(hidden @ w + table[last])
            logits = (hidden @ out * 2).at[:, 0].add(0.5 * place - 2)
            gained = jnp.where(ended[:, None], jnp.where(jnp.arange(9) == 0, 0.0, -1e9), jax.nn.log_softmax(logits))
            scores, chosen = lax.top_k((scores[:, None] + gained).reshape(-1), 3)
            parent, token = chosen // 9, chosen % 9
            tokens = lax.dynamic_update_slice(tokens[parent], token[:, None], (0, place))
            return hidden[parent], tokens, ended[parent] | (token == 0), scores, place + 1

        tokens = jnp.zeros((3, 10), jnp.int32).at[:, 0].set(start)
        state = (jnp.zeros((3, 8)), tokens, jnp.zeros(3, bool), jnp.array([0.0, -1e9, -1e9]), 1)
        _, tokens, ended, scores, place = lax.while_loop(goes_on, body, state)
        lengths = 1 + (tokens > 0).sum(1)
        ranked = scores / ((5 + lengths.astype(jnp.float32)) / 6) ** 0.6
        order = jnp.argsort(-ranked)
        return tokens[order], ranked[order], ended[order], place

    return beam_search, (normal(1, 9, 8) * 3, normal(2, 8, 8) * 2, normal(3, 8, 9), np.int32(4))


@_program(keeps=[1])
def _ranking_metrics(jax: Any) -> Any:
    """The area under a curve with ties, average precision, discounted gain, calibration and quantiles, by sorting."""
    jnp, lax = jax.numpy, jax.lax

    def ranking_metrics(scores: Any, grades: Any, logits: Any) -> Any:
        relevant = (grades > 1).astype(jnp.float32)
        _, _, gains, hits = lax.sort((-scores, jnp.arange(20), grades.astype(jnp.float32), relevant), num_keys=2)
        found = jnp.cumsum(hits)
        precision = (found / (1 + jnp.arange(20)) * hits).sum() / jnp.maximum(hits.sum(), 1)
        discounts = 1 / jnp.log2(2.0 + jnp.arange(20))
        best = -jnp.sort(-grades).astype(jnp.float32)
        gain = ((2**gains - 1) * discounts)[:8].sum() / ((2**best - 1) * discounts)[:8].sum()
        ordered = jnp.sort(scores)
        ranks = (jnp.searchsorted(ordered, scores) + jnp.searchsorted(ordered, scores, side="right") + 1) / 2
        count = relevant.sum()
        area = ((ranks * relevant).sum() - count * (count + 1) / 2) / jnp.maximum(count * (20 - count), 1)
        sure = jax.nn.sigmoid(logits)
        bins = jnp.clip((sure * 5).astype(jnp.int32), 0, 4)
        sizes = jnp.zeros(5).at[bins].add(1.0)
        gap = jnp.abs(jnp.zeros(5).at[bins].add(sure - relevant)).sum() / sizes.sum()
        agreeing = jnp.sign(scores[:, None] - scores) * jnp.sign(grades[:, None] - grades)
        kendall = agreeing.sum() / (20 * 19)
        return precision, gain, area, gap, sizes, kendall, jnp.quantile(scores, jnp.array([0.1, 0.5, 0.85]))

    scores = np.round(normal(1, 20) * 4) / 4
    return ranking_metrics, (scores.astype(np.float32), integers(2, 4, 20), normal(3, 20) * 2)


@_program
def _quantized_convnet(jax: Any) -> Any:
    """Convolutions of eight-bit integers, scaled by integers and shifts, pooled, and dense layers after them."""
    jnp, lax = jax.numpy, jax.lax
    numbers = ("NHWC", "HWIO", "NHWC")

    def scaled(total: Any, factor: Any, shift: int) -> Any:
        half = 1 << (shift - 1)
        moved = lax.shift_right_arithmetic(total * factor + half, jnp.int32(shift))
        return jnp.clip(moved, -128, 127).astype(jnp.int8)

    def convolved(x: Any, kernel: Any, stride: int, groups: int) -> Any:
        return lax.conv_general_dilated(
            x,
            kernel,
            (stride, stride),
            "SAME",
            dimension_numbers=numbers,
            feature_group_count=groups,
            preferred_element_type=jnp.int32,
        )

    def quantized_convnet(image: Any, first: Any, deep: Any, dense: Any, bias: Any, factors: Any) -> Any:
        step = jnp.maximum(jnp.abs(image).max(), 1e-6) / 127
        x = jnp.clip(jnp.round(image / step), -127, 127).astype(jnp.int8)
        hidden = jnp.maximum(scaled(convolved(x, first, 1, 1) + bias, factors[0], 12), 0)
        pooled = lax.reduce_window(hidden, jnp.int8(-128), lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        added = scaled(convolved(pooled, deep, 1, 4), factors[1], 10).astype(jnp.int32) + pooled
        hidden = jnp.clip(added, 0, 127).astype(jnp.int8)
        means = (hidden.astype(jnp.int32).sum((1, 2)) + 8) // 16
        logits = jnp.matmul(means.astype(jnp.int8), dense, preferred_element_type=jnp.int32)
        return logits, jax.nn.log_softmax(logits.astype(jnp.float32) * step * 0.02), hidden

    kernels = [(integers(n, 255, *shape) - 127).astype(np.int8) for n, shape in ((1, (3, 3, 2, 4)), (2, (3, 3, 1, 4)))]
    dense = (integers(3, 255, 4, 6) - 127).astype(np.int8)
    arrays = (normal(4, 2, 8, 8, 2), *kernels, dense, integers(5, 900, 4) - 450, np.array([9, 4], np.int32))
    return quantized_convnet, arrays


@_program(specs=(("d",), ("m",), ("m",), ("d",)))
def _pipeline_parallel(jax: Any) -> Any:
    """Each column holds a stage of a network; batches pass through the stages one after another."""
    jnp, lax = jax.numpy, jax.lax
    onwards = [(each, (each + 1) % 4) for each in range(4)]

    def on_device(x: Any, weights: Any, biases: Any, targets: Any) -> Any:
        stage = lax.axis_index("m")

        def step(state: Any, time: Any) -> Any:
            received, written = state
            entering = lax.dynamic_index_in_dim(x[0], jnp.minimum(time, 2), 0, keepdims=False)
            given = jnp.where(stage == 0, entering, received)
            left = given + jnp.tanh(given @ weights[0] + biases[0])
            place = jnp.maximum(time - 3, 0)
            is_last = (stage == 3) & (time >= 3)
            old = lax.dynamic_index_in_dim(written, place, 0, keepdims=False)
            written = lax.dynamic_update_index_in_dim(written, jnp.where(is_last, left, old), place, 0)
            return (lax.ppermute(left, "m", onwards), written), (left**2).mean()

        start = (jnp.zeros((4, 6)), jnp.zeros((3, 4, 6)))
        (_, written), sizes = lax.scan(step, start, jnp.arange(6))
        out = lax.psum(written, "m")
        loss = lax.pmean(((out - targets[0]) ** 2).mean(), "d")
        return out[None], loss, lax.pmax(sizes.max(), ("d", "m"))

    function = mapped(jax, on_device, [("d",), ("m",), ("m",), ("d",)], ("d",), (), ())

    def pipeline_parallel(x: Any, weights: Any, biases: Any, targets: Any) -> Any:
        return function(x, weights, biases, targets)

    return pipeline_parallel, (normal(1, 2, 3, 4, 6) * 2, normal(2, 4, 6, 6), normal(3, 4, 6), normal(4, 2, 3, 4, 6))


@_program(specs=(("d",), (None, "m"), ("m",), (None, "m"), ("m",), (None,)))
def _tensor_parallel_bf16(jax: Any) -> Any:
    """XLA's partitioner shards a block's heads and hidden units over a row, and its batch over the rows; in bf16."""
    jnp = jax.numpy

    def normed(x: Any, scale: Any) -> Any:
        wide = x.astype(jnp.float32)
        return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale

    def tensor_parallel_bf16(x: Any, qkv: Any, out: Any, up: Any, down: Any, scale: Any) -> Any:
        def loss(out: Any, down: Any) -> Any:
            heads = (normed(x, scale) @ qkv).reshape(4, 6, 4, 3, 4)
            q, k, v = (heads[:, :, :, n].transpose(0, 2, 1, 3) for n in range(3))
            scores = (q @ k.swapaxes(2, 3)).astype(jnp.float32) / 2
            scores = jnp.where(jnp.arange(6)[:, None] >= jnp.arange(6), scores, -1e30)
            read = (jax.nn.softmax(scores).astype(x.dtype) @ v).transpose(0, 2, 1, 3).reshape(4, 6, 16)
            middle = x + read @ out
            end = middle + jax.nn.gelu(normed(middle, scale) @ up) @ down
            return (end.astype(jnp.float32) ** 2).mean(), end

        (value, end), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(out, down)
        return value, end, gradients

    shapes = ((4, 6, 8), (8, 48), (16, 8), (8, 32), (32, 8))
    arrays = [_bf16(jax, normal(n, *shape) * (3 if n == 0 else 1)) for n, shape in enumerate(shapes)]
    return tensor_parallel_bf16, (*arrays, _bf16(jax, 1 + 0.1 * normal(9, 8)))


@_program(specs=((("d", "m"),), (None,), (("d", "m"),)))
def _sharded_power(jax: Any) -> Any:
    """The largest eigenvalue of a matrix whose rows are on eight devices, iterated for until its vector stands still."""
    jnp, lax = jax.numpy, jax.lax
    every = ("d", "m")

    def on_device(rows: Any, start: Any, right: Any) -> Any:
        def body(state: Any) -> Any:
            vector, _, _, count = state
            part = rows @ vector
            length = jnp.sqrt(lax.psum((part**2).sum(), every))
            new = lax.all_gather(part / length, every, tiled=True)
            return new, length, jnp.sqrt(((new - vector) ** 2).sum()), count + 1

        start = start / jnp.sqrt((start**2).sum())
        state = (start, jnp.float32(0), jnp.float32(1), 0)
        vector, value, _, count = lax.while_loop(lambda s: (s[2] > 1e-3) & (s[3] < 40), body, state)
        mine = lax.dynamic_slice(vector, (lax.axis_index(every) * 2,), (2,))
        residual = lax.pmax(jnp.abs(rows @ vector - value * mine).max(), every)
        along = lax.psum((mine * right).sum(), every)
        outer = lax.psum_scatter(rows.T @ right, every, scatter_dimension=0, tiled=True)
        return value, mine, residual, right - along * mine, outer, count

    function = mapped(jax, on_device, [(every,), (None,), (every,)], (), (every,), (), (every,), (every,), ())

    def sharded_power(rows: Any, start: Any, right: Any) -> Any:
        return function(rows, start, right)

    half = normal(1, 16, 16)
    matrix = half @ half.T + np.outer(positive(2, 16), positive(2, 16))
    return sharded_power, (matrix.astype(np.float32), positive(3, 16), normal(4, 16))
