"""One training step of a graph network: messages along edges are gathered from nodes and summed up at others.

Battaglia et al., Relational inductive biases, deep learning, and graph networks (2018), algorithm 1, without globals.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.programs.sizes import Program, array, sized


def graph_network_train_step(scale: float) -> Program:
    """2 rounds over 4096 nodes and 16384 edges of width 64; the squared error of one number per node, with momentum."""
    size = sized(scale, least=2)
    nodes, edges, width, rounds = size(4096), size(16384), size(64), 2

    def perceptron(w: Any, x: Any) -> Any:
        y = jax.nn.relu(x @ w["in"] + w["bias"]) @ w["out"]
        centred = y - y.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * w["gain"]

    def loss(weights: Any, x: Any, e: Any, senders: Any, receivers: Any, target: Any) -> Any:
        for w in weights["rounds"]:
            e = e + perceptron(w["edge"], jnp.concatenate([e, x[senders], x[receivers]], -1))
            inbox = jax.ops.segment_sum(e, receivers, nodes)
            x = x + perceptron(w["node"], jnp.concatenate([x, inbox], -1))
        return jnp.square(x @ weights["head"] - target).mean()

    def step(weights: Any, momentum: Any, *graph: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(weights, *graph)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
        return value, jax.tree.map(lambda p, m: p - 0.01 * m, weights, momentum), momentum

    def layers(inputs: int) -> Any:
        return {
            "in": array(inputs, width),
            "bias": array(width),
            "out": array(width, width),
            "gain": array(width),
        }

    weights = {
        "rounds": [{"edge": layers(3 * width), "node": layers(2 * width)}] * rounds,
        "head": array(width),
    }
    ends = array(edges, dtype=np.int32)
    return step, (weights, weights, array(nodes, width), array(edges, width), ends, ends, array(nodes))
