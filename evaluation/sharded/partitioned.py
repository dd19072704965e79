"""Steps over eight devices that say by shardings alone how they are divided: XLA's partitioner adds what they exchange.

The faults are planted in what it makes: `evaluation.partitioned.faults`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from evaluation.sharded.cases import Step


def data(w: Any, x: Any, y: Any) -> Any:
    def loss(w: Any) -> Any:
        return ((jnp.tanh(x @ w["in"]) @ w["out"] - y) ** 2).mean()

    value, gradient = jax.value_and_grad(loss)(w)
    return jax.tree.map(lambda w, g: w - 0.1 * g, w, gradient), value


def tensor(w: Any, x: Any) -> Any:
    hidden = lax.with_sharding_constraint(jax.nn.gelu(x @ w["up"] + w["bias"]), P("d", "m"))
    out = hidden @ w["down"]
    normed = (out - out.mean(-1, keepdims=True)) * lax.rsqrt(out.var(-1, keepdims=True) + 1e-3)
    return x + normed * w["gain"]


def expert(w: Any, x: Any) -> Any:
    scores = jax.nn.softmax(x @ w["router"], -1)
    gates = jnp.where(scores == scores.max(-1, keepdims=True), scores, 0)
    boxes = lax.with_sharding_constraint(jnp.einsum("te,td->etd", gates, x), P("d"))
    done = jnp.einsum("etf,efd->etd", jax.nn.silu(jnp.einsum("etd,edf->etf", boxes, w["up"])), w["down"])
    return x + lax.with_sharding_constraint(done.sum(0), P("d"))


def pipeline(w: Any, x: Any) -> Any:
    state = jnp.zeros((8, *x.shape[1:]), x.dtype)
    outputs = []
    for tick in range(x.shape[0] + 7):
        state = lax.with_sharding_constraint(state.at[0].set(x[min(tick, x.shape[0] - 1)]), P("d"))
        state = jnp.tanh(jnp.einsum("sbi,sij->sbj", state, w))
        outputs.append(state[-1])
        state = jnp.roll(state, 1, 0)
    return jnp.stack(outputs[7:])


def sequence(w: Any, x: Any) -> Any:
    q, k, v = x @ w["q"], x @ w["k"], x @ w["v"]
    scores = jnp.where(jnp.tri(x.shape[0], dtype=bool), q @ k.T, -1e9)
    return x + jax.nn.softmax(scores, -1) @ v


def stencil(x: Any, k: Any) -> Any:
    wide = jnp.pad(x, ((1, 1), (0, 0)))
    return jnp.sin(wide[:-2] * k[0] + wide[1:-1] * k[1] + wide[2:] * k[2]) + x


_TP = {"up": (8, 16), "bias": (16,), "down": (16, 8), "gain": (8,)}
_TPS = {"up": P(None, "m"), "bias": P("m"), "down": P("m"), "gain": P()}
_MOE = {"router": (6, 16), "up": (16, 6, 8), "down": (16, 8, 6)}
_MOES = {"router": P(), "up": P("d"), "down": P("d")}
_W = {"in": (8, 12), "out": (12, 4)}
_QKV = {"q": (6, 6), "k": (6, 6), "v": (6, 6)}

STEPS = [
    Step("partitioned", "data", (8,), (_W, (16, 8), (16, 4)), (P(), P("d"), P("d")), None),
    Step("partitioned", "tensor", (2, 4), (_TP, (8, 8)), (_TPS, P("d")), None),
    Step("partitioned", "expert", (8,), (_MOE, (16, 6)), (_MOES, P("d")), None),
    Step("partitioned", "pipeline", (8,), ((8, 6, 6), (3, 4, 6)), (P("d"), P()), None),
    Step("partitioned", "sequence", (8,), (_QKV, (16, 6)), (P(), P("d")), None, "reserve"),
    Step("partitioned", "stencil", (8,), ((32, 4), (3, 4)), (P("d"), P()), None, "reserve"),
]
