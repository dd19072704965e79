"""JAX programs whose arguments have sizes by name, and for each a large and a small set of sizes.

Shrinking the large program gives one that computes what the small one computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np


@attrs.frozen
class Program:
    """A function of sizes to a function of arrays and the shapes of its arguments, f32 or, with an i, s32."""

    make: Callable[..., tuple[Callable[..., Any], tuple[Any, ...]]]
    large: dict[str, int]
    small: dict[str, int]

    def lowered(self, sizes: dict[str, int], *, optimized: bool) -> Any:
        """The module for these sizes, as XLA gets it or as XLA:CPU runs it."""
        import jax
        import jax.numpy as jnp

        import hloexec

        function, shapes = self.make(**sizes)
        types = [(shape[1:], jnp.int32) if shape[:1] == ("i",) else (shape, jnp.float32) for shape in shapes]
        arguments = [jax.ShapeDtypeStruct(*each) for each in types]
        if not optimized:
            return hloexec.from_jax(function, *arguments)
        lowered = jax.jit(function, keep_unused=True).lower(*arguments)
        # What LLVM makes of it is not run.
        return hloexec.parse(lowered.compile({"xla_backend_optimization_level": 0}).as_text())


def registering(programs: dict[str, Program]) -> Callable[..., Any]:
    """A decorator, with a large and a small set of sizes, that adds a function as a program."""

    def register(large: dict[str, int], small: dict[str, int]) -> Any:
        def add(make: Callable[..., Any]) -> Callable[..., Any]:
            programs[make.__name__] = Program(make, large, small)
            return make

        return add

    return register


SEEN: dict[str, Program] = {}
_program = registering(SEEN)


@_program({"b": 32, "d": 1024, "h": 4096}, {"b": 4, "d": 16, "h": 64})
def gradient_of_a_perceptron(b: int, d: int, h: int) -> Any:
    import jax
    import jax.numpy as jnp

    def loss(w1: Any, w2: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ w1) @ w2 - y) ** 2)

    return jax.grad(loss, (0, 1)), ((d, h), (h, d), (b, d), (b, d))


@_program({"b": 8, "t": 512, "d": 768}, {"b": 2, "t": 16, "d": 24})
def layer_normalization(b: int, t: int, d: int) -> Any:
    from jax import lax

    def function(x: Any, g: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(-1, keepdims=True)
        return (x - mean) * lax.rsqrt(variance + 1e-5) * g

    return function, ((b, t, d), (d,))


@_program({"b": 4, "t": 512, "d": 768, "h": 12}, {"b": 2, "t": 16, "d": 48, "h": 12})
def causal_attention(b: int, t: int, d: int, h: int) -> Any:
    import jax
    import jax.numpy as jnp

    def function(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
        q, k, v = ((x @ w).reshape(b, t, h, d // h).transpose(0, 2, 1, 3) for w in (wq, wk, wv))
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(d // h)
        p = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e30), -1)
        return (p @ v).transpose(0, 2, 1, 3).reshape(b, t, d) @ wo

    return function, ((b, t, d), *((d, d),) * 4)


@_program({"b": 8, "t": 1024, "v": 4096, "d": 256}, {"b": 2, "t": 16, "v": 64, "d": 8})
def gradient_of_a_language_model(b: int, t: int, v: int, d: int) -> Any:
    import jax
    import jax.numpy as jnp

    def loss(e: Any, w: Any, tokens: Any) -> Any:
        logits = (jnp.tanh(e[tokens[:, :-1]] @ w) @ e.T).reshape(-1, v)
        targets = tokens[:, 1:].reshape(-1)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[:, None], 1).mean()

    return jax.grad(loss, (0, 1)), ((v, d), (d, d), ("i", b, t))


@_program({"t": 512, "b": 16, "d": 256}, {"t": 16, "b": 2, "d": 8})
def recurrence(t: int, b: int, d: int) -> Any:
    import jax.numpy as jnp
    from jax import lax

    def function(xs: Any, w: Any, u: Any, h: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = jnp.tanh(x @ w + h @ u)
            return h, h

        return lax.scan(step, h, xs)

    return function, ((t, b, d), (d, d), (d, d), (b, d))


@_program({"b": 8, "n": 128, "c": 32, "o": 64}, {"b": 2, "n": 16, "c": 4, "o": 8})
def gradient_of_a_convolution(b: int, n: int, c: int, o: int) -> Any:
    import jax
    from jax import lax

    def loss(k: Any, x: Any) -> Any:
        return (lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) ** 2).sum()

    return jax.grad(loss, (0, 1)), ((3, 3, c, o), (b, n, n, c))


@_program({"b": 8, "n": 256, "c": 64}, {"b": 2, "n": 16, "c": 8})
def strided_depthwise_convolution(b: int, n: int, c: int) -> Any:
    from jax import lax

    def function(x: Any, k: Any) -> Any:
        return lax.conv_general_dilated(
            x, k, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=c
        )

    return function, ((b, n, n, c), (3, 3, 1, c))


@_program({"b": 8, "n": 128, "c": 64}, {"b": 2, "n": 16, "c": 8})
def gradient_of_pooling(b: int, n: int, c: int) -> Any:
    import jax
    from jax import lax

    def function(x: Any) -> Any:
        return lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID").sum()

    return jax.grad(function), ((b, n, n, c),)


@_program({"b": 16, "n": 1024}, {"b": 4, "n": 64})
def statistics(b: int, n: int) -> Any:
    import jax.numpy as jnp

    def function(x: Any) -> Any:
        return (
            jnp.var(x, 1),
            jnp.std(x, 1, ddof=1),
            jnp.argmax(x, 1),
            jnp.roll(x, 3, 1),
            jnp.cumsum(x, 1),
        )

    return function, ((b, n),)


@_program({"b": 64, "n": 4096}, {"b": 4, "n": 64})
def sorting(b: int, n: int) -> Any:
    import jax.numpy as jnp

    return (lambda x: (jnp.sort(x, 1), jnp.argsort(x, 1))), ((b, n),)


@_program({"b": 8, "t": 2048, "h": 16, "d": 128}, {"b": 2, "t": 32, "h": 16, "d": 8})
def rotary_embedding(b: int, t: int, h: int, d: int) -> Any:
    import jax.numpy as jnp

    def function(x: Any) -> Any:
        half = d // 2
        angles = jnp.arange(t)[:, None] * 10000.0 ** (-jnp.arange(half) / half)
        first, second = x[..., :half], x[..., half:]
        c, s = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
        return jnp.concatenate([first * c - second * s, second * c + first * s], -1)

    return function, ((b, t, h, d),)


@_program({"b": 8, "t": 1024, "d": 512}, {"b": 2, "t": 32, "d": 16})
def blocks_in_a_loop(b: int, t: int, d: int) -> Any:
    import jax.numpy as jnp
    from jax import lax

    size = t // 8

    def function(x: Any) -> Any:
        def body(i: Any, total: Any) -> Any:
            return total + lax.dynamic_slice_in_dim(x, i * size, size, 1)

        return lax.fori_loop(0, 8, body, jnp.zeros((b, size, d)))

    return function, ((b, t, d),)


@_program({"b": 8, "t": 2048, "d": 256}, {"b": 2, "t": 32, "d": 8})
def causal_convolution_by_shifts(b: int, t: int, d: int) -> Any:
    import jax.numpy as jnp

    def function(x: Any, k: Any) -> Any:
        padded = jnp.pad(x, ((0, 0), (3, 0), (0, 0)))
        return sum(padded[:, i : i + t] * k[i] for i in range(4))

    return function, ((b, t, d), (4, d))


@_program({"n": 4096, "d": 128}, {"n": 64, "d": 8})
def while_loop_over_rows(n: int, d: int) -> Any:
    import jax.numpy as jnp
    from jax import lax

    def function(x: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 0.9 + x[c[0]]), (0, jnp.zeros(d)))[1]

    return function, ((n, d),)


@_program({"n": 4096}, {"n": 64})
def spectrum(n: int) -> Any:
    import jax.numpy as jnp

    return (lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * 2)), ((8, n),)
