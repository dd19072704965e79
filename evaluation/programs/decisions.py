"""Programs whose loops go on until the data says so, and that count, choose and search more than they compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluation.programs.program import Program, integers, normal, registering

PROGRAMS: list[Program] = []
_program = registering(PROGRAMS)


@_program
def _k_means(jax: Any) -> Any:
    """Clusters until none of the assignments changes."""
    jnp = jax.numpy

    def k_means(points: Any, start: Any) -> Any:
        def nearest(centres: Any) -> Any:
            distances = ((points[:, None] - centres[None]) ** 2).sum(-1)
            return distances.argmin(1), distances.min(1).sum()

        def body(state: Any) -> Any:
            centres, labels, _, count = state
            member = jax.nn.one_hot(labels, 4)
            sizes = member.sum(0)
            means = (member.T @ points) / jnp.maximum(sizes, 1)[:, None]
            centres = jnp.where(sizes[:, None] > 0, means, centres)
            new, _ = nearest(centres)
            return centres, new, jnp.any(new != labels), count + 1

        state = (start, nearest(start)[0], jnp.array(True), 0)
        centres, labels, _, count = jax.lax.while_loop(lambda s: s[2] & (s[3] < 50), body, state)
        return centres, labels, count, nearest(centres)[1]

    points = np.concatenate([normal(n, 10, 3) + 2 * normal(9 + n, 1, 3) for n in range(4)])
    return k_means, (points, points[[0, 1, 15, 30]] + 0.1)


@_program
def _sampling_loop(jax: Any) -> Any:
    """A language model of one recurrence writes tokens into a buffer until all sequences have ended."""
    jnp, lax = jax.numpy, jax.lax

    def sampling_loop(table: Any, w: Any, out: Any, start: Any) -> Any:
        def goes_on(state: Any) -> Any:
            _, _, ended, place, _ = state
            return jnp.logical_not(ended.all()) & (place < 14)

        def body(state: Any) -> Any:
            hidden, tokens, ended, place, scores = state
            last = lax.dynamic_slice(tokens, (0, place - 1), (3, 1))[:, 0]
            hidden = jnp.tanh(hidden @ w + table[last])
            logits = jax.nn.log_softmax(hidden @ out * 4)
            token = jnp.where(ended, 0, logits.argmax(-1)).astype(jnp.int32)
            gained = jnp.take_along_axis(logits, token[:, None], 1)[:, 0]
            tokens = lax.dynamic_update_slice(tokens, token[:, None], (0, place))
            return hidden, tokens, ended | (token == 0), place + 1, scores + jnp.where(ended, 0, gained)

        tokens = jnp.zeros((3, 14), jnp.int32).at[:, 0].set(start)
        state = (jnp.zeros((3, 8)), tokens, jnp.zeros(3, bool), 1, jnp.zeros(3))
        hidden, tokens, ended, place, scores = lax.while_loop(goes_on, body, state)
        return tokens, scores / place, hidden, ended

    return sampling_loop, (normal(1, 12, 8) * 3, normal(2, 8, 8) * 2, normal(3, 8, 12), np.array([3, 7, 5], np.int32))


@_program
def _collatz(jax: Any) -> Any:
    """Many numbers at once until all have come to one; greatest common divisors beside them; all integers."""
    jnp, lax = jax.numpy, jax.lax

    def collatz(numbers: Any, others: Any) -> Any:
        def body(state: Any) -> Any:
            n, steps, top = state
            active = n > 1
            following = jnp.where(n % 2 == 0, n // 2, 3 * n + 1)
            n = jnp.where(active, following, n)
            return n, steps + active, jnp.maximum(top, n)

        zeros = jnp.zeros_like(numbers)
        _, steps, top = lax.while_loop(lambda s: jnp.any(s[0] > 1), body, (numbers, zeros, numbers))

        def divide(state: Any) -> Any:
            a, b = state
            return jnp.where(b == 0, a, b), jnp.where(b == 0, 0, lax.rem(a, jnp.maximum(b, 1)))

        divisors, _ = lax.while_loop(lambda s: jnp.any(s[1] != 0), divide, (numbers, others))
        return steps, top, divisors, numbers // divisors * others

    return collatz, (integers(1, 40, 14) + 1, integers(2, 90, 14) + 1)


@_program
def _chosen_solver(jax: Any) -> Any:
    """Each system of a batch goes to one of three solvers, and another step is taken only if it is needed."""
    jnp, lax = jax.numpy, jax.lax

    def jacobi(matrix: Any, right: Any, x: Any) -> Any:
        diagonal = jnp.diagonal(matrix)
        return x + (right - matrix @ x) / diagonal

    def richardson(matrix: Any, right: Any, x: Any) -> Any:
        return x + 0.1 * (right - matrix @ x)

    def steepest(matrix: Any, right: Any, x: Any) -> Any:
        residual = right - matrix @ x
        return x + residual * (residual @ residual) / (residual @ (matrix @ residual) + 1e-12)

    def chosen_solver(matrices: Any, rights: Any, ways: Any) -> Any:
        def solve(total: Any, given: Any) -> Any:
            matrix, right, way = given

            def body(state: Any) -> Any:
                x, _, count = state
                x = lax.switch(way, [jacobi, richardson, steepest], matrix, right, x)
                return x, jnp.sqrt(((right - matrix @ x) ** 2).sum()), count + 1

            state = (jnp.zeros_like(right), jnp.float32(1e3), 0)
            x, residual, count = lax.while_loop(lambda s: (s[1] > 1e-2) & (s[2] < 12), body, state)
            x = lax.cond(residual > 1e-3, lambda x: steepest(matrix, right, x), lambda x: 1.0 * x, x)
            return total + x, (x, residual, count)

        return lax.scan(solve, jnp.zeros(6), (matrices, rights, ways))

    half = normal(1, 5, 6, 6)
    matrices = half @ half.swapaxes(1, 2) + 2 * np.eye(6, dtype=np.float32)
    return chosen_solver, (matrices, normal(2, 5, 6), np.array([0, 2, 1, 2, 0], np.int32))


@_program
def _event_machine(jax: Any) -> Any:
    """A machine with a few instructions, a stack and a counter; it runs until it halts, and is all integers."""
    jnp, lax = jax.numpy, jax.lax

    def event_machine(program: Any, memory: Any) -> Any:
        def body(state: Any) -> Any:
            place, stack, top, memory, count = state
            opcode, argument = program[place, 0], program[place, 1]
            last, under = stack[top - 1], stack[top - 2]
            cases = [
                lambda: (stack.at[top].set(memory[argument]), top + 1, memory, place + 1),
                lambda: (stack.at[top - 2].set(under + last), top - 1, memory, place + 1),
                lambda: (stack.at[top - 2].set(under * last % 101), top - 1, memory, place + 1),
                lambda: (stack, top - 1, memory.at[argument].set(last), place + 1),
                lambda: (stack, top - 1, memory, jnp.where(last > 0, argument, place + 1)),
                lambda: (stack.at[top].set(argument), top + 1, memory, place + 1),
            ]
            stack, top, memory, place = lax.switch(opcode, cases)
            return place, stack, top, memory, count + 1

        state = (0, jnp.zeros(8, jnp.int32), 0, memory, 0)
        return lax.while_loop(lambda s: (s[0] < program.shape[0]) & (s[4] < 80), body, state)

    steps = [(0, 0), (0, 1), (2, 0), (5, 3), (1, 0), (3, 0), (0, 2), (5, -1), (1, 0), (3, 2), (0, 2), (4, 0), (0, 0)]
    return event_machine, (np.array(steps, np.int32), np.array([7, 5, 4, 9], np.int32))
