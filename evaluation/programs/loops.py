"""Programs whose loops go on until the data says so."""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluation.programs.program import Program, integers, normal, positive, registering

PROGRAMS: list[Program] = []
_program = registering(PROGRAMS)


@_program
def _ray_marching(jax: Any) -> Any:
    """Rays go on through a field of distances while any of them has neither met something nor left."""
    jnp = jax.numpy

    def ray_marching(origin: Any, directions: Any, centres: Any, radii: Any) -> Any:
        directions = directions / jnp.sqrt((directions**2).sum(-1, keepdims=True))

        def field(places: Any) -> Any:
            spheres = jnp.sqrt(((places[:, None] - centres) ** 2).sum(-1)) - radii
            return jnp.minimum(spheres.min(-1), places[:, 1] + 2)

        def goes_on(state: Any) -> Any:
            depth, distance, count = state
            return jnp.any((distance > 1e-3) & (depth < 12.0)) & (count < 100)

        def body(state: Any) -> Any:
            depth, distance, count = state
            distance = field(origin + depth[:, None] * directions)
            active = (distance > 1e-3) & (depth < 12.0)
            return jnp.where(active, depth + 0.9 * distance, depth), distance, count + 1

        start = (jnp.zeros(directions.shape[0]), jnp.full(directions.shape[0], 1.0), 0)
        depth, distance, count = jax.lax.while_loop(goes_on, body, start)
        met = origin + depth[:, None] * directions
        light = jnp.clip((met @ jnp.array([0.3, 0.8, -0.5])) / (1 + depth), 0, 1)
        return jnp.where(distance <= 1e-3, light, 0.1 * directions[:, 1]), depth, count

    directions = np.concatenate([normal(1, 18, 2) * 2, np.ones((18, 1), np.float32)], 1)
    centres = np.array([[0, 0, 4], [1, 1, 6], [-1, 0.5, 5]], np.float32)
    return ray_marching, (0.1 * normal(2, 3), directions, centres, positive(3, 3) + 0.5)


@_program
def _root_finding(jax: Any) -> Any:
    """Newton's method for many equations, kept within brackets by bisection, until all are done."""
    jnp = jax.numpy

    def root_finding(a: Any, b: Any, c: Any) -> Any:
        def value(x: Any) -> Any:
            return x**3 + a * x + b + 0.3 * jnp.sin(c * x)

        slope = jax.vmap(jax.grad(lambda x, a, b, c: x**3 + a * x + b + 0.3 * jnp.sin(c * x)))

        def goes_on(state: Any) -> Any:
            _, _, x, step, count = state
            return (count < 60) & jnp.logical_not(jnp.all(jnp.abs(step) < 1e-5 * (1 + jnp.abs(x))))

        def body(state: Any) -> Any:
            low, high, x, _, count = state
            f = value(x)
            low, high = jnp.where(f < 0, x, low), jnp.where(f < 0, high, x)
            newton = x - f / (slope(x, a, b, c) + 1e-6)
            following = jnp.where((newton > low) & (newton < high), newton, 0.5 * (low + high))
            return low, high, following, following - x, count + 1

        low, high = jnp.full_like(a, -4.0), jnp.full_like(a, 4.0)
        state = (low, high, 0.5 * (low + high) + 0.1, jnp.ones_like(a), 0)
        low, high, x, _, count = jax.lax.while_loop(goes_on, body, state)
        return x, value(x), count

    return root_finding, (positive(1, 20) * 2, normal(2, 20) * 2, normal(3, 20))


@_program(keeps=[0])
def _conjugate_gradient(jax: Any) -> Any:
    """A linear system by conjugate gradients with a preconditioner, until the residual is small."""
    jnp = jax.numpy

    def conjugate_gradient(matrix: Any, right: Any) -> Any:
        inverse = 1.0 / jnp.diagonal(matrix)

        def goes_on(state: Any) -> Any:
            _, residual, _, _, count = state
            return (jnp.sqrt(residual @ residual) > 1e-4 * jnp.sqrt(right @ right)) & (count < 40)

        def body(state: Any) -> Any:
            x, residual, direction, rho, count = state
            image = matrix @ direction
            alpha = rho / (direction @ image)
            x, residual = x + alpha * direction, residual - alpha * image
            z = inverse * residual
            new = residual @ z
            return x, residual, z + (new / rho) * direction, new, count + 1

        z = inverse * right
        state = (jnp.zeros_like(right), right, z, right @ z, 0)
        x, residual, _, _, count = jax.lax.while_loop(goes_on, body, state)
        return x, jnp.sqrt(residual @ residual), count

    half = normal(1, 16, 16)
    return conjugate_gradient, (half @ half.T + np.diag(1 + np.arange(16)).astype(np.float32), normal(2, 16))


@_program(keeps=[0, 1])
def _page_rank(jax: Any) -> Any:
    """Ranks by edges with a sum of segments until they change no more."""
    jnp = jax.numpy

    def page_rank(source: Any, target: Any, personal: Any) -> Any:
        degrees = jnp.zeros(15).at[source].add(1.0)
        personal = personal / personal.sum()

        def body(state: Any) -> Any:
            ranks, _, count = state
            share = ranks / jnp.maximum(degrees, 1)
            passed = jax.ops.segment_sum(share[source], target, 15)
            lost = jnp.where(degrees == 0, ranks, 0).sum()
            new = 0.85 * (passed + lost * personal) + 0.15 * personal
            return new, jnp.abs(new - ranks).sum(), count + 1

        state = (jnp.full(15, 1 / 15), jnp.float32(1), 0)
        ranks, change, count = jax.lax.while_loop(lambda s: (s[1] > 1e-4) & (s[2] < 80), body, state)
        return ranks, jnp.argsort(-ranks)[:5], count, change < 1e-4

    return page_rank, (integers(1, 14, 40), integers(2, 15, 40), positive(3, 15))


@_program
def _adaptive_ode(jax: Any) -> Any:
    """A pair of formulas of order two and three whose step follows the error, until the end of the time."""
    jnp = jax.numpy

    def adaptive_ode(start: Any, matrix: Any, damping: Any) -> Any:
        def slope(time: Any, y: Any) -> Any:
            return matrix @ jnp.tanh(y) - damping * y + 0.1 * jnp.sin(3 * time)

        def body(state: Any) -> Any:
            time, y, step, count, rejected = state
            step = jnp.minimum(step, 2.0 - time)
            k1 = slope(time, y)
            k2 = slope(time + step / 2, y + step / 2 * k1)
            k3 = slope(time + 0.75 * step, y + 0.75 * step * k2)
            new = y + step * (2 * k1 + 3 * k2 + 4 * k3) / 9
            k4 = slope(time + step, new)
            wrong = step * (-5 * k1 / 72 + k2 / 12 + k3 / 9 - k4 / 8)
            error = jnp.sqrt(jnp.mean((wrong / (1e-4 + 1e-3 * jnp.abs(y))) ** 2))
            accepted = error <= 1
            factor = jnp.clip(0.9 * (error + 1e-10) ** (-1 / 3), 0.3, 3.0)
            time, y = jnp.where(accepted, time + step, time), jnp.where(accepted, new, y)
            return time, y, step * factor, count + 1, rejected + jnp.where(accepted, 0, 1)

        state = (jnp.float32(0), start, jnp.float32(0.5), 0, 0)
        return jax.lax.while_loop(lambda s: (s[0] < 2.0 - 1e-6) & (s[3] < 60), body, state)

    return adaptive_ode, (normal(1, 6), 3 * normal(2, 6, 6), positive(3, 6))


@_program
def _line_search(jax: Any) -> Any:
    """L-BFGS: two loops over the stored pairs, and a step that shrinks until it is good enough."""
    jnp, lax = jax.numpy, jax.lax

    def line_search(x: Any, a: Any, y: Any, pairs: Any) -> Any:
        def loss(x: Any) -> Any:
            return jnp.logaddexp(0.0, -y * (a @ x)).mean() + 0.05 * (x**2).sum()

        s, t = pairs
        rho = 1.0 / ((s * t).sum(-1) + 1e-6)
        value, gradient = jax.value_and_grad(loss)(x)

        def first(q: Any, given: Any) -> Any:
            s, t, rho = given
            alpha = rho * (s @ q)
            return q - alpha * t, alpha

        def second(q: Any, given: Any) -> Any:
            s, t, rho, alpha = given
            return q + s * (alpha - rho * (t @ q)), None

        q, alphas = lax.scan(first, gradient, (s, t, rho), reverse=True)
        q, _ = lax.scan(second, q * (s[-1] @ t[-1]) / (t[-1] @ t[-1]), (s, t, rho, alphas))
        slope = gradient @ q

        def goes_on(state: Any) -> Any:
            step, new, count = state
            return (new > value - 0.1 * step * slope) & (count < 25)

        def body(state: Any) -> Any:
            step, _, count = state
            return step * 0.6, loss(x - step * 0.6 * q), count + 1

        step, new, count = lax.while_loop(goes_on, body, (8.0, loss(x - 8.0 * q), 0))
        return x - step * q, new, count, q

    s = normal(4, 4, 7)
    pairs = np.stack([s, 0.5 * s + 0.1 * normal(5, 4, 7)])
    return line_search, (normal(1, 7), normal(2, 20, 7) * 4, np.sign(normal(3, 20)), pairs)


@_program
def _sinkhorn(jax: Any) -> Any:
    """Optimal transport by scaling rows and columns in the log domain, until the marginals are right."""
    jnp = jax.numpy

    def sinkhorn(x: Any, y: Any, a: Any, b: Any) -> Any:
        costs = jnp.sqrt(((x[:, None] - y[None]) ** 2).sum(-1) + 1e-9)
        a, b = a / a.sum(), b / b.sum()

        def body(state: Any) -> Any:
            f, g, _, count = state
            f = 0.1 * (jnp.log(a) - jax.nn.logsumexp((g[None] - costs) / 0.1, 1))
            g = 0.1 * (jnp.log(b) - jax.nn.logsumexp((f[:, None] - costs) / 0.1, 0))
            plan = jnp.exp((f[:, None] + g[None] - costs) / 0.1)
            return f, g, jnp.abs(plan.sum(1) - a).max(), count + 1

        state = (jnp.zeros(9), jnp.zeros(8), jnp.float32(1), 0)
        f, g, _, count = jax.lax.while_loop(lambda s: (s[2] > 1e-3) & (s[3] < 40), body, state)
        plan = jnp.exp((f[:, None] + g[None] - costs) / 0.1)
        return plan, (plan * costs).sum(), count

    return sinkhorn, (normal(1, 9, 2), normal(2, 8, 2), positive(3, 9), positive(4, 8))
