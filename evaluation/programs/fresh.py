"""Programs of the fresh set: networks and methods that no other module has."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from evaluation.programs.program import Program, integers, normal, positive, registering

PROGRAMS: list[Program] = []
_program = registering(PROGRAMS)


@_program
def _gated_dilations(jax: Any) -> Any:
    """A stack of dilated causal convolutions with gates, and its gradient."""
    jnp, lax = jax.numpy, jax.lax

    def loss(kernels: Any, mix: Any, x: Any, y: Any) -> Any:
        skip = 0.0
        for number, dilation in enumerate((1, 2, 4)):
            padded = jnp.pad(x, ((0, 0), (dilation, 0), (0, 0)))
            z = lax.conv_general_dilated(
                padded,
                kernels[number],
                (1,),
                "VALID",
                rhs_dilation=(dilation,),
                dimension_numbers=("NTC", "TIO", "NTC"),
            )
            gate, value = jnp.split(z, 2, -1)
            h = jnp.tanh(value) * jax.nn.sigmoid(gate)
            skip = skip + h @ mix[number]
            x = x + h
        return jnp.mean((skip - y) ** 2)

    def step(kernels: Any, mix: Any, x: Any, y: Any) -> Any:
        value, (dk, dm) = jax.value_and_grad(loss, (0, 1))(kernels, mix, x, y)
        return value, kernels - 0.1 * dk, mix - 0.1 * dm

    return step, (normal(1, 3, 2, 8, 16), normal(2, 3, 8, 6), normal(3, 2, 20, 8), normal(4, 2, 20, 6))


@_program
def _capsule_routing(jax: Any) -> Any:
    """Votes of lower capsules, routed by agreement in a loop of three rounds."""
    jnp, lax = jax.numpy, jax.lax

    def squash(v: Any) -> Any:
        norm = (v * v).sum(-1, keepdims=True)
        return v * norm / (1 + norm) / jnp.sqrt(norm + 1e-7)

    def route(lower: Any, weight: Any) -> Any:
        votes = jnp.einsum("bid,iodk->biok", lower, weight)

        def round_(_: Any, logits: Any) -> Any:
            share = jax.nn.softmax(logits, 2)
            upper = squash(jnp.einsum("bio,biok->bok", share, votes))
            return logits + jnp.einsum("biok,bok->bio", votes, upper)

        logits = lax.fori_loop(0, 3, round_, jnp.zeros(votes.shape[:3]))
        upper = squash(jnp.einsum("bio,biok->bok", jax.nn.softmax(logits, 2), votes))
        return upper, jnp.sqrt((upper**2).sum(-1) + 1e-9)

    return route, (normal(1, 3, 12, 4) * 2, normal(2, 12, 5, 4, 6) * 2)


@_program
def _equilibrium(jax: Any) -> Any:
    """A layer that is repeated until it changes little, and how often that was."""
    jnp, lax = jax.numpy, jax.lax

    def solve(weight: Any, inject: Any, bias: Any, x: Any) -> Any:
        given = x @ inject + bias

        def layer(z: Any) -> Any:
            return jnp.tanh(0.5 * z @ weight + given)

        def body(state: Any) -> Any:
            count, z, _ = state
            new = layer(z)
            return count + 1, new, jnp.abs(new - z).max()

        start = (0, jnp.zeros_like(given), jnp.float32(1))
        count, z, _ = lax.while_loop(lambda s: (s[0] < 60) & (s[2] > 1e-4), body, start)
        return count, z, layer(z) - z

    return solve, (normal(1, 16, 16), normal(2, 8, 16), normal(3, 16) * 0.1, normal(4, 10, 8))


@_program
def _latent_attention_bf16(jax: Any) -> Any:
    """Latent queries attend to a long input, in bf16, with norms and a gated layer."""
    jnp = jax.numpy
    bf16 = ml_dtypes.bfloat16

    def norm(x: Any, scale: Any) -> Any:
        wide = x.astype(jnp.float32)
        return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)

    def attend(latents: Any, x: Any, scale: Any, q: Any, k: Any, v: Any, up: Any, down: Any, length: Any) -> Any:
        a, b = norm(latents, scale[0]), norm(x, scale[1])
        queries, keys, values = a @ q, b @ k, b @ v
        scores = (queries @ keys.T).astype(jnp.float32) / 4
        scores = jnp.where(jnp.arange(x.shape[0])[None] < length, scores, -1e9)
        mixed = jax.nn.softmax(scores, -1).astype(bf16) @ values
        h = latents + mixed
        inner, gate = jnp.split(norm(h, scale[0]) @ up, 2, -1)
        return h + (jax.nn.silu(gate) * inner) @ down

    def b(*args: Any) -> Any:
        return normal(*args).astype(bf16)

    scale = positive(9, 2, 16)
    return attend, (
        b(1, 6, 16), b(2, 30, 16), scale, b(3, 16, 16), b(4, 16, 16), b(5, 16, 16), b(6, 16, 48), b(7, 24, 16), np.int32(23),
    )  # fmt: skip


@_program
def _most_likely_path(jax: Any) -> Any:
    """Viterbi's decoding: the best path through states, forward by maxima and back by places."""
    jnp, lax = jax.numpy, jax.lax

    def decode(emissions: Any, transitions: Any, first: Any) -> Any:
        def forward(score: Any, emission: Any) -> Any:
            all_ = score[:, :, None] + transitions[None]
            return all_.max(1) + emission, all_.argmax(1)

        score, back = lax.scan(forward, first + emissions[0], emissions[1:])
        last = score.argmax(-1)

        def backward(state: Any, pointers: Any) -> Any:
            new = jnp.take_along_axis(pointers, state[:, None], 1)[:, 0]
            return new, new

        _, path = lax.scan(backward, last, back, reverse=True)
        return score.max(-1), jnp.concatenate([path, last[None]])

    return decode, (normal(1, 12, 3, 5) * 2, normal(2, 5, 5) * 3, normal(3, 5))


@_program
def _radix_sort(jax: Any) -> Any:
    """Keys and what belongs to them, sorted two bits at a time by counting."""
    jnp, lax = jax.numpy, jax.lax

    def sort(keys: Any, values: Any) -> Any:
        def digit(place: Any, state: Any) -> Any:
            keys, values = state
            digits = lax.shift_right_logical(keys, 2 * place) & 3
            hot = (digits[:, None] == jnp.arange(4)).astype(jnp.int32)
            within = jnp.cumsum(hot, 0) - hot
            totals = hot.sum(0)
            starts = jnp.cumsum(totals) - totals
            to = starts[digits] + jnp.take_along_axis(within, digits[:, None], 1)[:, 0]
            return jnp.zeros_like(keys).at[to].set(keys), jnp.zeros_like(values).at[to].set(values)

        keys, values = lax.fori_loop(0, 6, digit, (keys, values))
        return keys, values, (values * jnp.arange(values.size)).sum()

    return sort, (integers(1, 4096, 40), normal(2, 40))


@_program
def _sparse_least_squares(jax: Any) -> Any:
    """Rows and columns of a sparse matrix, and Landweber's steps with it."""
    jnp, lax = jax.numpy, jax.lax

    def solve(rows: Any, columns: Any, values: Any, right: Any) -> Any:
        def times(x: Any) -> Any:
            return jax.ops.segment_sum(values * x[columns], rows, 15)

        def transposed(y: Any) -> Any:
            return jax.ops.segment_sum(values * y[rows], columns, 10)

        bound = (
            jax.ops.segment_sum(jnp.abs(values), rows, 15).max()
            * jax.ops.segment_sum(jnp.abs(values), columns, 10).max()
        )

        def step(x: Any, _: Any) -> Any:
            residual = right - times(x)
            return x + transposed(residual) / bound, (residual**2).sum()

        x, history = lax.scan(step, jnp.zeros(10), None, length=12)
        return x, history, jnp.where(jnp.abs(x) > 0.05, x, 0)

    return solve, (integers(1, 15, 60), integers(2, 10, 60), normal(3, 60), normal(4, 15))


@_program
def _escape_times(jax: Any) -> Any:
    """How long points stay bounded, with what they are when they leave."""
    jnp, lax = jax.numpy, jax.lax

    def escape(real: Any, imaginary: Any) -> Any:
        def body(_: Any, state: Any) -> Any:
            x, y, count = state
            inside = x * x + y * y < 4
            new_x, new_y = x * x - y * y + real, 2 * x * y + imaginary
            return jnp.where(inside, new_x, x), jnp.where(inside, new_y, y), count + inside

        zero = jnp.zeros_like(real)
        x, y, count = lax.fori_loop(0, 20, body, (zero, zero, jnp.zeros(real.shape, jnp.int32)))
        shade = jnp.where(count < 20, count + 1 - jnp.log2(jnp.log(jnp.maximum(x * x + y * y, 2.0))), 0)
        return count, shade

    grid = np.random.default_rng(1).uniform(-1.5, 0.8, (2, 9, 11)).astype(np.float32)
    return escape, (grid[0], grid[1])


@_program
def _image_warp(jax: Any) -> Any:
    """An image, half as large, moved along a field by bilinear interpolation, and the error to another."""
    jnp, lax = jax.numpy, jax.lax

    def warp(image: Any, target: Any, flow: Any) -> Any:
        small = lax.reduce_window(image, 0.0, lax.add, (2, 2, 1), (2, 2, 1), "VALID") / 4

        def error(flow: Any) -> Any:
            h, w, _ = small.shape
            y, x = jnp.meshgrid(jnp.arange(h), jnp.arange(w), indexing="ij")
            py, px = jnp.clip(y + flow[..., 0], 0, h - 1.001), jnp.clip(x + flow[..., 1], 0, w - 1.001)
            y0, x0 = jnp.floor(py).astype(jnp.int32), jnp.floor(px).astype(jnp.int32)
            fy, fx = (py - y0)[..., None], (px - x0)[..., None]
            top = small[y0, x0] * (1 - fx) + small[y0, x0 + 1] * fx
            low = small[y0 + 1, x0] * (1 - fx) + small[y0 + 1, x0 + 1] * fx
            moved = top * (1 - fy) + low * fy
            return jnp.sqrt((moved - target) ** 2 + 1e-4).mean(), moved

        (value, moved), slope = jax.value_and_grad(error, has_aux=True)(flow)
        return value, moved, flow - slope

    return warp, (normal(1, 16, 12, 3) * 4, normal(2, 8, 6, 3), normal(3, 8, 6, 2) * 3)


@_program
def _norm_convnet(jax: Any) -> Any:
    """A training step of a convolutional network with batch norm, max pooling and momentum."""
    jnp, lax = jax.numpy, jax.lax

    def loss(params: Any, x: Any, labels: Any) -> Any:
        kernel, gain, shift, out = params
        z = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        mean, var = z.mean((0, 1, 2)), z.var((0, 1, 2))
        z = jax.nn.relu((z - mean) * lax.rsqrt(var + 1e-3) * gain + shift)
        z = lax.reduce_window(z, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        logits = z.reshape(z.shape[0], -1) @ out
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean(), mean

    def step(params: Any, speed: Any, running: Any, x: Any, labels: Any) -> Any:
        (value, mean), slopes = jax.value_and_grad(loss, has_aux=True)(params, x, labels)
        speed = [0.9 * s + g for s, g in zip(speed, slopes, strict=True)]
        params = [p - 0.05 * s for p, s in zip(params, speed, strict=True)]
        return value, params, speed, 0.99 * running + 0.01 * mean

    params = [normal(1, 3, 3, 2, 6), positive(2, 6), normal(3, 6), normal(4, 54, 5)]
    speed = [0.1 * normal(10 + n, *p.shape) for n, p in enumerate(params)]
    return step, (params, speed, normal(5, 6), normal(6, 4, 6, 6, 2), integers(7, 5, 4))


@_program
def _label_alignment_loss(jax: Any) -> Any:
    """The probability of a labelling without times, and its gradient."""
    jnp, lax = jax.numpy, jax.lax

    def loss(logits: Any, labels: Any) -> Any:
        logs = jax.nn.log_softmax(logits)
        extended = jnp.zeros(2 * labels.size + 1, jnp.int32).at[1::2].set(labels)
        same = jnp.concatenate([jnp.ones(2, bool), extended[2:] == extended[:-2]])
        low = jnp.float32(-1e5)

        def step(alpha: Any, log: Any) -> Any:
            one = jnp.concatenate([low[None], alpha[:-1]])
            two = jnp.where(same, low, jnp.concatenate([jnp.full(2, low), alpha[:-2]]))
            return jax.nn.logsumexp(jnp.stack([alpha, one, two]), 0) + log[extended], None

        start = jnp.full(extended.size, low).at[:2].set(logs[0, extended[:2]])
        alpha, _ = lax.scan(step, start, logs[1:])
        return -jnp.logaddexp(alpha[-1], alpha[-2])

    return jax.value_and_grad(loss), (normal(1, 12, 6) * 3, np.array([1, 3, 3, 5], np.int32))


@_program
def _codebook(jax: Any) -> Any:
    """Vectors take the nearest code; codes move to the mean of theirs."""
    jnp = jax.numpy

    def quantize(x: Any, codes: Any, counts: Any, sums: Any) -> Any:
        distance = (x**2).sum(1)[:, None] - 2 * x @ codes.T + (codes**2).sum(1)
        chosen = distance.argmin(1)
        hot = jax.nn.one_hot(chosen, codes.shape[0])
        counts = 0.9 * counts + 0.1 * hot.sum(0)
        sums = 0.9 * sums + 0.1 * hot.T @ x
        smooth = (counts + 1e-2) / (counts.sum() + 7 * 1e-2) * counts.sum()
        quantized = x + jax.lax.stop_gradient(codes[chosen] - x)
        share = hot.mean(0)
        return quantized, chosen, counts, sums / smooth[:, None], jnp.exp(-(share * jnp.log(share + 1e-10)).sum())

    return quantize, (normal(1, 24, 5) * 3, normal(2, 7, 5) * 3, positive(3, 7), normal(4, 7, 5))


@_program
def _spectral_operator(jax: Any) -> Any:
    """A layer that mixes the low frequencies of a field, beside one that acts point by point."""
    jnp = jax.numpy

    def layer(field: Any, real: Any, imaginary: Any, local: Any) -> Any:
        spectrum = jnp.fft.rfft2(field, axes=(1, 2))
        weight = real + 1j * imaginary
        low = jnp.einsum("bxyi,xyio->bxyo", spectrum[:, :4, :4], weight)
        mixed = jnp.zeros((*spectrum.shape[:3], 3), spectrum.dtype).at[:, :4, :4].set(low)
        out = jnp.fft.irfft2(mixed, (12, 10), axes=(1, 2)) + field @ local
        return jax.nn.gelu(out), (jnp.abs(spectrum) ** 2).sum((0, 3))

    return layer, (normal(1, 2, 12, 10, 3) * 3, normal(2, 4, 4, 3, 3), normal(3, 4, 4, 3, 3), normal(4, 3, 3))


@_program
def _retention_bf16(jax: Any) -> Any:
    """Retention in chunks, in bf16: decays within a chunk and a state between them."""
    jnp, lax = jax.numpy, jax.lax
    bf16 = ml_dtypes.bfloat16

    def retain(q: Any, k: Any, v: Any) -> Any:
        decay = 0.9
        n = jnp.arange(8)
        inner = jnp.where(n[:, None] >= n, decay ** (n[:, None] - n).astype(jnp.float32), 0)
        enter = decay ** (n + 1).astype(jnp.float32)
        leave = decay ** (7 - n).astype(jnp.float32)

        def chunk(state: Any, given: Any) -> Any:
            q, k, v = given
            scores = ((q @ k.T).astype(jnp.float32) * inner).astype(bf16)
            out = (scores @ v).astype(jnp.float32) + enter[:, None] * (q @ state.astype(bf16)).astype(jnp.float32)
            added = (k * leave[:, None].astype(bf16)).T @ v
            return decay**8 * state + added.astype(jnp.float32), out.astype(bf16)

        state, out = lax.scan(chunk, jnp.zeros((6, 5)), (q, k, v))
        return state, out

    def b(*args: Any) -> Any:
        return normal(*args).astype(bf16)

    return retain, (b(1, 4, 8, 6), b(2, 4, 8, 6), b(3, 4, 8, 5))


@_program(specs=[("d", None), ("m", None), (None, "m"), ("d",)])
def _sharded_lookup(jax: Any) -> Any:
    """A table divided over devices, looked up by tokens that are, and a layer divided by its columns."""
    jnp = jax.numpy

    def look(tokens: Any, table: Any, weight: Any, scale: Any) -> Any:
        x = table[tokens].mean(1)
        h = jax.nn.relu(x @ weight) * scale[:, None]
        total = h.sum(0)
        return jax.nn.softmax(h, -1), total / jnp.sqrt((total**2).sum() + 1e-3), h.max()

    return look, (integers(1, 32, 8, 6), normal(2, 32, 8) * 4, normal(3, 8, 16), positive(4, 8))


@_program
def _reservoir_filters(jax: Any) -> Any:
    """Two second-order filters in series, decimated, with a running maximum and the places of crossings."""
    jnp, lax = jax.numpy, jax.lax

    def run(signal: Any, coefficients: Any) -> Any:
        def section(x: Any, c: Any) -> Any:
            def step(state: Any, value: Any) -> Any:
                s1, s2 = state
                y = c[0] * value + s1
                return (c[1] * value - 0.3 * c[3] * y + s2, c[2] * value - 0.2 * c[4] * y), y

            zero = jnp.zeros(x.shape[1])
            return lax.scan(step, (zero, zero), x)[1]

        y = section(section(signal, coefficients[0]), coefficients[1])
        slow = y[::3]
        peak = lax.cummax(jnp.abs(slow))
        crossing = (y[1:] * y[:-1] < 0).sum(0)
        return slow, peak, crossing, jnp.sort(y, 0)[::-1][:4]

    return run, (normal(1, 30, 4), normal(2, 2, 5))
