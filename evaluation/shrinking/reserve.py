"""More JAX programs at two sizes, of other fields: images, control, simulation, search, graphs.

They were written after shrinking was, to find out how much of it holds for programs that it had not seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluation.shrinking.programs import Program, registering

RESERVE: dict[str, Program] = {}
_program = registering(RESERVE)


@_program({"b": 16, "n": 64, "c": 96, "t": 128, "g": 8}, {"b": 4, "n": 16, "c": 24, "t": 32, "g": 8})
def gradient_of_a_diffusion_network(b: int, n: int, c: int, t: int, g: int) -> Any:
    """Noise is predicted by a network that halves the image, with a skip connection and an embedded time."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def convolution(x: Any, w: Any, stride: int = 1) -> Any:
        return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def group_norm(x: Any) -> Any:
        groups = x.reshape(*x.shape[:3], g, -1)
        mean = groups.mean((1, 2, 4), keepdims=True)
        variance = groups.var((1, 2, 4), keepdims=True)
        return ((groups - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape)

    def loss(w: Any, images: Any, noise: Any, times: Any) -> Any:
        frequencies = jnp.exp(-jnp.log(10000.0) * jnp.arange(t // 2) / (t // 2))
        angles = times[:, None] * frequencies
        embedded = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1) @ w[0]
        alpha = jnp.cos(times * 0.5 * np.pi)[:, None, None, None]
        noisy = alpha * images + jnp.sqrt(1 - alpha**2) * noise
        wide = jax.nn.silu(group_norm(convolution(noisy, w[1])) + embedded[:, None, None])
        narrow = jax.nn.silu(group_norm(convolution(wide, w[2], 2)))
        again = jax.image.resize(narrow, (b, n, n, 2 * c), "nearest")
        return ((convolution(jnp.concatenate([wide, again], -1), w[3]) - noise) ** 2).mean()

    def step(w0: Any, w1: Any, w2: Any, w3: Any, images: Any, noise: Any, times: Any) -> Any:
        return jax.value_and_grad(loss)((w0, w1, w2, w3), images, noise, times)

    weights = (t, c), (3, 3, 3, c), (3, 3, c, 2 * c), (3, 3, 3 * c, 3)
    return step, (*weights, (b, n, n, 3), (b, n, n, 3), (b,))


@_program({"b": 8, "t": 64, "d": 96, "n": 16}, {"b": 2, "t": 64, "d": 12, "n": 16})
def state_space_model(b: int, t: int, d: int, n: int) -> Any:
    """A diagonal recurrence by an associative scan."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def function(x: Any, rates: Any, steps: Any, into: Any, out: Any) -> Any:
        delta = jax.nn.softplus(x @ steps)
        decay = jnp.exp(-delta[..., None] * jnp.exp(rates))
        driven = delta[..., None] * x[..., None] * (x @ into)[:, :, None]
        _, states = lax.associative_scan(
            lambda one, two: (one[0] * two[0], one[1] * two[0] + two[1]), (decay, driven), axis=1
        )
        return (states * (x @ out)[:, :, None]).sum(-1)

    return function, ((b, t, d), (d, n), (d, d), (d, n), (d, n))


@_program({"b": 24, "t": 80, "v": 512, "d": 192}, {"b": 4, "t": 48, "v": 64, "d": 64})
def training_of_a_gated_recurrent_network(b: int, t: int, v: int, d: int) -> Any:
    """Gradient descent with momentum, gradients clipped by their norm."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def loss(w: Any, words: Any) -> Any:
        table, into, inner, out = w

        def cell(h: Any, x: Any) -> Any:
            r, z = jnp.split(jax.nn.sigmoid(x @ into[:, : 2 * d] + h @ inner[:, : 2 * d]), 2, -1)
            n = jnp.tanh(x @ into[:, 2 * d :] + (r * h) @ inner[:, 2 * d :])
            h = (1 - z) * n + z * h
            return h, h

        _, states = lax.scan(cell, jnp.zeros((b, d)), table[words[:, :-1]].swapaxes(0, 1))
        losses = -jnp.take_along_axis(jax.nn.log_softmax(states @ out), words[:, 1:].T[..., None], -1)
        return losses.mean()

    def step(table: Any, into: Any, inner: Any, out: Any, *rest: Any) -> Any:
        *momentum, words = rest
        value, gradients = jax.value_and_grad(loss)((table, into, inner, out), words)
        norm = jnp.sqrt(sum((g**2).sum() for g in gradients))
        scale = jnp.minimum(1.0, 1.0 / norm)
        momentum = [0.9 * m + scale * g for m, g in zip(momentum, gradients, strict=True)]
        return value, [w - 0.1 * m for w, m in zip((table, into, inner, out), momentum, strict=True)], momentum

    weights = (v, d), (d, 3 * d), (d, 3 * d), (d, v)
    return step, (*weights, *weights, ("i", b, t))


@_program({"t": 256, "n": 192, "m": 5}, {"t": 32, "n": 64, "m": 5})
def kalman_filter(t: int, n: int, m: int) -> Any:
    """Observations are taken in one by one, so that no matrix is inverted; the log likelihood is a result too."""
    import jax.numpy as jnp
    from jax import lax

    def function(observed: Any, transition: Any, observation: Any) -> Any:
        moves = 0.9 * transition / n

        def take(state: Any, pair: Any) -> Any:
            mean, covariance, likelihood = state
            value, row = pair
            spread = row @ covariance @ row + 0.5
            gain = covariance @ row / spread
            error = value - row @ mean
            likelihood = likelihood - 0.5 * (error**2 / spread + jnp.log(2 * np.pi * spread))
            return (mean + gain * error, covariance - jnp.outer(gain, row @ covariance), likelihood), None

        def step(state: Any, values: Any) -> Any:
            mean, covariance, likelihood = state
            predicted = moves @ mean, moves @ covariance @ moves.T + 0.1 * jnp.eye(n), likelihood
            state, _ = lax.scan(take, predicted, (values, observation))
            return state, state[0]

        (_, _, likelihood), means = lax.scan(step, (jnp.zeros(n), jnp.eye(n), 0.0), observed)
        return means, likelihood / t

    return function, ((t, m), (n, n), (m, n))


@_program({"n": 4096, "k": 16, "d": 24}, {"n": 256, "k": 16, "d": 6})
def k_means(n: int, k: int, d: int) -> Any:
    """Ten iterations from the first points; sums by scattering."""
    import jax.numpy as jnp
    from jax import lax

    def function(points: Any) -> Any:
        def nearest(centres: Any) -> Any:
            return ((points**2).sum(1)[:, None] - 2 * points @ centres.T + (centres**2).sum(1)).argmin(1)

        def step(_: Any, centres: Any) -> Any:
            chosen = nearest(centres)
            sums = jnp.zeros((k, d)).at[chosen].add(points)
            counts = jnp.zeros(k).at[chosen].add(1.0)
            return jnp.where(counts[:, None] > 0, sums / jnp.maximum(counts, 1)[:, None], centres)

        centres = lax.fori_loop(0, 10, step, points[:k])
        return centres, nearest(centres), jnp.bincount(nearest(centres), length=k) / n

    return function, ((n, d),)


@_program({"h": 96, "w": 160}, {"h": 24, "w": 40})
def ray_marching(h: int, w: int) -> Any:
    """An image of spheres: distances to a surface are followed along a ray for each pixel."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def distance(point: Any, spheres: Any) -> Any:
        return jnp.min(jnp.linalg.norm(point - spheres[:, :3], axis=-1) - jnp.abs(spheres[:, 3]) * 0.3)

    def pixel(x: Any, y: Any, spheres: Any) -> Any:
        ray = jnp.stack([x, y, jnp.ones_like(x)])
        ray = ray / jnp.linalg.norm(ray)
        start = jnp.array([0.0, 0.0, -3.0])
        along = lax.fori_loop(0, 24, lambda _, s: s + distance(start + s * ray, spheres), 0.0)
        hit = start + along * ray
        normal = jax.grad(distance)(hit, spheres)
        return jnp.where(distance(hit, spheres) < 0.05, jnp.maximum(0.1, -normal @ ray), 0.0)

    def function(spheres: Any) -> Any:
        y, x = jnp.meshgrid(jnp.linspace(-1, 1, h), jnp.linspace(-1, 1, w) * (w / h), indexing="ij")
        image = jax.vmap(jax.vmap(lambda a, b: pixel(a, b, spheres)))(x, y)
        return image, image.mean()

    return function, ((5, 4),)


@_program({"n": 1024, "e": 4096, "d": 96, "g": 320}, {"n": 64, "e": 256, "d": 32, "g": 64})
def gradient_of_a_graph_network(n: int, e: int, d: int, g: int) -> Any:
    """Two rounds of messages along edges, means over the neighbours, sums over graphs."""
    import jax
    import jax.numpy as jnp

    def loss(w: Any, nodes: Any, ends: Any, graphs: Any, targets: Any) -> Any:
        senders, receivers = ends
        degrees = jax.ops.segment_sum(jnp.ones(e), receivers, n)
        for first, second in (w[:2], w[2:]):
            messages = jax.nn.relu(jnp.concatenate([nodes[senders], nodes[receivers]], -1) @ first)
            mean = jax.ops.segment_sum(messages, receivers, n) / jnp.maximum(degrees, 1)[:, None]
            nodes = nodes + jax.nn.relu(mean @ second)
        predicted = jax.ops.segment_sum(nodes, graphs, g).mean(-1)
        return ((predicted - targets) ** 2).mean()

    def function(a: Any, b: Any, c: Any, h: Any, nodes: Any, ends: Any, graphs: Any, targets: Any) -> Any:
        return jax.value_and_grad(loss)((a, b, c, h), nodes, ends, graphs, targets)

    weights = (2 * d, d), (d, d), (2 * d, d), (d, d)
    return function, (*weights, (n, d), ("i", 2, e), ("i", n), (g,))


@_program({"n": 320, "d": 128, "m": 192}, {"n": 64, "d": 16, "m": 96})
def gradient_of_a_physics_informed_network(n: int, d: int, m: int) -> Any:
    """The residual of Burgers' equation at points within, and the values at points on the border."""
    import jax
    import jax.numpy as jnp

    def network(w: Any, x: Any, t: Any) -> Any:
        return (jnp.tanh(jnp.tanh(jnp.stack([x, t]) @ w[0]) @ w[1]) @ w[2])[0]

    def loss(w: Any, inside: Any, border: Any, values: Any) -> Any:
        def residual(x: Any, t: Any) -> Any:
            slope = jax.grad(network, 1)
            u, ux, ut = network(w, x, t), slope(w, x, t), jax.grad(network, 2)(w, x, t)
            return ut + u * ux - 0.01 / np.pi * jax.grad(slope, 1)(w, x, t)

        equation = (jax.vmap(residual)(inside[:, 0], inside[:, 1]) ** 2).mean()
        given = ((jax.vmap(lambda p: network(w, p[0], p[1]))(border) - values) ** 2).mean()
        return equation + 10 * given

    def function(a: Any, b: Any, c: Any, inside: Any, border: Any, values: Any) -> Any:
        return jax.value_and_grad(loss)((a, b, c), inside, border, values)

    return function, ((2, d), (d, d), (d, 1), (n, 2), (m, 2), (m,))


@_program({"b": 16, "k": 4, "v": 1536, "t": 80}, {"b": 2, "k": 4, "v": 48, "t": 16})
def beam_search(b: int, k: int, v: int, t: int) -> Any:
    """The next words of the best sentences so far: an index among all k·v continuations is taken apart."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def function(scores: Any, table: Any, words: Any) -> Any:
        def step(i: Any, state: Any) -> Any:
            scores, words = state
            logits = jax.nn.log_softmax(table[words[:, :, 0]] * jnp.cos(i / t))
            total = (scores[..., None] + logits).reshape(b, k * v)
            scores, index = lax.top_k(total, k)
            words = jnp.take_along_axis(words, (index // v)[..., None], 1)
            words = jnp.roll(words, 1, 2).at[:, :, 0].set(index % v)
            return scores, words

        return lax.fori_loop(0, t, step, (scores, words))

    return function, ((b, k), (v, v), ("i", b, k, t))


@_program({"b": 12, "s": 384, "h": 8, "d": 64}, {"b": 2, "s": 32, "h": 8, "d": 16})
def decoding_with_a_cache(b: int, s: int, h: int, d: int) -> Any:
    """Sixteen steps of attention, each of which adds to the keys and values so far."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def function(x: Any, keys: Any, values: Any, w: Any) -> Any:
        def step(i: Any, state: Any) -> Any:
            x, keys, values = state
            q, k, v = (x @ w).reshape(b, 3, h, d).swapaxes(0, 1)
            keys = lax.dynamic_update_slice(keys, k[:, None], (0, i, 0, 0))
            values = lax.dynamic_update_slice(values, v[:, None], (0, i, 0, 0))
            scores = jnp.einsum("bhd,bshd->bhs", q, keys) * d**-0.5
            weights = jax.nn.softmax(jnp.where(jnp.arange(s) <= i, scores, -jnp.inf))
            return jnp.einsum("bhs,bshd->bhd", weights, values).reshape(b, h * d), keys, values

        return lax.fori_loop(0, 16, step, (x, keys, values))

    return function, ((b, h * d), (b, s, h, d), (b, s, h, d), (h * d, 3 * h * d))


@_program({"b": 4, "n": 56, "c": 96, "h": 3}, {"b": 2, "n": 14, "c": 24, "h": 3})
def attention_in_shifted_windows(b: int, n: int, c: int, h: int) -> Any:
    """Windows of 7 × 7 of an image that is rolled by 3; positions relative to one another are looked up."""
    import jax
    import jax.numpy as jnp

    def function(x: Any, qkv: Any, relative: Any) -> Any:
        shifted = jnp.roll(x, (-3, -3), (1, 2))
        windows = shifted.reshape(b, n // 7, 7, n // 7, 7, c).swapaxes(2, 3).reshape(-1, 49, c)
        q, k, v = (windows @ qkv).reshape(-1, 49, 3, h, c // h).transpose(2, 0, 3, 1, 4)
        place = jnp.stack(jnp.meshgrid(jnp.arange(7), jnp.arange(7), indexing="ij"), -1).reshape(49, 2)
        offset = place[:, None] - place[None] + 6
        bias = relative[offset[..., 0] * 13 + offset[..., 1]].transpose(2, 0, 1)
        out = jax.nn.softmax(q @ k.swapaxes(-1, -2) / np.sqrt(c // h) + bias) @ v
        out = out.swapaxes(1, 2).reshape(b, n // 7, n // 7, 7, 7, c).swapaxes(2, 3).reshape(b, n, n, c)
        return x + jnp.roll(out, (3, 3), (1, 2))

    return function, ((b, n, n, c), (c, 3 * c), (169, h))


@_program({"n": 256, "t": 100}, {"n": 32, "t": 100})
def heat_equation(n: int, t: int) -> Any:
    """An explicit scheme on the unit square, whose step follows from the number of points; borders are fixed."""
    from jax import lax

    def function(u: Any) -> Any:
        spacing = 1 / (n - 1)
        step = 0.2 * spacing**2

        def advance(u: Any, _: Any) -> Any:
            inner = u[1:-1, 1:-1]
            curvature = (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * inner) / spacing**2
            u = u.at[1:-1, 1:-1].set(inner + step * curvature)
            return u, (u * spacing**2).sum()

        return lax.scan(advance, u, None, length=t)

    return function, ((n, n),)


@_program({"b": 256, "d": 384, "e": 32}, {"b": 64, "d": 24, "e": 8})
def gradient_of_a_contrastive_loss(b: int, d: int, e: int) -> Any:
    """Each image has to find its text among all in the batch, and each text its image."""
    import jax
    import jax.numpy as jnp

    def loss(image: Any, text: Any, temperature: Any, images: Any, texts: Any) -> Any:
        one, two = images @ image, texts @ text
        one, two = (each / jnp.linalg.norm(each, axis=-1, keepdims=True) for each in (one, two))
        logits = one @ two.T * jnp.exp(temperature)
        labels = jnp.arange(b)
        picked = [jax.nn.log_softmax(each)[labels, labels].mean() for each in (logits, logits.T)]
        return -(picked[0] + picked[1]) / 2

    return jax.value_and_grad(loss, (0, 1, 2)), ((d, e), (d, e), (), (b, d), (b, d))
