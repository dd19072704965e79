"""Indexing, element types, sorting, contractions, sparse matrices, and how functions are called."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.jax.programs.program import Call, call, integers, normal, program

jax: Any = pytest.importorskip("jax")
pytest.importorskip("jax.experimental.sparse")
from jax.experimental import sparse  # noqa: E402
from jax.flatten_util import ravel_pytree  # noqa: E402

jnp, lax = jax.numpy, jax.lax


@program
def indexing_of_all_kinds(_: Any) -> Call:
    def all_of(x: Any, rows: Any, mask: Any) -> Any:
        return (
            x[rows],
            x[..., ::-2],
            x[rows, :, rows],
            x[None, 1:-1, 0],
            jnp.where(mask, x, -x),
            x[-1, rows[0]],
            jnp.take(x, rows, 1),
        )

    return call(all_of, normal(1, 4, 5, 6), np.int32([3, 0, -1, 9]), integers(2, 2, 4, 5, 6) > 0, exact=True)


@program
def updates_at_indices(_: Any) -> Call:
    """Set, add, multiply, minimum, apply; with repeated indices, and those out of bounds dropped, clamped or filled."""

    def all_of(x: Any, index: Any, values: Any) -> Any:
        at = x.at[index]
        return {
            "set": x.at[1].set(7),
            "add": at.add(values),
            "mul": at.mul(2),
            "min": at.min(values),
            "max": x.at[:, 1:].max(0),
            "clip": at.add(values, mode="clip"),
            "get": at.get(mode="fill", fill_value=-1),
            "apply": x.at[::2].apply(jnp.negative),
            "drop": at.set(values, mode="drop", unique_indices=False)[:0],
        }

    return call(all_of, integers(1, 20, 5, 3), np.int32([0, 2, 2, 8]), integers(2, 20, 4, 3))


@program
def narrow_element_types(_: Any) -> Call:
    """Rounding into each type, arithmetic in it, and back."""

    def all_of(x: Any) -> Any:
        floats = [jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.float8_e4m3b11fnuz]
        narrow = [x.astype(kind) for kind in floats]
        whole = [(x * 2).astype(kind) for kind in (jnp.int4, jnp.uint4, jnp.int8, jnp.uint16)]
        return narrow, [(n + n).astype(jnp.float32) for n in narrow], whole, [(w + w).astype(int) for w in whole]

    return call(all_of, np.float32([0, 0.3, 1.7, -2.2, 3.5, -0.01]), exact=True)


@program
def bits_and_integers(_: Any) -> Call:
    def all_of(x: Any, y: Any) -> Any:
        counts = lax.population_count(x), lax.clz(x)
        shifted = x << 3, x >> 2, lax.shift_right_logical(x, jnp.full_like(x, 5))
        divided = x // y, x % y, lax.div(x, y), lax.rem(x, y), jnp.gcd(x, y), jnp.abs(x), x**2
        return counts, shifted, divided, x & y, x ^ ~y, lax.bitcast_convert_type(x, jnp.uint8)

    return call(all_of, np.int32([7, -7, 2**31 - 1, -(2**31), 0, 123456]), np.int32([3, 3, -5, -1, 7, -1000]))


@program
def sorted_and_searched(_: Any) -> Call:
    """Sorting by several keys, stably; sets and counts of a known size."""

    def all_of(x: Any, y: Any) -> Any:
        unique = jnp.unique(x, size=6, fill_value=-1, return_inverse=True, return_counts=True)
        order = jnp.lexsort((y, x))
        found = jnp.searchsorted(jnp.sort(x), y, side="right"), jnp.bincount(x, length=8), jnp.digitize(y, x[:1])
        merged = lax.sort((x, y, jnp.arange(x.size)), num_keys=2), lax.top_k(y, 3), jnp.argsort(-x, stable=True)
        return unique, order, found, merged, jnp.isin(x, y), jnp.union1d(x, y, size=9, fill_value=-1)

    return call(all_of, integers(1, 8, 12), integers(2, 8, 12))


@program
def contractions(_: Any) -> Call:
    def all_of(x: Any, y: Any, z: Any) -> Any:
        attention = jnp.einsum("bqd,bkd->bqk", x, y)
        return attention, jnp.einsum("bqk,bkd,dq->b", attention, y, z), jnp.tensordot(x, z, 1), jnp.kron(z, z[:2, :2])

    return call(all_of, normal(1, 2, 3, 4), normal(2, 2, 5, 4), normal(3, 4, 3))


@program
def convolutions(_: Any) -> Call:
    def all_of(x: Any, kernel: Any) -> Any:
        layout = ("NHWC", "HWIO", "NHWC")
        strided = lax.conv_general_dilated(x, kernel, (2, 1), "SAME", rhs_dilation=(1, 2), dimension_numbers=layout)
        grouped = lax.conv_general_dilated(
            x, kernel[:, :, :1], (1, 1), "VALID", dimension_numbers=layout, feature_group_count=2
        )
        pooled = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return strided, grouped, pooled, lax.conv_transpose(x, kernel, (2, 2), "SAME", dimension_numbers=layout)

    return call(all_of, normal(1, 2, 6, 7, 2), normal(2, 3, 3, 2, 4))


@program
def static_donated_and_named_arguments(_: Any) -> Call:
    """Static arguments by number and name, a donated buffer, defaults, keywords, and arguments that are not used."""

    def function(
        state: Any, mode: str, unused: Any, *, scale: Any = 2, power: int = 1, flags: Any = (True, None)
    ) -> Any:
        result = state * scale if mode == "scale" else state + scale
        return {"state": result**power, "flags": flags, "nothing": (), "constant": 3}

    options = {"static_argnums": 1, "static_argnames": ("power",), "donate_argnums": 0}
    return call(function, jnp.arange(5), "scale", None, scale=jnp.int32(3), power=2, options=options)


@program
def method_of_a_class(_: Any) -> Call:
    """`self` is static, as a class that hashes by its fields; weakly typed numbers stay so."""

    class Model:
        def __init__(self, size: int) -> None:
            self.size = size

        def __call__(self, x: Any, y: Any = 1) -> Any:
            return jnp.tile(x, self.size) + y, 2 * x, x / 2, jnp.asarray(y) * 1.5

    return call(Model(3), np.int8([1, 2]), 7, exact=True)


@program
def nested_and_named_functions(_: Any) -> Call:
    """jit in jit, a partial function, a named scope and a closure over an array."""
    table = jnp.arange(10) ** 2

    @partial(jax.jit, static_argnames="times", inline=False)
    def look_up(x: Any, times: int) -> Any:
        for _ in range(times):
            x = table[x % 10]
        return x

    def outer(x: Any) -> Any:
        with jax.named_scope("outer"):
            inner = jax.named_call(look_up, name="inner")
            return look_up(x, times=2), inner(x, times=3), look_up(x + 1, times=2)

    return call(partial(outer), jnp.arange(6))


@program
def raveled_structures(_: Any) -> Call:
    """One vector of a tree's leaves and back, as optimizers of SciPy need it."""

    def both(tree: Any) -> Any:
        flat, unravel = ravel_pytree(tree)
        return flat, unravel(flat * 2), jax.tree.map(jnp.shape, tree)

    return call(both, {"b": (normal(1, 2, 3), None), "a": [normal(2, 4), 3.0]}, exact=True)


@program
def sparse_matrix_products(_: Any) -> Call:
    """BCOO: from dense, with vectors and matrices, transposed, and differentiated by its entries."""

    def all_of(dense: Any, vector: Any, matrix: Any) -> Any:
        a = sparse.BCOO.fromdense(dense, nse=8)
        gradient = jax.grad(lambda data: (sparse.BCOO((data, a.indices), shape=a.shape) @ vector).sum() ** 2)(a.data)
        return a, a @ vector, a @ matrix, a.T.todense(), gradient, sparse.sparsify(jnp.sum)(a)

    dense = normal(1, 5, 6) * (integers(2, 4, 5, 6) == 0)
    return call(all_of, dense, normal(3, 6), normal(4, 6, 2))


@program
def argument_that_is_sparse(_: Any) -> Call:
    """A BCOO matrix is an argument and a result; duplicates are summed."""

    def doubled(a: Any) -> Any:
        return sparse.bcoo_sum_duplicates(a, nse=4), (a + a).todense()

    indices = np.int32([[0, 1], [2, 2], [0, 1], [1, 0]])
    return call(doubled, sparse.BCOO((jnp.arange(1, 5), indices), shape=(3, 3)))
