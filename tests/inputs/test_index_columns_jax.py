"""What JAX lowers indexing to, and what XLA:CPU makes of it, gets indices of the whole dimension that they count in.

What is right follows from JAX's own semantics: `x[i, j]` takes rows 0 to 7 and columns 0 to 1571 of x.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hloexec

jax = pytest.importorskip("jax")
jnp = jax.numpy
lax = jax.lax

X, INDEX, PAIRS = ("float32", (8, 1572)), ("int32", (500,)), ("int32", (500, 2))
ROWS, TOKENS, BOTH = [(0, 7)], [(0, 1571)], [(0, 7), (0, 1571)]
DIMENSIONS = lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0, 1), start_index_map=(0, 1))


def gathered(mode: str | None) -> Callable[..., Any]:
    return lambda x, p: lax.gather(x, p, DIMENSIONS, (1, 1), mode=mode)


def scanned(x: Any, p: Any) -> Any:
    return lax.scan(lambda total, pair: (total + x[pair[0], pair[1]], None), 0.0, p)[0]


def looped(x: Any, p: Any) -> Any:
    return lax.fori_loop(0, 500, lambda k, total: total + x[p[k, 0], p[k, 1]], 0.0)


CASES: dict[str, tuple[Callable[..., Any], list[Any], list[Any]]] = {
    "x[i, j]": (lambda x, i, j: x[i, j], [X, INDEX, INDEX], [ROWS, TOKENS]),
    "x[i, :, j]": (lambda x, i, j: x[i, :, j], [("float32", (8, 3, 1572)), INDEX, INDEX], [ROWS, TOKENS]),
    "embedding": (lambda w, i: w[i], [("float32", (1572, 8)), ("int32", (8, 64))], [TOKENS]),
    "take along an axis": (lambda w, i: jnp.take_along_axis(w, i, axis=1), [X, ("int32", (8, 100))], [TOKENS]),
    "logits of labels": (lambda x, y: x[jnp.arange(300), y], [("float32", (300, 1572)), ("int32", (300,))], [TOKENS]),
    "set": (lambda x, i, j: x.at[i, j].set(1.0), [X, INDEX, INDEX], [ROWS, TOKENS]),
    "add, dropped beyond": (lambda x, i, j: x.at[i, j].add(1.0, mode="drop"), [X, INDEX, INDEX], [ROWS, TOKENS]),
    "get, clipped": (lambda x, i, j: x.at[i, j].get(mode="clip"), [X, INDEX, INDEX], [ROWS, TOKENS]),
    "gradient": (jax.grad(lambda x, i, j: x[i, j].sum()), [X, INDEX, INDEX], [ROWS, TOKENS]),
    "columns of pairs": (lambda x, p: x[p[:, 0], p[:, 1]], [X, PAIRS], [BOTH]),
    "columns of turned pairs": (lambda x, p: x[p[0], p[1]], [X, ("int32", (2, 500))], [[(0, 7), (0, 1571)]]),
    "gather": (gathered(None), [X, PAIRS], [BOTH]),
    "gather, clipped": (gathered("clip"), [X, PAIRS], [BOTH]),
    "gather, filled": (gathered("fill"), [X, PAIRS], [BOTH]),
    "scan": (scanned, [X, PAIRS], [BOTH]),
    "loop": (looped, [X, PAIRS], [BOTH]),
    "slices": (
        lambda x, p: jax.vmap(lambda q: lax.dynamic_slice(x, (q[0], q[1]), (2, 72)))(p),
        [X, PAIRS],
        [[(0, 6), (0, 1500)]],
    ),
    "updates of slices": (
        lambda x, i, j: jax.vmap(lambda a, b: lax.dynamic_update_slice(x, jnp.ones((2, 72)), (a, b)))(i, j),
        [X, ("int32", (200,)), ("int32", (200,))],
        [[(0, 6)], [(0, 1500)]],
    ),
    "a reversed pair": (lambda x, p: x[p[:, 1], p[:, 0]], [X, PAIRS], [[(0, 1571), (0, 7)]]),
    "pairs of one slice each": (
        lambda x, i, j: x[jnp.where(i < 0, i + 8, i), jnp.clip(j, 0, 1571)], [X, INDEX, INDEX], [ROWS, TOKENS]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("is_compiled", [False, True], ids=["lowered", "compiled"])
def test_indices_are_those_of_the_dimension(name: str, is_compiled: bool) -> None:
    function, shapes, expected = CASES[name]
    lowered = jax.jit(function).lower(*(jax.ShapeDtypeStruct(sizes, kind) for kind, sizes in shapes))
    text = lowered.compile().as_text() if is_compiled else lowered.as_text(dialect="hlo")
    values = [np.asarray(value) for value in hloexec.random_inputs(hloexec.parse(text))]
    for value, columns in zip([value for value in values if value.dtype.kind == "i"], expected, strict=True):
        parts = [value] if len(columns) == 1 else list(np.moveaxis(value, value.shape.index(2), 0))
        for part, (low, high) in zip(parts, columns, strict=True):
            assert part.min() >= low and part.max() <= high
            assert np.ptp(part.astype(np.int64)) >= 0.8 * (high - low)
