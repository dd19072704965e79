"""Small JAX programs, each as HLO text before and after XLA:CPU's optimization; quick to compile."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from conformance import xla

__all__ = ["texts"]


@cache
def texts() -> dict[str, str]:
    """HLO texts by name, `.before` and `.after` optimization; needs jaxlib."""
    import jax

    found = {}
    for name, (function, arguments) in (_numeric() | _structured()).items():
        lowered = jax.jit(function).lower(*arguments)
        found[f"{name}.before"] = xla.canonical_text(lowered.as_text("hlo"), print_operand_shape=False)
        # LLVM's passes come after XLA's.
        found[f"{name}.after"] = lowered.compile({"xla_backend_optimization_level": 0}).as_text()
    return found


_Programs = dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]


def _array(*shape: int, dtype: str = "float32") -> Any:
    import jax

    return jax.ShapeDtypeStruct(shape, dtype)


def _numeric() -> _Programs:
    """Arithmetic in many element types, contractions, reductions."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    x, y = _array(3, 4), _array(4, 3)

    def mixed_types(a: Any, b: Any) -> Any:
        return a.astype(jnp.float32) * b, (a @ b.T.astype(a.dtype)).astype(jnp.float16), jnp.where(b > 0, b, 0)

    def integers(a: Any, b: Any) -> Any:
        return a // b, a % b, a << 2, lax.clz(a), lax.population_count(b), ~a ^ b

    def reductions(a: Any) -> Any:
        return a.sum(0), a.max(1), a.argmin(0), jnp.cumsum(a, 1), jnp.any(a > 0), a.std()

    def dots(a: Any, b: Any) -> Any:
        return jnp.dot(a, b, precision="highest"), jnp.einsum("ij,kj->ik", a, a), a.T @ a

    def convolution(a: Any, k: Any) -> Any:
        return lax.conv_general_dilated(a, k, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    return {
        "bfloat16": (mixed_types, (_array(3, 4, dtype="bfloat16"), x)),
        "complex": (lambda a: (jnp.abs(a), a.real * a.imag, jnp.conj(a) * a, jnp.fft.fft(a)), (_array(4, dtype="complex64"),)),
        "constants": (lambda a: a + jnp.array([[1.5, -0.0, float("inf"), 2e-8]]) * lax.iota(jnp.float32, 4), (x,)),
        "convolution": (convolution, (_array(1, 5, 5, 2), _array(3, 3, 2, 4))),
        "dots": (dots, (x, y)),
        "elementwise": (lambda a, b: jnp.tanh(a) * jnp.exp(b) - lax.rsqrt(a * a + 1) / jnp.maximum(a, b), (x, x)),
        "float8": (lambda a: (a.astype(jnp.float32) + 1).astype(jnp.float8_e5m2), (_array(3, 4, dtype="float8_e4m3fn"),)),
        "int4": (lambda a, b: (a + b, a.T, a.astype(jnp.float32)), (_array(3, 4, dtype="int4"),) * 2),
        "integers": (integers, (_array(5, dtype="int32"), _array(5, dtype="int32"))),
        "linear_algebra": (lambda a: (jnp.linalg.cholesky(a @ a.T + jnp.eye(4)), jax.scipy.linalg.solve_triangular(a, a)), (_array(4, 4),)),
        "random": (lambda key: lax.rng_bit_generator(key, (4,)), (_array(4, dtype="uint32"),)),
        "reductions": (reductions, (x,)),
        "windows": (lambda a: lax.reduce_window(a, -jnp.inf, lax.max, (2, 2), (1, 2), "SAME"), (x,)),
    }  # fmt: skip


def _structured() -> _Programs:
    """Movement of data, control flow, trees, gradients."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    x, y = _array(3, 4), _array(4, 3)

    def movement(a: Any) -> Any:
        turned = a.transpose(2, 0, 1)
        return turned.reshape(4, 6) + 1, turned[::-1, 1:, ::2], jnp.pad(a, ((1, 0), (0, 2), (0, 0)))

    def joined(a: Any, b: Any) -> Any:
        whole = jnp.concatenate([a, b.T, a])
        return jnp.stack([whole, -whole]), jnp.roll(whole, 2, 1), jnp.split(whole, 3)

    def indexed(a: Any, i: Any) -> Any:
        return a[i], a.at[i].add(1.0), lax.dynamic_slice(a, (i[0], 1), (2, 2)), a.at[i, i].set(0.0)

    def scanned(a: Any) -> Any:
        return lax.scan(lambda carry, row: (carry * 0.5 + row, carry.sum()), jnp.zeros(4), a)

    def switched(i: Any, a: Any) -> Any:
        return lax.switch(i, [jnp.sin, lambda b: b * 2, lambda b: b - 1], a)

    def barrier(a: Any) -> Any:
        left, right = lax.optimization_barrier((a * 2, a + 1))
        return left - right

    def attention(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k) * 0.5, axis=-1) @ v

    def layer_norm(a: Any) -> Any:
        return (a - a.mean(-1, keepdims=True)) * lax.rsqrt(a.var(-1, keepdims=True) + 1e-5)

    heads = _array(2, 3, 4)
    return {
        "attention": (attention, (heads, heads, heads)),
        "barrier": (barrier, (x,)),
        "branches": (lambda flag, a: lax.cond(flag, jnp.cos, lambda b: b + b, a), (_array(dtype="bool"), x)),
        "gradient": (jax.grad(lambda w, a: jnp.tanh(a @ w).sum()), (y, x)),
        "indexed": (indexed, (_array(5, 5), _array(3, dtype="int32"))),
        "joined": (joined, (x, y)),
        "layer_norm": (layer_norm, (x,)),
        "loop": (lambda n, a: lax.fori_loop(0, n, lambda i, b: b * 0.5 + i, a), (_array(dtype="int32"), x)),
        "movement": (movement, (_array(2, 3, 4),)),
        "nested_tree": (lambda t: {"b": (t["a"] + 1, [t["c"]]), "d": t["a"].sum()}, ({"a": x, "c": y},)),
        "scan": (scanned, (x,)),
        "sorted": (lambda a: (jnp.sort(a), jnp.argsort(a, axis=0), lax.top_k(a, 2)), (x,)),
        "switch": (switched, (_array(dtype="int32"), x)),
    }
