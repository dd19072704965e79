"""Lloyd's iterations of k-means: distances as a product, the nearest centre, sums by segment."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.programs.sizes import Program, array, sized


def k_means(scale: float) -> Program:
    """10 iterations on 32768 points of 32 numbers with 64 centres: centres, how many points each has, the inertia.

    An empty cluster keeps its centre. Which centre is nearest is not a result: a tie is decided by rounding.
    """
    size = sized(scale, least=2)
    points, width, clusters, iterations = size(32768), size(32), size(64), size(10)

    def distances(x: Any, centres: Any) -> Any:
        return jnp.square(centres).sum(-1) - 2 * x @ centres.T

    def iterate(_: Any, centres: Any, x: Any) -> Any:
        nearest = jnp.argmin(distances(x, centres), -1)
        totals = jax.ops.segment_sum(x, nearest, clusters)
        counts = jax.ops.segment_sum(jnp.ones(points), nearest, clusters)[:, None]
        return jnp.where(counts > 0, totals / jnp.maximum(counts, 1), centres)

    def cluster(x: Any) -> Any:
        centres = jax.lax.fori_loop(0, iterations, lambda i, c: iterate(i, c, x), x[:clusters])
        return centres, (distances(x, centres).min(-1) + jnp.square(x).sum(-1)).mean()

    return cluster, (array(points, width),)
