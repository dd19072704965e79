"""Programs for eight devices, on a mesh of two rows (`d`) and four columns (`m`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluation.programs.program import Program, integers, normal, positive, registering

PROGRAMS: list[Program] = []
_program = registering(PROGRAMS)


def mesh(jax: Any) -> Any:
    """Eight devices; raises ValueError where there are fewer."""
    return jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("d", "m"))


def mapped(jax: Any, function: Any, given: Any, *results: Any) -> Any:
    """The function on each device; specs are tuples of axes."""
    spec = jax.sharding.PartitionSpec
    given, results = (tuple(spec(*axes) for axes in each) for each in (given, results))
    results = results if len(results) > 1 else results[0]
    return jax.shard_map(function, mesh=mesh(jax), in_specs=given, out_specs=results, check_vma=False)


_STEP = (("d",), (None, "m"), ("m",), ("m",), ("d",))


@_program(specs=_STEP)
def _sharded_train_step(jax: Any) -> Any:
    """XLA's partitioner shards a two-layer network over both axes, with its gradients and a step."""
    jnp = jax.numpy

    def sharded_train_step(x: Any, w1: Any, b1: Any, w2: Any, y: Any) -> Any:
        def loss(w1: Any, b1: Any, w2: Any) -> Any:
            hidden = jax.nn.gelu(x @ w1 + b1)
            logits = hidden @ w2
            normed = logits - logits.mean(-1, keepdims=True)
            return ((normed - y) ** 2).mean()

        value, gradients = jax.value_and_grad(loss, (0, 1, 2))(w1, b1, w2)
        norm = jnp.sqrt(sum((each**2).sum() for each in gradients))
        return value, *(w - 0.1 * g / (1 + norm) for w, g in zip((w1, b1, w2), gradients, strict=True))

    return sharded_train_step, (normal(1, 16, 8), normal(2, 8, 16), normal(3, 16), normal(4, 16, 8), normal(5, 16, 8))


@_program(specs=(("d", "m"), ("d", "m"), ("d", "m")))
def _ring_attention(jax: Any) -> Any:
    """Keys and values travel around a ring of all devices while softmax is summed up with a running maximum."""
    jnp, lax = jax.numpy, jax.lax
    ring = [(each, (each + 1) % 4) for each in range(4)]

    def on_device(q: Any, k: Any, v: Any) -> Any:
        rows = lax.axis_index("m") * 4 + jnp.arange(4)

        def body(number: Any, state: Any) -> Any:
            k, v, top, total, found = state
            columns = ((lax.axis_index("m") - number) % 4) * 4 + jnp.arange(4)
            scores = jnp.where(rows[:, None] >= columns[None], q[0] @ k[0].T / np.sqrt(8), -1e9)
            new = jnp.maximum(top, scores.max(-1))
            weights, fade = jnp.exp(scores - new[:, None]), jnp.exp(top - new)
            total = total * fade + weights.sum(-1)
            found = found * fade[:, None] + weights @ v[0]
            return lax.ppermute(k, "m", ring), lax.ppermute(v, "m", ring), new, total, found

        state = (k, v, jnp.full(4, -1e9), jnp.zeros(4), jnp.zeros((4, 8)))
        *_, total, found = lax.fori_loop(0, 4, body, state)
        return (found / total[:, None])[None]

    function = mapped(jax, on_device, [("d", "m")] * 3, ("d", "m"))

    def ring_attention(q: Any, k: Any, v: Any) -> Any:
        return function(q, k, v)

    return ring_attention, (normal(1, 2, 16, 8) * 3, normal(2, 2, 16, 8) * 3, normal(3, 2, 16, 8))


@_program(specs=((("d", "m"),), (None,), (("d", "m"),), (("d", "m"),)))
def _expert_parallel(jax: Any) -> Any:
    """Each device holds an expert; tokens are sent to theirs and back by all-to-all."""
    jnp, lax = jax.numpy, jax.lax
    every = ("d", "m")

    def on_device(x: Any, gate: Any, up: Any, down: Any) -> Any:
        probabilities = jax.nn.softmax(x @ gate)
        expert = probabilities.argmax(-1)
        member = jax.nn.one_hot(expert, 8)
        place = ((jnp.cumsum(member, 0) - 1) * member).sum(-1).astype(jnp.int32)
        dispatch = member[:, :, None] * jax.nn.one_hot(place, 4)[:, None]
        sent = jnp.einsum("tec,td->ecd", dispatch, x)
        received = lax.all_to_all(sent, every, 0, 0, tiled=True)
        hidden = jax.nn.relu(received.reshape(32, 6) @ up[0]) @ down[0]
        back = lax.all_to_all(hidden.reshape(8, 4, 6), every, 0, 0, tiled=True)
        out = jnp.einsum("tec,ecd->td", dispatch, back) * probabilities.max(-1)[:, None]
        load = lax.psum(member.sum(0), every)
        return x + out, load * lax.pmean(probabilities.mean(0), every)

    function = mapped(jax, on_device, [(every,), (None,), (every,), (every,)], (every,), (None,))

    def expert_parallel(x: Any, gate: Any, up: Any, down: Any) -> Any:
        return function(x, gate, up, down)

    return expert_parallel, (normal(1, 32, 6) * 3, normal(2, 6, 8) * 3, normal(3, 8, 6, 10), normal(4, 8, 10, 6))


@_program(specs=((("d", "m"),), (("d", "m"),)))
def _heat_exchange(jax: Any) -> Any:
    """A stencil with borders from the neighbours, until the largest change on any device is small."""
    jnp, lax = jax.numpy, jax.lax
    every = ("d", "m")
    up, down = [(n, n + 1) for n in range(7)], [(n + 1, n) for n in range(7)]

    def on_device(field: Any, source: Any) -> Any:
        def body(state: Any) -> Any:
            field, _, count = state
            above = lax.ppermute(field[-1:], every, up)
            below = lax.ppermute(field[:1], every, down)
            padded = jnp.pad(jnp.concatenate([above, field, below]), ((0, 0), (1, 1)), mode="edge")
            around = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
            new = 0.25 * around + 0.1 * source
            return new, lax.pmax(jnp.abs(new - field).max(), every), count + 1

        state = (field, jnp.float32(1e9), 0)
        field, change, count = lax.while_loop(lambda s: (s[1] > 0.02) & (s[2] < 30), body, state)
        return field, lax.psum(field.sum(), every), change, count

    function = mapped(jax, on_device, [(every,), (every,)], (every,), (), (), ())

    def heat_exchange(field: Any, source: Any) -> Any:
        return function(field, source)

    return heat_exchange, (normal(1, 16, 6), positive(2, 16, 6))


@_program(specs=(("d", "m"), (None, "m"), ("m",), (None,), ("d",)))
def _sequence_parallel(jax: Any) -> Any:
    """A block whose sequence is sharded outside of the products and gathered for them; losses by a sharded vocabulary."""
    jnp, lax = jax.numpy, jax.lax

    def on_device(x: Any, up: Any, down: Any, scale: Any, labels: Any) -> Any:
        def loss(up: Any, down: Any) -> Any:
            normed = x * lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale
            whole = lax.all_gather(normed, "m", axis=1, tiled=True)
            hidden = jax.nn.silu(whole @ up)
            part = lax.psum_scatter(hidden @ down, "m", scatter_dimension=1, tiled=True)
            out = lax.all_gather(x + part, "m", axis=1, tiled=True)
            logits = out @ up
            top = lax.pmax(lax.stop_gradient(logits).max(-1), "m")
            total = lax.psum(jnp.exp(logits - top[..., None]).sum(-1), "m")
            place = labels - lax.axis_index("m") * 6
            inside = (place >= 0) & (place < 6)
            picked = jnp.take_along_axis(logits, jnp.clip(place, 0, 5)[..., None], -1)[..., 0]
            picked = lax.psum(jnp.where(inside, picked, 0.0), "m")
            return lax.pmean((jnp.log(total) + top - picked).mean(), "d"), part

        (value, part), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(up, down)
        return value, part, *(lax.pmean(each, "d") for each in gradients)

    given = (("d", "m"), (None, "m"), ("m",), (None,), ("d",))
    function = mapped(jax, on_device, given, (), ("d", "m"), (None, "m"), ("m",))

    def sequence_parallel(x: Any, up: Any, down: Any, scale: Any, labels: Any) -> Any:
        return function(x, up, down, scale, labels)

    arrays = (normal(1, 4, 8, 8) * 2, normal(2, 8, 24), normal(3, 24, 8), 1 + 0.1 * normal(4, 8))
    return sequence_parallel, (*arrays, integers(5, 24, 4, 8))
