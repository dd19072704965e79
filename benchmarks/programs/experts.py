"""A mixture-of-experts layer: each of 2048 tokens goes to 2 of 8 experts, by sorting, with a limited capacity."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.sizes import Program, array, sized


def top_2_layer(scale: float) -> Program:
    """Width 512, hidden width 1024, room for 1.25 times an expert's fair share of tokens."""
    size = sized(scale, least=2)
    tokens, width, hidden, experts = size(2048), size(512), size(1024), sized(scale, least=4)(8)
    capacity = -(-2 * tokens * 5 // (4 * experts))

    def layer(w: Any, x: Any) -> Any:
        gates, chosen = jax.lax.top_k(jax.nn.softmax(x @ w["router"]), 2)
        expert = chosen.reshape(-1)
        order = jnp.argsort(expert)
        token, expert = order // 2, expert[order]
        first = jnp.searchsorted(expert, jnp.arange(experts))
        position = jnp.arange(2 * tokens) - first[expert]
        slot = jnp.where(position < capacity, expert * capacity + position, experts * capacity)
        gathered = jnp.zeros((experts * capacity, width)).at[slot].set(x[token], mode="drop")
        inner = jax.nn.silu(jnp.einsum("ecd,edf->ecf", gathered.reshape(experts, capacity, width), w["up"]))
        computed = jnp.einsum("ecf,efd->ecd", inner, w["down"]).reshape(experts * capacity, width)
        back = computed.at[slot].get(mode="fill", fill_value=0) * gates.reshape(-1)[order][:, None]
        return jnp.zeros_like(x).at[token].add(back)

    weights = {
        "router": array(width, experts),
        "up": array(experts, width, hidden),
        "down": array(experts, hidden, width),
    }
    return layer, (weights, array(tokens, width))
