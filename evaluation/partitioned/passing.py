"""Programs for the same mesh that pass values from device to device in ways that no other module has."""

from __future__ import annotations

from typing import Any

from evaluation.partitioned.program import Program


def _ring(jax: Any, constrain: Any) -> Any:
    """Attention whose keys and values go around a ring, with a running maximum and sum."""
    jnp = jax.numpy

    def ring(q: Any, k: Any, v: Any) -> Any:
        largest, total, mixed = jnp.full(q.shape[:1], -jnp.inf), jnp.zeros(q.shape[:1]), jnp.zeros_like(q)
        blocks = q.reshape(4, -1, q.shape[-1])
        for _ in range(4):
            keys, values = (each.reshape(blocks.shape) for each in (k, v))
            scores = jnp.einsum("pqd,pkd->pqk", blocks, keys).reshape(q.shape[0], -1) / 2
            new = jnp.maximum(largest, scores.max(-1))
            weights, old = jnp.exp(scores - new[:, None]), jnp.exp(largest - new)
            total = total * old + weights.sum(-1)
            added = jnp.einsum("pqk,pkd->pqd", weights.reshape(4, blocks.shape[1], -1), values)
            mixed = mixed * old[:, None] + added.reshape(q.shape)
            largest = new
            k, v = (constrain(jnp.roll(each, blocks.shape[1], 0), "m", None) for each in (k, v))
        return mixed / total[:, None]

    return ring


def _stages(jax: Any, constrain: Any) -> Any:
    """Four stages of a pipeline, each on its devices; samples move on to the next stage in every step."""
    jnp = jax.numpy

    def stages(x: Any, w: Any, b: Any) -> Any:
        state, found = jnp.zeros((4, *x.shape[1:])), []
        for step in range(6):
            fed = x[min(step, 2)][None]
            state = constrain(jnp.concatenate([fed, state[:-1]]), "m", "d", None)
            state = jnp.tanh(jnp.einsum("sbe,sef->sbf", state, w) + b[:, None])
            found.append(state[-1])
        return jnp.stack(found[3:])

    return stages


def _borders(jax: Any, constrain: Any) -> Any:
    """Two convolutions over a line that is cut, with a wide one between them."""
    _jnp, lax = jax.numpy, jax.lax

    def borders(x: Any, first: Any, second: Any) -> Any:
        def convolved(x: Any, w: Any) -> Any:
            return lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NTC", "TIO", "NTC"))

        hidden = constrain(jax.nn.gelu(convolved(x, first)), "d", "m", None)
        return convolved(hidden, second) + hidden

    return borders


def _lookup(jax: Any, constrain: Any) -> Any:
    """Rows of a table that is cut by rows, a product with all of them, and a loss with its gradient."""
    jnp = jax.numpy

    def lookup(table: Any, w: Any, tokens: Any, labels: Any) -> Any:
        def loss(table: Any) -> Any:
            logits = constrain(jnp.tanh(table[tokens] @ w) @ table.T, "d", "m")
            return (jax.nn.logsumexp(logits, -1) - (jax.nn.one_hot(labels, logits.shape[-1]) * logits).sum(-1)).mean()

        value, gradient = jax.value_and_grad(loss)(table)
        return value, table - gradient

    return lookup


def _routed(jax: Any, constrain: Any) -> Any:
    """Samples of each device are put into boxes of experts, sent there, and sent back."""
    jnp = jax.numpy

    def routed(x: Any, gate: Any, up: Any, down: Any) -> Any:
        scores = jax.nn.softmax(x @ gate, -1)
        hot = jax.nn.one_hot(scores.argmax(-1), 4)
        place = (jnp.cumsum(hot, 1) - 1) * hot
        boxes = jax.nn.one_hot(place.sum(-1).astype(int), x.shape[1])[:, :, None] * hot[..., None]
        sent = constrain(jnp.einsum("gsec,gsd->egcd", boxes, x), None, "m", None, None)
        sent = constrain(sent, "m", None, None, None)
        done = jnp.einsum("egcf,efd->egcd", jax.nn.silu(jnp.einsum("egcd,edf->egcf", sent, up)), down)
        back = constrain(constrain(done, "m", None, None, None), None, "m", None, None)
        return jnp.einsum("gsec,egcd->gsd", boxes * scores[..., None], back) + x

    return routed


def _strips(jax: Any, constrain: Any) -> Any:
    """Weights and their momentum in strips: gathered for a step, gradients added up and scattered."""
    jnp = jax.numpy

    def strips(w: Any, out: Any, momentum: Any, x: Any, y: Any) -> Any:
        def loss(w: Any) -> Any:
            return ((jnp.sin(x @ constrain(w, None, None)) @ out - y) ** 2).sum() / 8

        gradient = constrain(jax.grad(loss)(w), "d", None)
        momentum = 0.9 * momentum + gradient
        return w - 0.1 * momentum / (1e-3 + jnp.abs(momentum)), momentum

    return strips


def _whitened(jax: Any, constrain: Any) -> Any:
    """Two ways to a variance over samples on all devices: by groups of channels, and by channels."""
    jnp = jax.numpy

    def whitened(x: Any, gain: Any) -> Any:
        grouped = x.reshape(x.shape[0], 2, -1)
        centred = grouped - grouped.mean((0, 2), keepdims=True)
        normed = (centred / jnp.sqrt((centred**2).mean((0, 2), keepdims=True) + 1e-4)).reshape(x.shape)
        deviation = jnp.sqrt((normed**2).mean(0) - normed.mean(0) ** 2 + 1e-3)
        return constrain(jnp.cos(normed * gain), ("d", "m"), None) / deviation, deviation

    return whitened


def _prefix(jax: Any, constrain: Any) -> Any:
    """Sums of all rows before, by adding what lies one, two, four and eight rows further back."""
    jnp = jax.numpy

    def prefix(x: Any, w: Any) -> Any:
        total = jnp.tanh(x @ w)
        for step in (1, 2, 4, 8):
            total = constrain(total + jnp.pad(total[:-step], ((step, 0), (0, 0))), "m", None)
        return total / (1 + jnp.abs(x))

    return prefix


def _heads(jax: Any, constrain: Any) -> Any:
    """Attention by heads between layers by positions: each device gives away positions, and gets heads."""
    jnp = jax.numpy

    def heads(x: Any, qkv: Any, out: Any) -> Any:
        normed = x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-3)
        made = constrain(jnp.einsum("te,eshd->sthd", normed, qkv), None, "m", None, None)
        q, k, v = constrain(made, None, None, "m", None)
        weights = jax.nn.softmax(jnp.einsum("qhd,khd->hqk", q, k) / 2, -1)
        mixed = constrain(jnp.einsum("hqk,khd->qhd", weights, v), None, "m", None)
        mixed = constrain(mixed, "m", None, None)
        return x + jnp.einsum("qhd,hde->qe", mixed, out)

    return heads


def _waves(jax: Any, constrain: Any) -> Any:
    """A cosine transform of rows and then of columns, a filter between, and the way back."""

    def waves(x: Any, basis: Any, gain: Any) -> Any:
        rows = constrain(x @ basis, "m", None)
        both = constrain(basis.T @ constrain(rows, None, "m"), None, "m") * gain
        back = constrain(basis @ both, None, "m")
        return constrain(constrain(back, "m", None) @ basis.T, "m", None)

    return waves


PASSING = {
    "ring": Program(_ring, ((16, 4), (16, 4), (16, 4)), (("m",), ("m",), ("m",)), ("m",)),
    "stages": Program(_stages, ((3, 4, 6), (4, 6, 6), (4, 6)), ((None, "d"), ("m",), ("m",)), (None, "d")),
    "borders": Program(_borders, ((2, 16, 4), (3, 4, 6), (5, 6, 6)), (("d", "m"), (), ()), ("d", "m")),
    "lookup": Program(_lookup, ((16, 8), (8, 8), (8,), (8,)), (("m",), (), ("d",), ("d",)), ((), ("m",)), labels=2),
    "routed": Program(
        _routed, ((4, 6, 5), (5, 4), (4, 5, 8), (4, 8, 5)), (("m",), (), ("m",), ("m",)), ("m",)
    ),
    "strips": Program(
        _strips, ((8, 6), (6, 3), (8, 6), (16, 8), (16, 3)), (("d",), (), ("d",), ("d",), ("d",)), (("d",), ("d",))
    ),
    "whitened": Program(_whitened, ((16, 6), (6,)), ((("d", "m"),), ()), ((("d", "m"),), ())),
    "prefix": Program(_prefix, ((16, 6), (6, 6)), (("m",), ()), ("m",)),
    "heads": Program(_heads, ((8, 6), (6, 3, 4, 4), (4, 4, 6)), (("m",), (), ()), ("m",)),
    "waves": Program(_waves, ((16, 16), (16, 16), (16, 16)), (("m",), (), (None, "m")), ("m",)),
}  # fmt: skip
"""Held back until they had been looked at; seen since."""
