"""Programs of the reserve, as functions of a `Written` object and of arrays: networks, losses, solvers, physics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from evaluation.explaining.reserve.written import Written
from evaluation.programs.program import integers, normal, positive


@attrs.frozen(eq=False)
class Program:
    """What is computed, of which arrays, with how many products and which faults."""

    function: Callable[..., Any]
    arguments: Sequence[Any]
    products: int
    faults: tuple[str, ...]


PROGRAMS: dict[str, Program] = {}


def _program(arguments: Sequence[Any], products: int, faults: str) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        PROGRAMS[function.__name__] = Program(function, arguments, products, tuple(faults.split()))
        return function

    return add


@_program(
    (normal(1, 2, 3, 12, 12) * 3, normal(2, 8, 3, 3, 3), normal(3, 6, 8, 3, 3), positive(4, 8), normal(5, 54, 5)),
    3,
    "biased_variance leaky_slope one_channel_off",
)
def instance_norm_convnet(w: Written, x: Any, k1: Any, k2: Any, gain: Any, out: Any) -> Any:
    """Two convolutions with instance normalisation between them, and the logits' class."""
    jnp = w.jax.numpy
    y = w.convolution(x, k1, (1, 1), "SAME", ("NCHW", "OIHW", "NCHW"))
    if w.wrong("one_channel_off"):
        y = y.at[:, 3].multiply(1.01)
    mean = y.mean((2, 3), keepdims=True)
    squares = jnp.square(y - mean).sum((2, 3), keepdims=True)
    y = (y - mean) * w.jax.lax.rsqrt(squares / (143 if w.wrong("biased_variance") else 144) + 1e-5)
    y = y * gain[:, None, None]
    y = jnp.where(y > 0, y, (0.02 if w.wrong("leaky_slope") else 0.01) * y)
    y = w.convolution(y, k2, (2, 2), "VALID", ("NCHW", "OIHW", "NCHW"))
    y = y.reshape(2, 6, 5, 5)[:, :, :3, :3].reshape(2, 54)
    logits = w.dot(y, out)
    return logits, logits.argmax(1).astype(jnp.int32)


@_program(
    (normal(1, 9, 6, 10) * 3, normal(2, 10, 20), normal(3, 20, 20), normal(4, 20, 7)),
    3,
    "step_left_out decay state_of_before",
)
def leaky_recurrence(w: Written, xs: Any, enter: Any, again: Any, leave: Any) -> Any:
    """A recurrent layer that forgets, in a scan, read out at each step."""
    jnp, lax = w.jax.numpy, w.jax.lax
    rate = 0.302 if w.wrong("decay") else 0.3

    def step(state: Any, x: Any) -> Any:
        new = (1 - rate) * state + rate * jnp.tanh(w.dot(x, enter) + w.dot(state, again))
        return new, state if w.wrong("state_of_before") else new

    state, states = lax.scan(step, jnp.zeros((6, 20)), xs[1:] if w.wrong("step_left_out") else xs)
    if w.wrong("step_left_out"):
        states = jnp.concatenate([states[:1], states])
    return state, w.product("tbs,so->tbo", states, leave)


@_program(
    (normal(1, 2, 14, 24) * 3, *(normal(seed, 24, 24) * 1.5 for seed in (2, 3, 4, 5)), integers(6, 14, 2)),
    6,
    "mask_one_late scale finite_mask",
)
def padded_attention(w: Written, x: Any, wq: Any, wk: Any, wv: Any, wo: Any, lengths: Any) -> Any:
    """Attention in three heads over sequences of different lengths, causal."""
    jnp = w.jax.numpy

    def heads(y: Any) -> Any:
        return y.reshape(2, 14, 3, 8).transpose(0, 2, 1, 3)

    q, k, v = (heads(w.product("bte,eh->bth", x, each)) for each in (wq, wk, wv))
    scores = w.product("bhqd,bhkd->bhqk", q, k) / np.float32(np.sqrt(9 if w.wrong("scale") else 8))
    rows, columns = np.arange(14)[:, None], np.arange(14)
    allowed = (columns <= rows + w.wrong("mask_one_late")) & (columns <= jnp.maximum(lengths, 1)[:, None, None, None])
    scores = jnp.where(allowed, scores, -3.0 if w.wrong("finite_mask") else -1e30)
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    mixed = w.product("bhqk,bhkd->bhqd", weights, v)
    return x + w.product("bte,eh->bth", mixed.transpose(0, 2, 1, 3).reshape(2, 14, 24), wo)


@_program((normal(1, 5, 64), positive(2, 33), normal(3, 64, 12)), 1, "bin_shifted window conjugate")
def spectral_filter(w: Written, signal: Any, response: Any, features: Any) -> Any:
    """A filter by Fourier transforms, and features of what it leaves."""
    jnp = w.jax.numpy
    window = np.hanning(64 if not w.wrong("window") else 65)[:64].astype(np.float32)
    spectrum = jnp.fft.rfft(signal * window)
    if w.wrong("conjugate"):
        spectrum = jnp.conj(spectrum)
    gain = jnp.roll(response, 1) if w.wrong("bin_shifted") else response
    return w.dot(jnp.fft.irfft(spectrum * gain, 64), features), jnp.abs(spectrum)


@_program(
    (normal(1, 24, 32) * 4, positive(2, 32), *(normal(seed, 32, 32) for seed in (3, 4)), normal(5, 32, 9)),
    3,
    "epsilon group_of_five no_gain",
)
def normalised_stack(w: Written, x: Any, gain: Any, w1: Any, w2: Any, w3: Any) -> Any:
    """Root-mean-square, group and layer normalisation, each in front of a product."""
    jnp, lax = w.jax.numpy, w.jax.lax
    epsilon = 3e-2 if w.wrong("epsilon") else 1e-5
    y = x * lax.rsqrt((x * x).mean(-1, keepdims=True) + epsilon) * (1.0 if w.wrong("no_gain") else gain)
    y = jnp.maximum(w.dot(y, w1), 0) + x
    groups = y.reshape(24, 8, 4)
    size = 5.0 if w.wrong("group_of_five") else 4.0
    mean = groups.sum(-1, keepdims=True) / size
    y = ((groups - mean) / jnp.sqrt(jnp.square(groups - mean).mean(-1, keepdims=True) + 1e-3)).reshape(24, 32)
    y = y + w.dot(y, w2)
    y = (y - y.mean(-1, keepdims=True)) * lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)
    return w.dot(y, w3), y.std(-1)


@_program(
    (normal(1, 40, 18) * 4, normal(2, 18, 30), normal(3, 30, 6), integers(4, 6, 40)), 2, "smoothing sum_for_mean label"
)
def smoothed_loss(w: Written, x: Any, w1: Any, w2: Any, labels: Any) -> Any:
    """A cross entropy with smoothed labels: one number."""
    jax, jnp = w.jax, w.jax.numpy
    logits = w.dot(jax.nn.silu(w.dot(x, w1)), w2)
    logs = jax.nn.log_softmax(logits)
    smooth = 0.11 if w.wrong("smoothing") else 0.1
    wanted = jnp.eye(6, dtype=jnp.float32)[(labels + w.wrong("label")) % 6] * (1 - smooth) + smooth / 6
    return -(wanted * logs).sum() / (39 if w.wrong("sum_for_mean") else 40)


def _diagonally_dominant(seed: int, size: int) -> Any:
    return (normal(seed, size, size) + 2 * np.eye(size)).astype(np.float32)


@_program((_diagonally_dominant(1, 24), normal(2, 24, 3) * 5), 2, "one_iteration_less relaxation sign")
def relaxed_iterations(w: Written, matrix: Any, right: Any) -> Any:
    """Jacobi's iterations in a loop, and what they leave."""
    jnp, lax = w.jax.numpy, w.jax.lax
    diagonal = jnp.diagonal(matrix)[:, None]
    factor = 0.805 if w.wrong("relaxation") else 0.8

    def body(_: Any, x: Any) -> Any:
        left = right + w.dot(matrix, x) if w.wrong("sign") else right - w.dot(matrix, x)
        return x + factor * left / diagonal

    x = lax.fori_loop(0, 9 if w.wrong("one_iteration_less") else 10, body, jnp.zeros_like(right))
    return x, jnp.linalg.norm(right - w.dot(matrix, x), axis=0)


@_program((normal(1, 20, 20) * 3 + 4 * np.eye(20, dtype=np.float32), positive(2, 20, 1)), 1, "shift count")
def power_iteration(w: Written, matrix: Any, start: Any) -> Any:
    """The dominant eigenvalue, until it hardly moves, with the number of steps."""
    jnp, lax = w.jax.numpy, w.jax.lax
    shift = 0.01 if w.wrong("shift") else 0.0
    symmetric = (matrix + matrix.T) / 2

    def body(state: Any) -> Any:
        vector, value, _, count = state
        new = w.dot(symmetric, vector)
        norm = jnp.sqrt((new * new).sum())
        return new / norm, norm + shift, jnp.abs(norm - value) / norm, count + (2 if w.wrong("count") else 1)

    state = (start / jnp.sqrt((start * start).sum()), jnp.float32(0), jnp.float32(1), jnp.int32(0))
    vector, value, _, count = lax.while_loop(lambda s: (s[2] > 3e-3) & (s[3] < 40), body, state)
    return vector, value, count


@_program((normal(1, 16, 40) * 5, normal(2, 40, 24), normal(3, 24)), 1, "truncated scale_off zero_point")
def quantised_output(w: Written, x: Any, weights: Any, bias: Any) -> Any:
    """Integers of eight bits, with their scales."""
    jnp = w.jax.numpy
    y = w.dot(x, weights) + bias
    scale = jnp.abs(y).max(1, keepdims=True) / (126 if w.wrong("scale_off") else 127)
    whole = jnp.trunc(y / scale) if w.wrong("truncated") else jnp.round(y / scale)
    return (whole + w.wrong("zero_point")).clip(-128, 127).astype(jnp.int8), scale, y


@_program((normal(1, 60) * 4, normal(2, 60, 60), normal(3, 30) * 3, normal(4, 30, 30)), 4, "half coupling")
def two_energies(w: Written, x: Any, a: Any, y: Any, b: Any) -> Any:
    """One number: the sum of two quadratic forms."""

    def form(vector: Any, matrix: Any) -> Any:
        return w.product("k,k->", vector, w.product("k,mk->m", vector, matrix))

    second = 0.499 if w.wrong("half") else 0.5
    return 0.5 * form(x, a) + (second * form(y, b)) + (1e-3 * x[0] if w.wrong("coupling") else 0.0)


@_program((normal(1, 12, 16) * 4, normal(2, 12, 16) * 4, normal(3, 16, 10)), 3, "temperature diagonal transposed")
def paired_loss(w: Written, first: Any, second: Any, project: Any) -> Any:
    """A contrastive loss over pairs, with each one's best match."""
    jax, jnp = w.jax, w.jax.numpy
    u, v = (w.dot(each, project) for each in (first, second))
    u, v = (each / jnp.sqrt((each * each).sum(-1, keepdims=True)) for each in (u, v))
    scores = w.product("id,jd->ij", u, v) / (0.21 if w.wrong("temperature") else 0.2)
    logs = jax.nn.log_softmax(scores.T if w.wrong("transposed") else scores)
    chosen = jnp.roll(jnp.arange(12), 1) if w.wrong("diagonal") else jnp.arange(12)
    return -logs[jnp.arange(12), chosen].mean(), scores.argmax(1).astype(jnp.int32)


@_program(
    (normal(1, 32, 20) * 4, normal(2, 20, 28), normal(3, 28, 8), normal(4, 32, 8)), 5, "momentum loss_factor activation"
)
def written_gradients(w: Written, x: Any, w1: Any, w2: Any, wanted: Any) -> Any:
    """A step of a network of two layers, with its gradients written out."""
    jnp = w.jax.numpy
    hidden = jnp.tanh(w.dot(x, w1))
    error = w.dot(hidden, w2) - wanted
    back = w.product("bo,ho->bh", error, w2)
    slope = 1 - (hidden if w.wrong("activation") else hidden * hidden)
    step1 = w.product("bi,bh->ih", x, back * slope)
    step2 = w.product("bh,bo->ho", hidden, error)
    rate = 0.0101 if w.wrong("momentum") else 0.01
    loss = (error * error).mean() * (1.001 if w.wrong("loss_factor") else 1)
    return loss, w1 - rate * step1, w2 - rate * step2


@_program((normal(1, 30, 16) * 4, integers(2, 30, 50), integers(3, 10, 50), normal(4, 16, 12)), 1, "mean_of_bags row")
def bags_of_embeddings(w: Written, table: Any, rows: Any, bags: Any, project: Any) -> Any:
    """Rows of a table added up by bags, projected, with the largest of each."""
    jax, jnp = w.jax, w.jax.numpy
    picked = table[(rows + 1) % 30 if w.wrong("row") else rows]
    sums = jax.ops.segment_sum(picked, bags, 10)
    if w.wrong("mean_of_bags"):
        sums = sums / jnp.maximum(jnp.bincount(bags, length=10), 1)[:, None]
    y = w.dot(sums, project)
    values, places = jax.lax.top_k(y, 3)
    return y, values, places.astype(jnp.int32)


@_program((normal(1, 3, 20) * 3, normal(2, 20, 20), positive(3, 20)), 2, "time_step friction force")
def oscillators(w: Written, start: Any, stiffness: Any, masses: Any) -> Any:
    """Coupled oscillators, by leapfrog steps in a loop, with their energy."""
    jnp, lax = w.jax.numpy, w.jax.lax
    coupling = (stiffness.T + stiffness) / 2 + 2 * jnp.eye(20)
    dt = 0.0505 if w.wrong("time_step") else 0.05

    def body(_: Any, state: Any) -> Any:
        position, speed = state
        force = -w.dot(position, coupling) * (1.002 if w.wrong("force") else 1)
        speed = (speed + dt * force / (masses + 0.5)) * (0.999 if w.wrong("friction") else 1)
        return position + dt * speed, speed

    position, speed = lax.fori_loop(0, 12, body, (start, jnp.zeros_like(start)))
    spring = 0.5 * (position * w.dot(position, coupling)).sum(-1)
    return position, speed, spring + 0.5 * (speed * speed * (masses + 0.5)).sum(-1)
