"""Functions of Python that are called during a run, checks, and kernels of Pallas."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.jax.programs.program import Call, call, integers, normal, program

jax: Any = pytest.importorskip("jax")
for _part in "io_callback checkify pallas".split():
    pytest.importorskip("jax.experimental" + ("" if _part == "io_callback" else f".{_part}"))
from jax.experimental import checkify, io_callback  # noqa: E402
from jax.experimental import pallas as pl  # noqa: E402

jnp, lax = jax.numpy, jax.lax


@program
def pure_callback_under_vmap(_: Any) -> Call:
    """One call for all rows, and one for each."""

    def doubled(x: Any) -> Any:
        return np.asarray(x) * 2

    def all_of(x: Any) -> Any:
        def row(x: Any, method: str) -> Any:
            return jax.pure_callback(doubled, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method=method)

        return [jax.vmap(partial(row, method=method))(x) for method in ("sequential", "expand_dims", "broadcast_all")]

    return call(all_of, normal(1, 3, 4), exact=True)


@program
def derivative_of_a_callback(_: Any) -> Call:
    """NumPy's sine with a rule for its derivative, as one wraps a solver."""

    @jax.custom_jvp
    def sine(x: Any) -> Any:
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")

    sine.defjvp(lambda primals, tangents: (sine(*primals), jnp.cos(primals[0]) * tangents[0]))
    return call(jax.vmap(jax.value_and_grad(lambda x: sine(x) ** 2)), normal(1, 5))


@program
def ordered_callbacks_in_a_scan(events: Any) -> Call:
    """Two functions by turns; the second one answers."""

    def answer(x: Any) -> Any:
        events.append(("asked", int(x)))
        return np.int32(len(events))

    def count(limit: Any) -> Any:
        def step(total: Any, x: Any) -> Any:
            io_callback(lambda x: events.append(("saw", int(x))), None, total, ordered=True)
            return total + io_callback(answer, jax.ShapeDtypeStruct((), np.int32), x, ordered=True), total

        return lax.scan(step, limit, jnp.arange(4))

    return call(count, np.int32(10))


@program
def unordered_callbacks(events: Any) -> Call:
    def log(x: Any) -> Any:
        for number in range(3):
            io_callback(lambda n, x: events.append((int(n), x.tolist())), None, number, x * number)
        return x + 1

    return call(log, integers(1, 9, 3), ordered=False)


@program
def callbacks_in_branches_and_while(events: Any) -> Call:
    """Called as often as the branch is taken; results of two types and no result."""

    def pair(x: Any) -> Any:
        events.append(int(x))
        return np.float32(x) / 2, np.bool_(x > 2)

    def loop(x: Any) -> Any:
        shapes = jax.ShapeDtypeStruct((), np.float32), jax.ShapeDtypeStruct((), np.bool_)

        def asked(x: Any) -> Any:
            half, is_large = io_callback(pair, shapes, x, ordered=True)
            return x + is_large + half.astype(int)

        return lax.while_loop(lambda x: x < 12, lambda x: lax.cond(x % 2 == 0, asked, lambda x: x, x + 1), x)

    return call(loop, np.int32(0))


@program
def printed_in_a_scan(_: Any) -> Call:
    def step(carry: Any, x: Any) -> Any:
        jax.debug.print("carry {carry} x {x:.2f}", carry=carry, x=x, ordered=True)
        lax.cond(carry > 3, lambda: jax.debug.print("large: {}", carry, ordered=True), lambda: None)
        return carry + 1, x * 2

    return call(lambda x: lax.scan(step, 2, x), jnp.arange(4.0) / 4, exact=True)


@program
def printed_arrays_and_braces(_: Any) -> Call:
    def show(x: Any, flag: Any) -> Any:
        jax.debug.print("{{x}} = {}", x)
        jax.debug.print("{flag!r:>8} {tree}", flag=flag, tree={"a": x[0], "b": None}, ordered=True)
        return x

    return call(show, np.arange(6, dtype=np.int16).reshape(2, 3), True, ordered=False)


@program
def seen_under_vmap(events: Any) -> Call:
    """A callback for each row of a batch, and one in the backward pass."""

    @jax.custom_vjp
    def watched(x: Any) -> Any:
        return x

    def backward(_: Any, cotangent: Any) -> Any:
        jax.debug.callback(lambda c: events.append(("cotangent", float(c))), cotangent)
        return (cotangent,)

    watched.defvjp(lambda x: (x, None), backward)

    def loss(x: Any) -> Any:
        jax.debug.callback(lambda x: events.append(("primal", float(x))), x)
        return watched(x) * 2

    return call(jax.vmap(jax.grad(loss)), integers(1, 9, 4).astype(np.float32), ordered=False)


@program
def checks_of_values_and_indices(_: Any) -> Call:
    """What fails is a part of the result: out of bounds, a NaN, a check of the user's, one in a loop."""

    def checked(x: Any, index: Any) -> Any:
        checkify.check(index >= 0, "negative index {i}", i=index)
        total = lax.fori_loop(0, 3, lambda i, t: t + jnp.log(x[index + i]), 0.0)
        return total + jnp.sqrt(x[0])

    function = checkify.checkify(checked, errors=checkify.all_checks)

    def all_of(x: Any) -> Any:
        return [function(x, jnp.int32(index)) for index in (0, -1, 4)]

    return call(all_of, jnp.array([1.0, 2.0, 4.0, 0.5, 3.0]))


@program
def pallas_kernel_with_blocks(_: Any) -> Call:
    """A product of blocks that is added up along the last axis of the grid."""

    def kernel(x: Any, y: Any, out: Any) -> Any:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            out[...] = jnp.zeros_like(out)

        out[...] += x[...] @ y[...]

    product = pl.pallas_call(
        kernel,
        jax.ShapeDtypeStruct((8, 12), np.float32),
        grid=(2, 3, 4),
        in_specs=[pl.BlockSpec((4, 2), lambda i, j, k: (i, k)), pl.BlockSpec((2, 4), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((4, 4), lambda i, j, k: (i, j)),
        interpret=True,
    )
    return call(product, normal(1, 8, 8), normal(2, 8, 12))


@program
def pallas_kernel_with_loops(_: Any) -> Call:
    """Rows that do not divide the array, a loop over columns, loads and stores of dynamic slices."""

    def kernel(x: Any, scale: Any, out: Any) -> Any:
        def column(j: Any, running: Any) -> Any:
            running = running + x[:, pl.ds(j, 1)] * scale[0]
            out[:, pl.ds(j, 1)] = running
            return running

        lax.fori_loop(0, x.shape[1], column, jnp.zeros((x.shape[0], 1), x.dtype))

    def cumulative(x: Any, scale: Any) -> Any:
        return pl.pallas_call(
            kernel,
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(3,),
            in_specs=[pl.BlockSpec((2, 5), lambda i: (i, 0)), pl.BlockSpec((1,), lambda i: (0,))],
            out_specs=pl.BlockSpec((2, 5), lambda i: (i, 0)),
            interpret=True,
        )(x, scale)

    return call(cumulative, integers(1, 20, 5, 5), np.int32([3]))
