"""jax.lax: one row per operation that JAX can lower, and per form of the larger ones."""

from typing import Any

import numpy as np
import pytest

from tests.jax_functions.cases import (
    CANCELLING,
    LONG,
    booleans,
    complex_normal,
    indices,
    integers,
    normal,
    positive,
    row,
    uniform,
)

jax: Any = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax


def _convolution(x: Any, kernel: Any, strides: Any = (1, 1), padding: Any = "SAME", **options: Any) -> Any:
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"), **options)


def _gather(operand: Any, starts: Any) -> Any:
    numbers = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0, 1))
    return lax.gather(operand, starts, numbers, slice_sizes=(1, 3), mode="clip")


def _scatter(operand: Any, starts: Any, updates: Any, combine: Any = lax.scatter_add) -> Any:
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0, 1))
    return combine(operand, starts, updates, numbers, mode="clip")


def _carry(carry: Any, x: Any) -> Any:
    """A step that neither grows nor dies out."""
    following = jnp.tanh(carry * 0.9 + x)
    return following, following * x


def _newton(a: Any) -> Any:
    """A square root by Newton's steps, as many as it takes."""

    def unfinished(state: Any) -> Any:
        step, value = state
        return (step < 20) & (jnp.abs(value * value - a) > 1e-2 * a).any()

    return lax.while_loop(unfinished, lambda state: (state[0] + 1, (state[1] + a / state[1]) / 2), (0, a))[1]


_ROWS_OF_ONE_ARGUMENT = [
    *(
        (name, normal(4, 5))
        for name in "abs ceil floor neg round sign cos sin tan exp exp2 expm1 erf erfc tanh".split()
    ),
    *((name, normal(4, 5)) for name in "logistic square sinh cosh asinh atan is_finite cbrt integer_pow".split()),
    *((name, positive(4, 5)) for name in "log log1p sqrt rsqrt lgamma digamma reciprocal".split()),
    *((name, uniform(-0.9, 0.9, 4, 5)) for name in "acos asin atanh erf_inv".split()),
    ("acosh", uniform(1.5, 4.0, 4, 5)),
    ("bessel_i0e", normal(4, 5)),
    ("bessel_i1e", normal(4, 5)),
]
_STEPS = set("ceil floor round sign is_finite".split())


def _of_one_argument(name: str) -> Any:
    return (lambda x: lax.integer_pow(x, 5)) if name == "integer_pow" else getattr(lax, name)


CASES = [
    *(
        row(
            f"lax.{name}",
            _of_one_argument(name),
            argument,
            gradient=name not in _STEPS,
            exact=name in _STEPS,
            roundings=CANCELLING if name == "lgamma" else LONG,
        )
        for name, argument in _ROWS_OF_ONE_ARGUMENT
    ),
    # Two arguments
    row("lax.add", lax.add, normal(4, 5), normal(4, 5), gradient=True),
    row("lax.atan2", lax.atan2, normal(4, 5), normal(4, 5), gradient=True),
    row("lax.complex", lax.complex, normal(6), normal(6), types=("f32",), gradient=True),
    row("lax.div", lax.div, normal(4, 5), positive(4, 5), gradient=True),
    row("lax.igamma", lax.igamma, positive(6), positive(6), types=("f32",), roundings=LONG),
    row("lax.igammac", lax.igammac, positive(6), positive(6), types=("f32",), roundings=LONG),
    row("lax.betainc", lax.betainc, positive(6), positive(6), uniform(0.1, 0.9, 6), types=("f32",), roundings=LONG),
    row("lax.max", lax.max, normal(4, 5), normal(4, 5), gradient=True, exact=True),
    row("lax.min", lax.min, normal(4, 5), normal(4, 5), gradient=True, exact=True),
    row("lax.mul", lax.mul, normal(4, 5), normal(4, 5), gradient=True),
    row("lax.nextafter", lax.nextafter, normal(4, 5), normal(4, 5), exact=True),
    row("lax.polygamma", lax.polygamma, np.full(6, 2, np.float32), positive(6), types=("f32",), roundings=CANCELLING),
    row("lax.pow", lax.pow, positive(4, 5), normal(4, 5), gradient=True),
    row("lax.random_gamma_grad", lax.random_gamma_grad, positive(4), positive(4), types=("f32",), roundings=LONG),
    row("lax.rem", lax.rem, normal(4, 5), uniform(0.5, 2.0, 4, 5), exact=True),
    row("lax.sub", lax.sub, normal(4, 5), normal(4, 5), gradient=True),
    row("lax.zeta", lax.zeta, uniform(1.5, 4.0, 6), positive(6), types=("f32",)),
    row("lax.clamp", lambda x: lax.clamp(np.array(-0.5, x.dtype), x, np.array(0.75, x.dtype)), normal(4, 5), gradient=True),
    row("lax.select", lax.select, booleans(4, 5), normal(4, 5), normal(4, 5), gradient=True, exact=True),
    row("lax.select_n", lax.select_n, indices(3, 4, 5), normal(4, 5), normal(4, 5), normal(4, 5), exact=True),
    row("lax.eq_lt_ge", lambda x, y: (lax.eq(x, y), lax.lt(x, y), lax.ge(x, y), lax.ne(x, x)), normal(6), normal(6)),
    # Integers
    row(
        "lax.integers",
        lambda x, y: (x + y, x - y, x * y, lax.div(x, y), lax.rem(x, y), lax.max(x, y), -x, lax.abs(x), lax.sign(x)),
        integers(-(2**31), 2**31 - 1, 40),
        integers(-3, 3, 40),
    ),
    row(
        "lax.bits",
        lambda x, y: (x & y, x | y, x ^ y, ~x, lax.population_count(x), lax.clz(x)),
        integers(0, 2**32 - 1, 40, dtype=np.uint32),
        integers(0, 2**32 - 1, 40, dtype=np.uint32),
    ),
    row(
        "lax.shifts",
        lambda x, y: (x << y, lax.shift_right_logical(x, y), lax.shift_right_arithmetic(x, y)),
        integers(-(2**31), 2**31 - 1, 40),
        integers(0, 40, 40),
    ),
    row("lax.integer_pow_s32", lambda x: lax.integer_pow(x, 3), integers(-9, 9, 10)),
    row("lax.mulhi", lax.mulhi, integers(0, 2**32 - 1, 20, dtype=np.uint32), integers(0, 2**32 - 1, 20, dtype=np.uint32)),
    # Complex numbers
    row(
        "lax.complex_functions",
        lambda z: [f(z) for f in (lax.exp, lax.log, lax.sqrt, lax.tanh, lax.sin, lax.cos, lax.conj, lax.abs, lax.rsqrt)],
        complex_normal(8),
        types=("f32",),
    ),
    row("lax.complex_arithmetic", lambda a, b: (a * b, a / b, a - b, lax.pow(a, b)), complex_normal(8), complex_normal(8), types=("f32",)),
    row("lax.real_imag", lambda z: (lax.real(z), lax.imag(z)), complex_normal(8), types=("f32",), gradient=True),
    # Types
    row(
        "lax.convert_element_type",
        lambda x: [x.astype(t) for t in "bfloat16 float16 float8_e4m3fn float8_e5m2 int8 uint32 bool".split()],
        uniform(-100.0, 100.0, 40),
        types=("f32",),
        exact=True,
    ),
    row("lax.bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, jnp.uint8), normal(6), exact=True),
    row("lax.reduce_precision", lambda x: lax.reduce_precision(x, 5, 3), normal(30), exact=True, types=("f32",)),
    # Shapes
    row("lax.broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (3, 4, 2), (0, 2)), normal(3, 2), gradient=True),
    row("lax.concatenate", lambda x, y: lax.concatenate([x, y, x], 1), normal(3, 2), normal(3, 4), gradient=True),
    row("lax.expand_dims", lambda x: lax.expand_dims(x, (0, 2)), normal(3, 2), gradient=True),
    row("lax.iota", lambda x: x + lax.broadcasted_iota(x.dtype, (3, 4), 1), normal(3, 4)),
    row("lax.pad", lambda x, v: lax.pad(x, v, ((1, 2, 1), (-1, 0, 0), (0, -2, 2))), normal(3, 4, 2), np.float32(7), gradient=True),
    row("lax.reshape", lambda x: lax.reshape(x, (2, 6), dimensions=(1, 0)), normal(3, 4), gradient=True),
    row("lax.rev", lambda x: lax.rev(x, (0, 2)), normal(2, 3, 4), gradient=True),
    row("lax.slice", lambda x: lax.slice(x, (1, 0), (5, 7), (2, 3)), normal(6, 8), gradient=True),
    row("lax.squeeze", lambda x: lax.squeeze(x, (0,)), normal(1, 3), gradient=True),
    row("lax.split", lambda x: lax.split(x, (1, 3, 2), axis=1), normal(2, 6), gradient=True),
    row("lax.tile", lambda x: lax.tile(x, (2, 3)), normal(2, 3), exact=True),
    row("lax.transpose", lambda x: lax.transpose(x, (2, 0, 1)), normal(2, 3, 4), gradient=True),
    # Indexing
    row("lax.dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i[0], i[1]), (2, 3)), normal(5, 6), integers(-3, 9, 2), gradient=True),
    row("lax.dynamic_update_slice", lambda x, u, i: lax.dynamic_update_slice(x, u, (i[0], i[1])), normal(5, 6), normal(2, 3), integers(-3, 9, 2), gradient=True),
    row("lax.dynamic_index_in_dim", lambda x, i: lax.dynamic_index_in_dim(x, i, 1), normal(5, 6), np.int32(-2), gradient=True),
    row("lax.gather", _gather, normal(5, 6), integers(-2, 7, 4, 2), gradient=True),
    row("lax.index_take", lambda x, i: lax.index_take(x, (i,), (1,)), normal(5, 6), indices(6, 4)),
    row("lax.scatter", lambda x, i, u: _scatter(x, i, u, lax.scatter), normal(5, 6), np.array([[0, 1], [3, 2], [4, 9]], np.int32), normal(3, 3), exact=True),
    row("lax.scatter_add", _scatter, normal(5, 6), integers(-1, 6, 4, 2), normal(4, 3), gradient=True),
    row("lax.scatter_mul", lambda x, i, u: _scatter(x, i, u, lax.scatter_mul), normal(5, 6), integers(-1, 6, 4, 2), normal(4, 3)),
    row("lax.scatter_min", lambda x, i, u: _scatter(x, i, u, lax.scatter_min), normal(5, 6), integers(-1, 6, 4, 2), normal(4, 3), exact=True),
    row("lax.scatter_max", lambda x, i, u: _scatter(x, i, u, lax.scatter_max), normal(5, 6), integers(-1, 6, 4, 2), normal(4, 3), exact=True),
    row("lax.scatter_apply", lambda x, i: x.at[i].apply(jnp.sin), normal(5, 6), np.array([3, 1], np.int32)),
    # Reductions: a sum of n terms is off by n roundings at most
    row("lax.reduce_sum", lambda x: lax.reduce(x, np.zeros((), x.dtype), lax.add, (0, 2)), normal(3, 4, 5), gradient=True),
    row("lax.reduce_prod", lambda x: lax.reduce(x, np.ones((), x.dtype), lax.mul, (1,)), normal(3, 6)),
    row("lax.reduce_max", lambda x: lax.reduce(x, np.array(-np.inf, x.dtype), lax.max, (1,)), normal(3, 6), exact=True),
    row("lax.reduce_and", lambda x: (lax.reduce_and(x, (0,)), lax.reduce_or(x, (1,)), lax.reduce_xor(x.astype(int), (0,))), booleans(3, 6)),
    row(
        "lax.reduce_variadic",
        lambda x, i: lax.reduce(
            (x, i),
            (np.array(-np.inf, x.dtype), np.int32(0)),
            lambda a, b: (jnp.where(a[0] >= b[0], a[0], b[0]), jnp.where(a[0] >= b[0], a[1], b[1])),
            (1,),
        ),
        normal(4, 9),
        indices(50, 4, 9),
        exact=True,
    ),
    row("lax.argmax", lambda x: (lax.argmax(x, 1, jnp.int32), lax.argmin(x, 0, jnp.int32)), normal(4, 9)),
    row("lax.cumsum", lambda x: lax.cumsum(x, axis=1), normal(3, 20), gradient=True),
    row("lax.cumprod", lambda x: lax.cumprod(x, axis=1, reverse=True), uniform(0.5, 1.5, 3, 10), gradient=True),
    row("lax.cummax", lambda x: (lax.cummax(x, axis=0), lax.cummin(x, axis=1)), normal(9, 7), exact=True),
    row("lax.cumlogsumexp", lambda x: lax.cumlogsumexp(x, axis=0), normal(9, 4), gradient=True, roundings=LONG),
    row("lax.reduce_window_sum", lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 3), (1, 2), ((1, 0), (2, 1)), (1, 1), (1, 2)), normal(7, 8), gradient=True),
    row("lax.reduce_window_max", lambda x: lax.reduce_window(x, -np.inf, lax.max, (2, 2), (2, 2), "SAME"), normal(7, 7), gradient=True),
    row("lax.reduce_window_dilated", lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 1), "VALID", (2, 3), (2, 1)), normal(5, 5), gradient=True),
    row("lax.sort", lambda x, i: lax.sort((x, i), num_keys=1, dimension=0), normal(9, 4), indices(9, 9, 4), exact=True),
    row("lax.sort_two_keys", lambda i, x: lax.sort((i, x), num_keys=2), indices(3, 20), normal(20), exact=True),
    row("lax.top_k", lambda x: lax.top_k(x, 3), normal(4, 9), gradient=True, exact=True),
    row("lax.approx_max_k", lambda x: lax.approx_max_k(x, 3), normal(4, 9), exact=True),
    # Contractions of n terms: n roundings, n as it is in the row
    row("lax.dot", lax.dot, normal(4, 12), normal(12, 5), gradient=True),
    row("lax.dot_general", lambda x, y: lax.dot_general(x, y, (((2,), (1,)), ((0,), (2,)))), normal(3, 4, 6), normal(5, 6, 3), gradient=True),
    row("lax.dot_s32", lax.dot, integers(-(2**31), 2**31 - 1, 4, 6), integers(-(2**31), 2**31 - 1, 6, 5)),
    row("lax.dot_s8_s32", lambda x, y: lax.dot(x, y, preferred_element_type=jnp.int32), integers(-128, 127, 4, 6, dtype=np.int8), integers(-128, 127, 6, 5, dtype=np.int8)),
    row("lax.dot_preferred", lambda x, y: lax.dot(x, y, preferred_element_type=jnp.float32), normal(4, 6), normal(6, 5)),
    row("lax.dot_complex", lax.dot, complex_normal(4, 6), complex_normal(6, 5), types=("f32",)),
    row("lax.ragged_dot", lambda x, y: lax.ragged_dot(x, y, np.array([3, 0, 5], np.int32)), normal(8, 6), normal(3, 6, 4)),
    row("lax.conv", lambda x, k: _convolution(x, k, (2, 1), ((1, 1), (0, 2))), normal(2, 6, 6, 3), normal(3, 3, 3, 4), gradient=True),
    row("lax.conv_dilated", lambda x, k: _convolution(x, k, padding=((2, 1), (0, 3)), lhs_dilation=(2, 1), rhs_dilation=(1, 2)), normal(1, 5, 5, 2), normal(3, 2, 2, 3), gradient=True),
    row("lax.conv_grouped", lambda x, k: _convolution(x, k, feature_group_count=3), normal(2, 5, 5, 6), normal(3, 3, 2, 3), gradient=True),
    row("lax.conv_depthwise", lambda x, k: _convolution(x, k, feature_group_count=4), normal(1, 5, 5, 4), normal(3, 3, 1, 4), gradient=True),
    row("lax.conv_batch_groups", lambda x, k: _convolution(x, k, batch_group_count=2), normal(4, 5, 5, 3), normal(2, 2, 3, 4)),
    row("lax.conv_1d", lambda x, k: lax.conv_general_dilated(x, k, (1,), "VALID"), normal(2, 3, 9), normal(4, 3, 3), gradient=True),
    row("lax.conv_3d", lambda x, k: lax.conv_general_dilated(x, k, (1, 1, 1), "SAME"), normal(1, 2, 3, 4, 3), normal(2, 2, 2, 2, 2), gradient=True),
    row("lax.conv_transpose", lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME"), normal(1, 4, 4, 3), normal(3, 3, 3, 2), gradient=True),
    row("lax.conv_patches", lambda x: lax.conv_general_dilated_patches(x, (2, 2), (1, 1), "VALID"), normal(1, 2, 4, 4)),
    # Control flow
    row("lax.cond", lambda p, x: lax.cond(p, lambda y: jnp.sin(y), lambda y: jnp.cos(y), x), np.bool_(True), normal(6), gradient=True),
    row("lax.switch", lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, jnp.tanh], x), np.int32(7), normal(6), gradient=True, roundings=LONG),
    row("lax.while_loop", _newton, positive(6)),
    row("lax.fori_loop", lambda x: lax.fori_loop(0, 5, lambda i, y: y * 0.5 + i, x), normal(6), gradient=True),
    row("lax.scan", lambda c, x: lax.scan(_carry, c, x), normal(4), normal(7, 4), gradient=True, roundings=LONG),
    row("lax.scan_reverse_unroll", lambda c, x: lax.scan(_carry, c, x, reverse=True, unroll=3), normal(4), normal(7, 4)),
    row("lax.associative_scan", lambda x: lax.associative_scan(lax.add, x), normal(13, 3), gradient=True),
    row("lax.map", lambda x: lax.map(lambda y: y @ y, x), normal(4, 3, 3), gradient=True),
    row("jax.checkpoint", jax.checkpoint(lambda x: jnp.sin(jnp.sin(x))), normal(6), gradient=True),
    row("jax.vmap", jax.vmap(lambda x, i: lax.dynamic_slice(x, (i,), (3,))), normal(4, 6), integers(-2, 8, 4), gradient=True),
    row("jax.hessian", jax.hessian(lambda x: (jnp.sin(x) * x[::-1]).sum()), normal(4)),
    row("jax.jvp", lambda x, v: jax.jvp(lambda y: jnp.sin(y @ y.T), (x,), (v,)), normal(4, 4), normal(4, 4), roundings=LONG),
    row("lax.optimization_barrier", lambda x, y: lax.optimization_barrier((x * 2, y)), normal(4), normal(4)),
    row("lax.stop_gradient", lambda x: x * lax.stop_gradient(x), normal(4), gradient=True),
    row("lax.linalg.triangular_solve", lambda x: lax.linalg.triangular_solve(jnp.eye(4, dtype=x.dtype) * 2 + jnp.tril(x, -1), x, left_side=True, lower=True), normal(4, 4), types=("f32",)),
]  # fmt: skip
