"""Programs whose buffers XLA assigns for the tests; run as a module, compiles them all so that XLA dumps them.

Between them: loops that carry, swap and pass on values, loops in loops, branches in loops and in branches, with values
that only one branch reads, updates in place with and without a donated argument, sorts, library calls with aliased results, collectives, and shapes of every kind.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

HLO_TEXTS = {
    "callers": """HloModule callers
f { p = f32[64] parameter(0)
 s = f32[64] sine(p)
 ROOT c = f32[64] cosine(s) }
ENTRY e { a = f32[64] parameter(0)
 x = f32[64] call(a), to_apply=f
 y = f32[64] call(x), to_apply=f
 ROOT r = (f32[64], f32[64]) tuple(y, a) }""",
    "branches": """HloModule branches
f { p = (f32[64], f32[64]) parameter(0)
 g = f32[64] get-tuple-element(p), index=0
 h = f32[64] get-tuple-element(p), index=1
 ROOT c = (f32[64], f32[64]) tuple(h, g) }
g { p = (f32[64], f32[64]) parameter(0)
 ROOT c = (f32[64], f32[64]) copy(p) }
ENTRY e { a = f32[64] parameter(0)
 i = s32[] parameter(1)
 s = f32[64] sine(a)
 t = (f32[64], f32[64]) tuple(s, a)
 ROOT y = (f32[64], f32[64]) conditional(i, t, t, t), branch_computations={f, f, g} }""",
    "nested_tuples": """HloModule nested_tuples
body { p = (s32[], (f32[64], f32[64]), f32[64]) parameter(0)
 i = s32[] get-tuple-element(p), index=0
 one = s32[] constant(1)
 j = s32[] add(i, one)
 t = (f32[64], f32[64]) get-tuple-element(p), index=1
 a = f32[64] get-tuple-element(t), index=0
 b = f32[64] get-tuple-element(t), index=1
 c = f32[64] get-tuple-element(p), index=2
 u = (f32[64], f32[64]) tuple(b, c)
 ROOT r = (s32[], (f32[64], f32[64]), f32[64]) tuple(j, u, c) }
cond { p = (s32[], (f32[64], f32[64]), f32[64]) parameter(0)
 i = s32[] get-tuple-element(p), index=0
 n = s32[] constant(5)
 ROOT l = pred[] compare(i, n), direction=LT }
ENTRY e { a = f32[64] parameter(0)
 z = s32[] constant(0)
 s = f32[64] sine(a)
 t = (f32[64], f32[64]) tuple(s, a)
 q = (s32[], (f32[64], f32[64]), f32[64]) tuple(z, t, a)
 w = (s32[], (f32[64], f32[64]), f32[64]) while(q), condition=cond, body=body
 ROOT o = (f32[64], f32[64]) get-tuple-element(w), index=1 }""",
    "bounded": """HloModule bounded
ENTRY e { a = f32[64] parameter(0)
 n = s32[] parameter(1)
 d = f32[<=64] set-dimension-size(a, n), dimensions={0}
 s = f32[<=64] sine(d)
 k = s32[] get-dimension-size(s), dimensions={0}
 ROOT o = (f32[<=64], s32[]) tuple(s, k) }""",
    "odd_types": """HloModule odd_types
ENTRY e { a = f32[64] parameter(0)
 c = c64[8,8] parameter(1)
 p = pred[3] constant({1,0,1})
 s = f32[64] sine(a)
 t = (f32[64], f32[64]) tuple(s, a)
 b = (f32[64], f32[64]) opt-barrier(t)
 y = f32[64] get-tuple-element(b), index=0
 u = s4[64] convert(y)
 l = c64[8,8] add(c, c)
 ROOT o = (f32[64], s4[64], pred[3], c64[8,8]) tuple(y, u, p, l) }""",
}


def jax_programs() -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Functions with arguments."""
    import jax
    import jax.numpy as jnp
    from jax import lax, shard_map
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    square = np.ones((16, 16), np.float32)

    def carried(x: Any) -> Any:
        return lax.fori_loop(0, 10, lambda i, c: (c[0] @ c[1], jnp.sin(c[1]) + i), (x, x * 2))

    def passed_around(x: Any) -> Any:
        return lax.fori_loop(0, 5, lambda i, c: (c[1], c[0]), (x, x))

    def swapped(x: Any) -> Any:
        return lax.fori_loop(0, 5, lambda i, c: (c[1], c[0]), (x, x + 1))

    def branch_in_loops(x: Any) -> Any:
        def outer(i: Any, carry: Any) -> Any:
            def inner(j: Any, carry: Any) -> Any:
                a, b, k = carry
                return lax.cond(i > j, lambda a: jnp.sin(a) @ b, lambda a: a + 1.0, a), b, k + 1

            a, b = carry
            a, b, k = lax.fori_loop(0, i, inner, (a, b, 0))
            return b, a * k

        return lax.fori_loop(0, 5, outer, (x, x.T))

    def loops_in_branches_in_loops(x: Any, y: Any, z: Any) -> Any:
        def added_or_multiplied(j: Any, carry: Any) -> Any:
            return lax.cond(j > 1, lambda a, b: (a + b, b), multiplied, *carry)

        def multiplied(a: Any, b: Any) -> Any:
            return lax.fori_loop(0, 2, lambda k, carry: (carry[1] @ carry[0], carry[0]), (a, b))

        def outer(i: Any, carry: Any) -> Any:
            def looped(a: Any, b: Any, z: Any) -> Any:
                return lax.fori_loop(0, i, added_or_multiplied, (a, b))

            return *lax.cond(carry[0].sum() > i, looped, lambda a, b, z: (z, a * b), *carry), carry[2]

        return lax.fori_loop(0, 3, outer, (x, y, z))

    def switch_in_a_loop(i: Any, x: Any, y: Any, row: Any) -> Any:
        def step(j: Any, carry: Any) -> Any:
            branches = (
                lambda x, y: (lax.dynamic_update_slice(x, row, (j, 0)), y),
                lambda x, y: (x, lax.dynamic_update_slice(y, row, (0, 0))),
                lambda x, y: (x @ y, y),
                lambda x, y: (y, x),
            )
            return lax.switch((i + j) % 4, branches, *carry)

        return lax.fori_loop(0, 5, step, (x, y))

    def invariant(x: Any, y: Any) -> Any:
        return lax.while_loop(lambda c: c[0].sum() < 100, lambda c: (c[0] + c[1], c[1], c[2]), (x, y, x * 2))

    def scanned(xs: Any, w: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            carry = jnp.tanh(carry @ w + x)
            return carry, carry

        return lax.scan(step, jnp.zeros((8, 16)), xs)[1].sum()

    def choice(p: Any, x: Any) -> Any:
        return lax.cond(p, lambda x: jnp.sort(x @ x, axis=0), lambda x: jnp.cumsum(x, axis=1), x)

    def update(cache: Any, row: Any, i: Any) -> Any:
        return lax.dynamic_update_slice(cache, row, (i, 0)), row.sum()

    def scatter(x: Any, i: Any, v: Any) -> Any:
        return x.at[i].add(v), x.at[i].set(v)

    def updated_in_loop(c: Any, xs: Any) -> Any:
        return lax.scan(lambda c, x: (c.at[x[0].astype(int)].add(x[1]), c.sum()), c, xs)

    def collectives(x: Any) -> Any:
        permuted = lax.ppermute(x, "d", [(0, 1), (1, 2)])
        return lax.psum(x, "d"), lax.all_gather(x, "d"), permuted, lax.all_to_all(x, "d", 0, 0, tiled=True)

    mesh = Mesh(np.array(jax.devices()[:4]), ("d",))
    specs = (P(), P("d"), P("d"), P("d"))
    cache, row = np.ones((128, 16), np.float32), np.ones((2, 16), np.float32)

    yield carried, (square,)
    yield passed_around, (square,)
    yield swapped, (square,)
    yield branch_in_loops, (square,)
    yield loops_in_branches_in_loops, (square, square, square)
    yield switch_in_a_loop, (1, square, square, row)
    yield invariant, (square, square)
    yield jax.grad(scanned, argnums=(0, 1)), (np.ones((5, 8, 16), np.float32), square)
    yield choice, (True, square)
    yield update, (cache, row, 3)
    yield jax.jit(update, donate_argnums=0), (cache, row, 3)
    yield scatter, (square, np.array([1, 2]), row)
    yield jax.jit(updated_in_loop, donate_argnums=0), (square, np.ones((5, 2, 16), np.float32))
    yield lambda x: (x + jnp.arange(1000.0), jnp.zeros(3), jnp.argsort(x)), (np.ones(1000, np.float32),)
    yield lambda a: (jnp.linalg.svd(a), jnp.linalg.cholesky(a), jax.scipy.linalg.solve(a, a)), (square,)
    # Loops in calls in loops, around which values travel unchanged.
    yield lambda a: jax.scipy.linalg.sqrtm(a), (square,)
    yield lambda a: (a, a.T, [a, a]), (np.ones((12, 8), np.float32),)
    yield partial(jnp.asarray, 3.0), ()
    yield lambda x: (x.astype(jnp.int4) * 2, x > 3), (np.ones((7, 5), np.float32),)
    yield lambda x: (jnp.fft.fft(x), jnp.cumsum(x), jnp.median(x)), (np.ones(64, np.float32),)
    yield jax.jit(lambda x: x[:0] + 1.0), (square,)
    yield shard_map(collectives, mesh=mesh, in_specs=P("d"), out_specs=specs), (square,)


def main() -> None:
    """Compile everything once."""
    import jax

    from conformance.xla import compile_hlo

    for text in HLO_TEXTS.values():
        compile_hlo(text)
    for function, arguments in jax_programs():
        jitted = function if hasattr(function, "lower") else jax.jit(function)
        jitted.lower(*arguments).compile()


if __name__ == "__main__":
    sys.exit(main())
