"""Loops, conditions, scans, and one in another."""

from typing import Any

import pytest

from tests.jax.programs.program import Call, call, integers, normal, positive, program

jax: Any = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax


@program
def recurrent_network(_: Any) -> Call:
    """A scan of a carried structure, backwards and unrolled, with its gradient."""

    def loss(parameters: Any, inputs: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            hidden, count = carry
            hidden = jnp.tanh(x @ parameters["in"] + hidden @ parameters["on"])
            return (hidden, count + 1), hidden.sum()

        (hidden, count), sums = lax.scan(step, (jnp.zeros(4), 0), inputs, reverse=True, unroll=2)
        return (hidden**2).sum(), (sums, count)

    parameters = {"in": normal(1, 3, 4), "on": normal(2, 4, 4)}
    return call(jax.value_and_grad(loss, has_aux=True), parameters, normal(3, 7, 3))


@program
def square_roots_by_newton(_: Any) -> Call:
    """A while loop under vmap, which goes on until the last one has converged; six steps are enough for each."""

    def root(a: Any) -> Any:
        def improve(state: Any) -> Any:
            x, count = state
            return (x + a / x) / 2, count + 1

        return lax.while_loop(lambda state: state[1] < 6 + (a > 1), improve, (a, 0))

    return call(jax.vmap(root), positive(1, 6) * 2)


@program
def collatz_lengths(_: Any) -> Call:
    def length(n: Any) -> Any:
        def step(state: Any) -> Any:
            n, count = state
            return lax.cond(n % 2 == 0, lambda n: n // 2, lambda n: 3 * n + 1, n), count + 1

        return lax.while_loop(lambda state: state[0] != 1, step, (n, 0))[1]

    return call(lambda n: (length(n[3]), jax.vmap(length)(n)), jnp.arange(1, 30))


@program
def branches_of_all_kinds(_: Any) -> Call:
    """Conditions of one value and of many, a switch whose index is clamped, and their derivatives."""

    branches = [jnp.sin, lambda x: x**2, lambda x: jnp.exp(-x)]

    def chosen(index: Any, x: Any) -> Any:
        return lax.switch(index, branches, x) + lax.cond(x > 0.5, lambda x: 2 * x, jnp.zeros_like, x)

    def all_of(indices: Any, x: Any) -> Any:
        return jax.vmap(jax.value_and_grad(chosen, 1))(indices, x), lax.switch(indices[0], branches, x)

    return call(all_of, jnp.array([7, -3, 1, 2, 0]), positive(1, 5))


@program
def sieve_with_dynamic_bounds(_: Any) -> Call:
    """Bounds that are arguments, and updates in place."""

    def sieve(count: Any, is_prime: Any) -> Any:
        def strike(n: Any, is_prime: Any) -> Any:
            return jnp.where((jnp.arange(is_prime.size) % n == 0) & (jnp.arange(is_prime.size) > n), False, is_prime)

        is_prime = lax.fori_loop(2, count, strike, is_prime.at[:2].set(False))
        return is_prime, jnp.nonzero(is_prime, size=12, fill_value=-1)[0]

    return call(sieve, 8, jnp.ones(50, bool))


@program
def linear_recurrence_by_associative_scan(_: Any) -> Call:
    def combine(left: Any, right: Any) -> Any:
        return left[0] * right[0], left[1] * right[0] + right[1]

    def recurrence(decays: Any, inputs: Any) -> Any:
        forward = lax.associative_scan(combine, (decays, inputs))[1]
        return forward, lax.associative_scan(jnp.maximum, inputs, reverse=True)

    return call(recurrence, positive(1, 11, 3), normal(2, 11, 3))


@program
def map_in_batches(_: Any) -> Call:
    return call(lambda x: lax.map(lambda row: jnp.sort(row)[::-1] * row.sum(), x, batch_size=3), normal(1, 8, 4))


@program
def loops_in_loops(_: Any) -> Call:
    """A scan in a condition in a while loop, as in solvers with restarts."""

    def relax(grid: Any) -> Any:
        def sweep(grid: Any, _: Any) -> Any:
            inner = (grid[:-2, 1:-1] + grid[2:, 1:-1] + grid[1:-1, :-2] + grid[1:-1, 2:]) / 4
            return grid.at[1:-1, 1:-1].set(inner), inner.mean()

        def body(state: Any) -> Any:
            grid, count = state
            grid = lax.cond(
                count % 2 == 0, lambda g: lax.scan(sweep, g, length=3)[0], lambda g: sweep(g, None)[0], grid
            )
            return grid, count + 1

        return lax.while_loop(lambda state: state[1] < 5, body, (grid, 0))

    return call(relax, normal(1, 6, 7))


@program
def gradient_through_checkpointed_scan(_: Any) -> Call:
    """A pendulum's energy by the angle that it starts at."""

    def energy(angle: Any) -> Any:
        @jax.checkpoint
        def step(state: Any, time: Any) -> Any:
            angle, speed = state
            speed = speed - 0.125 * jnp.sin(angle) * jnp.cos(time)
            return (angle + 0.125 * speed, speed), angle

        (angle, speed), path = lax.scan(step, (angle, jnp.zeros_like(angle)), jnp.arange(8.0) / 8)
        return speed**2 / 2 - jnp.cos(angle) + path.sum()

    return call(jax.value_and_grad(energy), 0.75)


@program
def beam_search(_: Any) -> Call:
    """The best sequences of a table of integer scores: top_k, gathers and a scan of them."""

    def search(scores: Any) -> Any:
        def extend(state: Any, _: Any) -> Any:
            totals, last = state
            candidates = totals[:, None] + scores[last]
            totals, chosen = lax.top_k(candidates.reshape(-1), 3)
            beams, tokens = jnp.divmod(chosen, scores.shape[1])
            return (totals, tokens), (beams, tokens)

        return lax.scan(extend, (jnp.array([0, -1000, -1000]), jnp.zeros(3, int)), length=4)

    return call(search, integers(1, 100, 5, 5))


@program
def loop_over_keys(_: Any) -> Call:
    """A random walk: a typed key is carried along, and one is split for each walker."""

    def walk(key: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            key, position = state
            key, own = jax.random.split(key)
            position = position + jax.random.randint(own, (2,), -1, 2)
            return (key, position), position

        return lax.scan(step, (key, jnp.zeros(2, int)), length=6)

    return call(lambda key: jax.vmap(walk)(jax.random.split(key, 3)), jax.random.key(5))
