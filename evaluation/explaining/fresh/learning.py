"""Networks and losses of the fresh half, in f32."""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluation.explaining.operations.arithmetic import Arithmetic
from evaluation.explaining.operations.program import Program, registering
from evaluation.programs.program import normal, positive

LEARNING: dict[str, Program] = {}
_program = registering(LEARNING)
_f32 = np.float32
_NEIGHBOURS = np.random.default_rng(70).random((22, 22)) < 0.3


@_program((normal(1, 22, 14) * 4, normal(2, 14, 18), normal(3, 18, 2) * 2), "slope transposed_scores no_own_edge")
def graph_attention(w: Arithmetic, x: Any, weight: Any, towards: Any) -> Any:
    """Nodes take from their neighbours, weighted by learned scores."""
    jnp = w.jax.numpy
    h = w.dot(x, weight)
    parts = w.dot(h, towards)
    scores = parts[:, 0][:, None] + parts[:, 1][None, :]
    if w.wrong("transposed_scores"):
        scores = scores.T
    scores = jnp.where(scores > 0, scores, _f32(0.22 if w.wrong("slope") else 0.2) * scores)
    edges = _NEIGHBOURS if w.wrong("no_own_edge") else _NEIGHBOURS | np.eye(22, dtype=bool)
    weights = w.softmax(jnp.where(edges, scores, _f32(-1e9)))
    return w.dot(weights, h)


@_program(
    (normal(1, 26, 20) * 4, normal(2, 20, 16) * 2, normal(3, 20, 1) * 4), "step_less square_of_norm rows_reversed"
)
def spectral_norm_layer(w: Arithmetic, x: Any, weight: Any, start: Any) -> Any:
    """A layer whose weights are divided by their largest singular value."""
    jnp = w.jax.numpy
    u, v = start, jnp.zeros((16, 1))
    for _ in range(1 if w.wrong("step_less") else 2):
        v = w.product("nm,nk->mk", weight, u)
        v = v * w.jax.lax.rsqrt((v * v).sum())
        u = w.dot(weight, v)
        u = u * w.jax.lax.rsqrt((u * u).sum())
    norm = (u * w.dot(weight, v)).sum()
    if w.wrong("square_of_norm"):
        norm = norm * norm
    y = w.dot(x, w.divide(weight, norm))
    return jnp.maximum(y[::-1] if w.wrong("rows_reversed") else y, 0)


@_program(
    (
        normal(1, 30, 24) * 4,
        normal(2, 24, 32),
        normal(3, 32, 12),
        normal(4, 6, 32) * 2,
        normal(5, 32, 24),
        normal(6, 30, 6),
    ),
    "no_half kl_sign halves_swapped",
)
def variational_step(w: Arithmetic, x: Any, w1: Any, w2: Any, w3: Any, w4: Any, noise: Any) -> Any:
    """An encoder, a sample, a decoder, and the bound for each example."""
    jnp = w.jax.numpy
    found = w.dot(w.function("tanh", w.dot(x, w1)), w2)
    mean, log_variance = found[:, :6], found[:, 6:]
    if w.wrong("halves_swapped"):
        mean, log_variance = log_variance, mean
    z = mean + w.function("exp", _f32(1.0 if w.wrong("no_half") else 0.5) * log_variance) * noise
    logits = w.dot(w.function("tanh", w.dot(z, w3)), w4)
    likelihood = (x * logits - jnp.maximum(logits, 0)).sum(-1)
    likelihood = likelihood - w.function("log1p", w.function("exp", -jnp.abs(logits))).sum(-1)
    divergence = (w.function("exp", log_variance) + mean * mean - _f32(1) - log_variance).sum(-1) * _f32(0.5)
    return likelihood + divergence if w.wrong("kl_sign") else likelihood - divergence, logits


@_program((normal(1, 9, 32) * 5, normal(2, 24, 32) * 5), "inverse_temperature softmax_axis one_update", is_covered=True)
def hopfield_updates(w: Arithmetic, states: Any, patterns: Any) -> Any:
    """A modern Hopfield network: states move towards patterns, twice."""
    beta = _f32(0.505 if w.wrong("inverse_temperature") else 0.5)
    for step in range(2):
        scores = beta * w.product("nd,md->nm", states, patterns)
        weights = w.softmax(scores, 0 if w.wrong("softmax_axis") else -1)
        new = w.dot(weights, patterns)
        states = states if w.wrong("one_update") and step else new
    return states


@_program(
    (normal(1, 7, 16) * 4, normal(2, 5, 20) * 4, normal(3, 16, 24), normal(4, 20, 24), normal(5, 24, 10)),
    "shifted_labels relu blank",
    is_covered=True,
)
def transducer_joint(w: Arithmetic, acoustic: Any, labels: Any, w1: Any, w2: Any, w3: Any) -> Any:
    """The joint network of a transducer: log probabilities for each frame and label."""
    jnp = w.jax.numpy
    if w.wrong("shifted_labels"):
        labels = jnp.roll(labels, 1, 0)
    hidden = w.dot(acoustic, w1)[:, None] + w.dot(labels, w2)[None]
    hidden = jnp.maximum(hidden, 0) if w.wrong("relu") else w.function("tanh", hidden)
    logits = w.product("tuh,ho->tuo", hidden, w3)
    if w.wrong("blank"):
        logits = logits.at[..., 0].add(0.05)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - w.function("log", w.total(w.function("exp", shifted), -1))[..., None]


@_program(
    (normal(1, 28, 32) * 4, normal(2, 32, 30), normal(3, 32, 4), normal(4, 4, 30)),
    "scale rank_left_out sign",
    is_covered=True,
)
def low_rank_adapter(w: Arithmetic, x: Any, weight: Any, down: Any, up: Any) -> Any:
    """A product and a correction of low rank."""
    small = w.dot(x, down)
    if w.wrong("rank_left_out"):
        small = small.at[:, 3].set(0)
    scale = _f32(-2 if w.wrong("sign") else 2.02 if w.wrong("scale") else 2)
    return w.dot(x, weight) + scale * w.dot(small, up)


@_program(
    (normal(1, 26, 8) * 3, normal(2, 8, 20) * 2, normal(3, 20, 9) * 2, normal(4, 26, 1)),
    "no_half deviation_not_squared normaliser",
    is_covered=True,
)
def mixture_density(w: Arithmetic, x: Any, w1: Any, w2: Any, wanted: Any) -> Any:
    """A network that gives a mixture of three normal densities, and the loss of each example."""
    found = w.dot(w.function("tanh", w.dot(x, w1)), w2)
    weights = w.softmax(found[:, :3])
    scale = w.function("exp", found[:, 6:])
    z = w.divide(wanted - found[:, 3:6], scale)
    z = z if w.wrong("deviation_not_squared") else z * z
    power = w.function("exp", _f32(-1 if w.wrong("no_half") else -0.5) * z)
    density = w.divide(weights * power, scale) * _f32(0.40 if w.wrong("normaliser") else 0.3989423)
    return -w.function("log", w.total(density, -1) + _f32(1e-6))


@_program((normal(1, 18, 16) * 4, normal(2, 16, 16), normal(3, 16, 16), normal(4, 16, 16)), "decay strict no_scale")
def retention(w: Arithmetic, x: Any, wq: Any, wk: Any, wv: Any) -> Any:
    """Attention without a softmax, whose weights decay with distance, and a norm behind it."""
    q, k, v = (w.dot(x, each) for each in (wq, wk, wv))
    distance = np.arange(18)[:, None] - np.arange(18)
    decay = np.where(distance >= w.wrong("strict"), (0.91 if w.wrong("decay") else 0.9) ** np.maximum(distance, 0), 0)
    scores = w.product("nd,md->nm", q, k) * (decay * (1 if w.wrong("no_scale") else 0.25)).astype(_f32)
    y = w.dot(scores, v)
    return y * w.jax.lax.rsqrt((y * y).sum(-1, keepdims=True) * _f32(1 / 16) + _f32(1e-2))


@_program(
    (normal(1, 24, 20) * 4, positive(2, 20), normal(3, 20, 36), normal(4, 20, 36), normal(5, 36, 20)),
    "gates_swapped epsilon no_residual",
)
def gated_block(w: Arithmetic, x: Any, gain: Any, gate: Any, up: Any, down: Any) -> Any:
    """A root-mean-square norm and a SwiGLU network."""
    epsilon = _f32(0.05 if w.wrong("epsilon") else 1e-6)
    y = x * w.jax.lax.rsqrt(w.total(x * x, -1)[:, None] * _f32(1 / 20) + epsilon) * gain
    g, u = w.dot(y, gate), w.dot(y, up)
    if w.wrong("gates_swapped"):
        g, u = u, g
    z = w.dot(g * w.logistic(g) * u, down)
    return z if w.wrong("no_residual") else x + z


@_program(
    (normal(1, 26, 16) * 4, normal(2, 8, 8), normal(3, 8, 8), normal(4, 8, 8), normal(5, 8, 8)),
    "inverse halves_kept determinant",
)
def coupling_flow(w: Arithmetic, x: Any, s1: Any, t1: Any, s2: Any, t2: Any) -> Any:
    """Two affine couplings of a normalising flow, and the logarithm of their determinant."""
    a, b = x[:, :8], x[:, 8:]
    total = 0
    for number, (s, t) in enumerate(((s1, t1), (s2, t2))):
        scale = w.function("tanh", w.dot(a, s))
        b = b * w.function("exp", -scale if w.wrong("inverse") else scale) + w.dot(a, t)
        total = total + scale.sum(-1) * _f32(1.001 if w.wrong("determinant") else 1)
        if not (w.wrong("halves_kept") and number == 0):
            a, b = b, a
    return a, b, total


@_program(
    (normal(1, 3, 20, 12) * 4, normal(2, 3, 10) * 3, normal(3, 10, 96)), "reshaped_transposed bias", is_covered=True
)
def hypernetwork(w: Arithmetic, x: Any, codes: Any, generator: Any) -> Any:
    """A network that makes the weights of another for each task."""
    made = w.dot(codes, generator)
    weights = made.reshape(3, 8, 12).transpose(0, 2, 1) if w.wrong("reshaped_transposed") else made.reshape(3, 12, 8)
    y = w.product("bnd,bdh->bnh", x, weights)
    return w.function("tanh", y + (_f32(0.01) if w.wrong("bias") else _f32(0)))


@_program((normal(1, 4, 10, 6) * 4, normal(2, 10, 5, 6, 8) * 2), "softmax_axis squash iteration_less")
def capsule_routing(w: Arithmetic, x: Any, weights: Any) -> Any:
    """Capsules that agree about which of five to join, in three rounds."""
    jnp = w.jax.numpy
    votes = w.product("ibe,ijed->ibjd", x.transpose(1, 0, 2), weights)
    scores, out = jnp.zeros((10, 4, 5)), None
    for step in range(3):
        shares = w.softmax(scores, 0 if w.wrong("softmax_axis") else -1)
        mixed = (shares[..., None] * votes).sum(0)
        squared = (mixed * mixed).sum(-1, keepdims=True)
        one = _f32(1.02 if w.wrong("squash") else 1)
        new = mixed * w.divide(squared * w.jax.lax.rsqrt(squared + _f32(1e-7)), one + squared)
        out = out if w.wrong("iteration_less") and step == 2 else new
        scores = scores + (votes * out[None]).sum(-1)
    return out


@_program((normal(1, 24, 30) * 5, normal(2, 30, 8) * 2, normal(3, 30, 1)), "half no_square")
def factorisation_machine(w: Arithmetic, x: Any, factors: Any, linear: Any) -> Any:
    """Products of all pairs of features by factors."""
    of_sum = w.dot(x, factors)
    squares = w.dot(x * x, factors if w.wrong("no_square") else factors * factors)
    return w.dot(x, linear)[:, 0] + _f32(0.505 if w.wrong("half") else 0.5) * (of_sum * of_sum - squares).sum(-1)


@_program((normal(1, 32, 18) * 4, normal(2, 32, 18) * 4, normal(3, 18, 14)), "redundancy count transposed")
def redundancy_reduction(w: Arithmetic, first: Any, second: Any, weight: Any) -> Any:
    """Two views of a batch, normalised, and the loss of each feature from their correlations."""
    jnp = w.jax.numpy

    def normalised(x: Any) -> Any:
        x = x - x.sum(0) * _f32(1 / 32)
        return x * w.jax.lax.rsqrt((x * x).sum(0) * _f32(1 / (31 if w.wrong("count") else 32)) + _f32(1e-5))

    u, v = normalised(w.dot(first, weight)), normalised(w.dot(second, weight))
    c = w.product("nd,ne->de", u, v) * _f32(1 / 32)
    c = c.T if w.wrong("transposed") else c
    diagonal = jnp.eye(14, dtype=jnp.float32)
    share = _f32(0.0052 if w.wrong("redundancy") else 0.005)
    return ((_f32(1) - c) ** 2 * diagonal + share * c * c * (1 - diagonal)).sum(1), c


@_program(
    (
        normal(1, 2, 40, 6) * 4,
        *(normal(seed, 3, 6, 6) * 3 for seed in (2, 3)),
        *(normal(seed, 2, 6, 6) for seed in (4, 5)),
    ),
    "gates_swapped dilation no_residual",
)
def dilated_convolutions(w: Arithmetic, x: Any, filter1: Any, gate1: Any, filter2: Any, gate2: Any) -> Any:
    """Two gated causal layers over time, dilated."""
    layout = ("NWC", "WIO", "NWC")
    for number, (kernel, gate) in enumerate(((filter1, gate1), (filter2, gate2))):
        dilation = 1 if number == 0 else 3 if w.wrong("dilation") else 4
        padding = [((kernel.shape[0] - 1) * dilation, 0)]
        a = w.convolution(x, kernel, padding, layout, (dilation,))
        b = w.convolution(x, gate, padding, layout, (dilation,))
        if w.wrong("gates_swapped") and number:
            a, b = b, a
        y = w.function("tanh", a) * w.logistic(b)
        x = y if w.wrong("no_residual") and number else x + y
    return x


@_program(
    (
        normal(1, 6, 16) * 4,
        normal(2, 30, 12) * 4,
        normal(3, 16, 16),
        normal(4, 12, 16),
        normal(5, 12, 16),
        normal(6, 16, 16),
    ),
    "scale keys_for_values",
    is_covered=True,
)
def latent_attention(w: Arithmetic, latents: Any, data: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
    """A few latents that read from much data."""
    q, k, v = w.dot(latents, wq), w.dot(data, wk), w.dot(data, wv)
    weights = w.softmax(w.product("nd,md->nm", q, k) * _f32(0.26 if w.wrong("scale") else 0.25))
    return latents + w.dot(w.dot(weights, k if w.wrong("keys_for_values") else v), wo)


@_program(
    (
        normal(1, 5, 12, 8) * 4,
        normal(2, 8, 20),
        normal(3, 20, 10),
        np.random.default_rng(4).integers(3, 13, 5).astype(np.int32),
    ),
    "mean_of_all one_more_member",
)
def set_encoder(w: Arithmetic, x: Any, w1: Any, w2: Any, sizes: Any) -> Any:
    """Sets of different sizes, encoded by the mean of their members."""
    jnp = w.jax.numpy
    h = jnp.maximum(w.product("bnd,dh->bnh", x, w1), 0)
    present = np.arange(12)[None] < (sizes + w.wrong("one_more_member"))[:, None]
    total = jnp.where(present[..., None], h, 0).sum(1)
    return w.dot(w.divide(total, _f32(12) if w.wrong("mean_of_all") else sizes.astype(_f32)[:, None]), w2)
