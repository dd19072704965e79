"""Networks, losses and recommenders of the blind half, in f32."""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluation.explaining.operations.arithmetic import Arithmetic
from evaluation.explaining.operations.program import Program, registering
from evaluation.programs.program import integers, normal, positive

NETWORKS: dict[str, Program] = {}
_program = registering(NETWORKS)
_f32 = np.float32


@_program(
    (normal(1, 14, 9, 24) * 4, normal(2, 30, 16, 24) * 4, normal(3, 24, 20), integers(4, 9, 30) + 8),
    "mean_for_maximum one_token_more query_token_less",
    is_covered=True,
)
def late_interaction(w: Arithmetic, queries: Any, documents: Any, project: Any, lengths: Any) -> Any:
    """Retrieval by tokens: each of the query's takes its best one of the document's."""
    jnp = w.jax.numpy
    q, d = (w.product("btd,de->bte", each, project) for each in (queries, documents))
    scores = w.product("qe,pe->qp", q.reshape(126, 20), d.reshape(480, 20)).reshape(14, 9, 30, 16)
    present = np.arange(16)[None] < (lengths + w.wrong("one_token_more"))[:, None]
    best = jnp.where(present, scores, _f32(-1e9)).max(-1)
    if w.wrong("mean_for_maximum"):
        best = jnp.where(present, scores, _f32(0)).sum(-1) * _f32(1 / 12)
    return w.total(best[:, 1:] if w.wrong("query_token_less") else best, 1)


@_program(
    (normal(1, 64, 24) * 4, normal(2, 24, 24), normal(3, 24, 24), normal(4, 24, 24), normal(5, 24, 24)),
    "window_shifted scale causal",
    is_covered=True,
)
def window_attention(w: Arithmetic, x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
    """Sparse attention: blocks of eight that see themselves and the block before."""
    jnp = w.jax.numpy
    q, k, v = (w.dot(x, each).reshape(8, 8, 24) for each in (wq, wk, wv))
    shift = -1 if w.wrong("window_shifted") else 1
    k, v = (jnp.concatenate([jnp.roll(each, shift, 0), each], 1) for each in (k, v))
    scores = w.product("bnd,bmd->bnm", q, k) * _f32(0.21 if w.wrong("scale") else 0.2041241)
    seen = np.ones((8, 8, 16), bool)
    seen[0, :, :8] = False
    if w.wrong("causal"):
        seen &= np.arange(16)[None, :] <= np.arange(8)[:, None] + 8
    y = w.product("bnm,bmd->bnd", w.softmax(jnp.where(seen, scores, _f32(-1e9))), v)
    return x + w.dot(y.reshape(64, 24), wo)


@_program(
    (
        normal(1, 50, 12) * 4,
        integers(2, 50, 24, 20),
        normal(3, 3, 12, 16) * 2,
        normal(4, 5, 12, 16) * 2,
        normal(5, 32, 10),
    ),
    "bias mean_pooling token_off",
)
def text_convolutions(w: Arithmetic, table: Any, tokens: Any, narrow: Any, wide: Any, out: Any) -> Any:
    """A classifier of texts: filters of two widths, the largest response of each, log probabilities."""
    jnp = w.jax.numpy
    x = table[jnp.minimum(tokens + w.wrong("token_off"), 49)]
    found = []
    for kernel in (narrow, wide):
        y = jnp.maximum(w.convolution(x, kernel, "VALID", ("NWC", "WIO", "NWC")) + _f32(0.01 * w.wrong("bias")), 0)
        found.append(y.mean(1) if w.wrong("mean_pooling") else y.max(1))
    logits = w.dot(jnp.concatenate(found, 1), out)
    logits = logits - logits.max(-1, keepdims=True)
    return logits - w.function("log", w.total(w.function("exp", logits), -1))[:, None]


@_program(
    (normal(1, 48, 20) * 4, normal(2, 20, 20), normal(3, 20, 20), normal(4, 20, 16), normal(5, 36, 6) * 2),
    "no_crossing bias_of_first deep_swapped",
    is_covered=True,
)
def deep_and_cross(w: Arithmetic, x: Any, cross1: Any, cross2: Any, deep: Any, out: Any) -> Any:
    """A recommender: features crossed with themselves twice beside a layer, and the chances of six clicks."""
    jnp = w.jax.numpy
    y = x
    for number, weight in enumerate((cross1, cross2)):
        bias = _f32(0.02 if w.wrong("bias_of_first") and number == 0 else 0.01)
        y = (y if w.wrong("no_crossing") and number else x) * (w.dot(y, weight) + bias) + y
    beside = w.function("tanh", w.dot(x, deep))
    parts = [beside, y] if w.wrong("deep_swapped") else [y, beside]
    return w.logistic(w.dot(jnp.concatenate(parts, 1), out))


@_program(
    (normal(1, 6, 16, 20) * 4, normal(2, 16, 24), normal(3, 24, 16), normal(4, 20, 28), normal(5, 28, 20)),
    "cubic no_residual gelu_slope",
    is_covered=True,
)
def token_mixer(w: Arithmetic, x: Any, enter1: Any, leave1: Any, enter2: Any, leave2: Any) -> Any:
    """Layers across the tokens, then across the channels, with the activation by tanh."""
    cubic = _f32(0.0465 if w.wrong("cubic") else 0.044715)

    def activated(y: Any) -> Any:
        slope = _f32(0.8 if w.wrong("gelu_slope") else 0.7978846)
        return _f32(0.5) * y * (_f32(1) + w.function("tanh", slope * (y + cubic * y * y * y)))

    mixed = w.product("bct,th->bch", x.transpose(0, 2, 1), enter1)
    mixed = w.product("bch,ht->bct", activated(mixed), leave1).transpose(0, 2, 1)
    x = mixed if w.wrong("no_residual") else x + mixed
    return x + w.product("bth,hc->btc", activated(w.product("btc,ch->bth", x, enter2)), leave2)


@_program(
    (normal(1, 24, 10, 12) * 4, positive(2, 32), normal(3, 12, 32), normal(4, 32, 14), normal(5, 12, 14)),
    "step_size decay_of_input skip",
)
def state_space_layer(w: Arithmetic, xs: Any, rates: Any, enter: Any, leave: Any, skip: Any) -> Any:
    """A diagonal linear state, discretised, over time in a scan, and a direct path."""
    jnp, lax = w.jax.numpy, w.jax.lax
    step = _f32(0.505 if w.wrong("step_size") else 0.5)
    decay = w.function("exp", -rates * step)
    share = w.divide(decay if w.wrong("decay_of_input") else _f32(1) - decay, rates)

    def body(state: Any, x: Any) -> Any:
        state = decay * state + share * w.dot(x, enter)
        return state, w.dot(state, leave)

    _, ys = lax.scan(body, jnp.zeros((10, 32)), xs)
    return ys + w.product("tbi,io->tbo", xs, skip) * _f32(0.99 if w.wrong("skip") else 1)


@_program((normal(1, 40, 2) * 4, normal(2, 2, 32) * 3, normal(3, 32, 32), normal(4, 32, 12)), "frequency cosine bias")
def sine_network(w: Arithmetic, places: Any, w1: Any, w2: Any, w3: Any) -> Any:
    """A picture as a network of sines, by places."""
    jnp = w.jax.numpy
    y = jnp.sin(w.dot(places, w1) * _f32(3.02 if w.wrong("frequency") else 3))
    z = w.dot(y, w2) + _f32(0.01 * w.wrong("bias"))
    return w.dot(jnp.cos(z) if w.wrong("cosine") else jnp.sin(z), w3)


@_program(
    (
        normal(1, 3, 10, 10, 6) * 4,
        normal(2, 3, 3, 6, 12) * 2,
        normal(3, 12, 6),
        normal(4, 6, 12) * 3,
        normal(5, 1, 1, 12, 8),
    ),
    "mean_count no_gate channels_shifted",
)
def squeeze_and_excite(w: Arithmetic, x: Any, kernel: Any, down: Any, up: Any, out: Any) -> Any:
    """A convolution whose channels a small network of their means weights, and one of size one."""
    jnp, layout = w.jax.numpy, ("NHWC", "HWIO", "NHWC")
    y = jnp.maximum(w.convolution(x, kernel, "SAME", layout), 0)
    means = w.total(y.reshape(3, 100, 12), 1) * _f32(1 / (98 if w.wrong("mean_count") else 100))
    gate = w.logistic(w.dot(jnp.maximum(w.dot(means, down), 0), up))
    if w.wrong("channels_shifted"):
        gate = jnp.roll(gate, 1, 1)
    return w.convolution(y if w.wrong("no_gate") else y * gate[:, None, None], out, "VALID", layout)


@_program(
    (normal(1, 32, 24) * 4, normal(2, 24, 12), normal(3, 12, 20), integers(4, 20, 32)), "margin label_off classes_norm"
)
def angular_margin(w: Arithmetic, x: Any, weight: Any, classes: Any, labels: Any) -> Any:
    """Cosines between embeddings and classes, with a margin for the right one, and log probabilities."""
    jnp, lax = w.jax.numpy, w.jax.lax
    e = w.dot(x, weight)
    e = e * lax.rsqrt((e * e).sum(1, keepdims=True))
    c = classes * lax.rsqrt((classes * classes).sum(0, keepdims=True) + _f32(0.02 * w.wrong("classes_norm")))
    right = jnp.arange(20)[None] == ((labels + w.wrong("label_off")) % 20)[:, None]
    scores = _f32(8) * (w.dot(e, c) - jnp.where(right, _f32(0.302 if w.wrong("margin") else 0.3), _f32(0)))
    shifted = scores - scores.max(-1, keepdims=True)
    return shifted - w.function("log", w.total(w.function("exp", shifted), -1))[:, None]


@_program(
    (normal(1, 36, 20) * 4, normal(2, 20, 26) * 2, normal(3, 20, 10), normal(4, 10, 26)),
    "temperature reverse no_square",
    is_covered=True,
)
def distillation(w: Arithmetic, x: Any, teacher: Any, enter: Any, leave: Any) -> Any:
    """What a small student's softened probabilities have lost of the teacher's, for each example."""
    share = _f32(0.505 if w.wrong("temperature") else 0.5)

    def logs(logits: Any) -> Any:
        shifted = (logits - logits.max(-1, keepdims=True)) * share
        return shifted - w.function("log", w.total(w.function("exp", shifted), -1))[:, None]

    t, s = logs(w.dot(x, teacher)), logs(w.dot(w.function("tanh", w.dot(x, enter)), leave))
    if w.wrong("reverse"):
        t, s = s, t
    return w.total(w.function("exp", t) * (t - s), -1) * _f32(2 if w.wrong("no_square") else 4), s


@_program(
    (normal(1, 30, 16) * 4, normal(2, 16, 24), normal(3, 24, 11), normal(4, 24, 55)),
    "mean_left_out atoms_shifted",
    is_covered=True,
)
def distributional_values(w: Arithmetic, x: Any, enter: Any, value: Any, advantage: Any) -> Any:
    """A dueling network: five actions' distributions over eleven returns, and their means."""
    jnp = w.jax.numpy
    h = jnp.maximum(w.dot(x, enter), 0)
    a = w.dot(h, advantage).reshape(30, 5, 11)
    if not w.wrong("mean_left_out"):
        a = a - w.total(a, 1)[:, None] * _f32(0.2)
    chances = w.softmax(w.dot(h, value)[:, None] + a)
    atoms = np.linspace(-1, 1, 11).astype(_f32) + _f32(0.01 * w.wrong("atoms_shifted"))
    return chances, w.total(chances * atoms, -1)


@_program(
    (normal(1, 28, 12) * 4, normal(2, 12, 20), normal(3, 20, 12)), "time_step stage_weight last_stage", is_covered=True
)
def neural_flow(w: Arithmetic, start: Any, w1: Any, w2: Any) -> Any:
    """States moved along a network's field by Runge and Kutta's method, in a loop."""
    dt = _f32(0.202 if w.wrong("time_step") else 0.2)

    def field(x: Any) -> Any:
        return w.dot(w.function("tanh", w.dot(x, w1)), w2)

    def body(_: Any, x: Any) -> Any:
        k1 = field(x)
        k2 = field(x + _f32(0.5) * dt * k1)
        k3 = field(x + _f32(0.5) * dt * k2)
        k4 = field(x + (_f32(0.5) if w.wrong("last_stage") else _f32(1)) * dt * k3)
        second = _f32(2.02 if w.wrong("stage_weight") else 2)
        return x + dt * _f32(1 / 6) * (k1 + second * k2 + _f32(2) * k3 + k4)

    return w.jax.lax.fori_loop(0, 4, body, start)
