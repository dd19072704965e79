"""`python -m evaluation.kernels.running FOLDER`: the steps of `compiled`, run by hloexec from their texts alone.

Prints how far each result is from the same step in f64, in parts of its largest number. Where a kernel says that it
rounds to bf16, so does what it is compared with.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import hloexec
from evaluation.kernels.compiled import of_gathering, of_serving, of_training


def serving() -> list[Any]:
    """What `serving` gives, in f64; pages are rounded to bf16, as its kernel rounds them."""
    w, scale, hidden, *pages, lengths, table = of_serving()
    size = (np.abs(hidden).max(-1, keepdims=True) / np.float32(127)).astype(np.float32)
    product = np.round(hidden / size).astype(np.int64) @ w.astype(np.int64)
    queries = (product * size.astype(np.float64) * scale).reshape(32, 8, 128) * 0.09
    keys, values = (part.astype(ml_dtypes.bfloat16).astype(np.float64) for part in pages)
    rows = []
    for query, length, own in zip(queries, lengths, table, strict=True):
        key, value = (part[:, own].reshape(8, 64, 128)[:, :length] for part in (keys, values))
        scores = np.einsum("hd,hkd->hk", query, key)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        rows.append(np.einsum("hk,hkd->hd", weights / weights.sum(-1, keepdims=True), value))
    return [np.tanh(np.array(rows).reshape(32, -1)), lengths + 1]


def gathering() -> list[Any]:
    """What `gathering` gives on all devices together, in f64."""
    x, w = (part.astype(np.float64) for part in of_gathering())
    part = np.tanh(x @ w)
    return [part, (part**2).sum()]


def training() -> list[Any]:
    """What `training` gives, in f64, by XLA:CPU."""
    import jax
    import jax.numpy as jnp

    def loss(w: Any) -> Any:
        query, key, value = ((x @ w[name]).reshape(256, 2, 128) for name in "qkv")
        scores = jnp.where(jnp.tri(256, dtype=bool), jnp.einsum("qhd,khd->hqk", query, key) * 0.09, -jnp.inf)
        attended = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores, -1), value).reshape(256, -1)
        return ((x + jnp.tanh(attended @ w["o"]) - y) ** 2).mean()

    with jax.enable_x64(True):
        w, x, y = jax.tree.map(lambda part: jnp.asarray(part, jnp.float64), of_training())
        value, gradient = jax.value_and_grad(loss)(w)
        return [*(np.asarray(w[name] - 100 * gradient[name]) for name in sorted(w)), np.asarray(value)]


def _apart(actual: Sequence[Any], expected: Sequence[Any]) -> str:
    parts = (float(np.abs(one - two).max() / np.abs(two).max()) for one, two in zip(actual, expected, strict=True))
    return ", ".join(f"{part:.1e}" for part in parts)


def main(folder: str) -> None:
    serve, gather, train = (hloexec.load(Path(folder) / f"{name}.hlo") for name in ("serving", "gathering", "training"))
    print("serving:", _apart(hloexec.run(serve, *of_serving()), serving()))
    x, w = of_gathering()
    shards = [[x[16 * device : 16 * device + 16], w[:, 128 * device : 128 * device + 128]] for device in range(4)]
    results = hloexec.run_devices(gather, shards)
    part, total = zip(*results, strict=True)
    print("gathering:", _apart([np.concatenate(part, 1), np.array(total)], gathering()))
    matrices, *data = of_training()
    print("training:", _apart(hloexec.run(train, *(matrices[name] for name in sorted(matrices)), *data), training()))


if __name__ == "__main__":
    main(*sys.argv[1:])
