"""Results that are compared, counted, quantised, or read bit by bit."""

from __future__ import annotations

from typing import Any

from evaluation.explaining.integers.program import Program, registering

PROGRAMS: dict[str, Program] = {}
_register = registering(PROGRAMS)


@_register((400, 48), (48, 100), (100,))
def above_limits(jax: Any, x: Any, w: Any, limits: Any) -> Any:
    return x @ w > limits


@_register((300, 40), (40, 400))
def counts_of_positives(jax: Any, x: Any, w: Any) -> Any:
    return (x @ w > 0.5).astype(jax.numpy.int32).sum(1)


@_register((64, 40), (40, 48))
def quantised_products(jax: Any, x: Any, w: Any) -> Any:
    jnp = jax.numpy
    return jnp.clip(jnp.round((x @ w) * 8), -127, 127).astype(jnp.int8)


@_register((64, 24), (24, 48))
def fixed_point(jax: Any, x: Any, w: Any) -> Any:
    return (jax.numpy.tanh((x @ w) * 0.2) * 4096).astype(jax.numpy.int32)


@_register((900, 24), (24, 3))
def histograms(jax: Any, x: Any, w: Any) -> Any:
    jnp = jax.numpy
    bins = jnp.clip((x @ w + 8).astype(jnp.int32), 0, 15)
    return jnp.zeros((3, 16), jnp.int32).at[jnp.arange(3), bins].add(1)


@_register((1500, 32), (32, 30))
def codes_of_signs(jax: Any, x: Any, planes: Any) -> Any:
    jnp = jax.numpy
    return jnp.sum(jnp.where(x @ planes > 0, 1, 0) << jnp.arange(30), axis=1)


@_register((40, 50))
def logarithms_in_steps(jax: Any, x: Any) -> Any:
    jnp = jax.numpy
    return (jnp.log1p(x * x * 0.001) * 1e7).astype(jnp.int32), (jnp.exp(x) * 1e4).astype(jnp.int32)


@_register((3000,), (900,))
def places_between(jax: Any, x: Any, limits: Any) -> Any:
    jnp = jax.numpy
    return jnp.searchsorted(jnp.sort(jnp.exp(limits)), jnp.exp(x) * 0.3, method="compare_all")


@_register((2, 18, 18, 4), (3, 3, 4, 8))
def quantised_image(jax: Any, x: Any, w: Any) -> Any:
    jnp = jax.numpy
    y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jnp.round(jax.nn.sigmoid(y) * 255).astype(jnp.uint8)


@_register((150, 12), (150, 12))
def near_pairs(jax: Any, x: Any, y: Any) -> Any:
    jnp = jax.numpy
    distances = jnp.sum(x * x, 1)[:, None] + jnp.sum(y * y, 1) - 2 * (x @ y.T)
    near = distances < 16.0
    return near, near.sum(1)


@_register((1500, 40), (40, 60))
def first_crossings(jax: Any, x: Any, w: Any) -> Any:
    jnp = jax.numpy
    return jnp.argmax(jnp.cumsum(jnp.abs(x @ w), axis=1) > 60.0, axis=1)


@_register((64, 32), (32, 32), (32, 24))
def requantised_chain(jax: Any, x: Any, u: Any, v: Any) -> Any:
    jnp = jax.numpy

    def quantised(y: Any) -> Any:
        return jnp.clip(jnp.round(y * 10), -127, 127).astype(jnp.int8)

    first = quantised(x @ u)
    whole = jax.lax.dot(first, quantised(v), preferred_element_type=jnp.int32)
    return quantised(whole.astype(jnp.float32) * 0.01 + x @ (u @ v))


@_register((120, 30), (30, 20))
def ranks(jax: Any, x: Any, w: Any) -> Any:
    y = x @ w
    return (y[:, None, :] < y[None, :, :]).sum(0).astype(jax.numpy.int32)


@_register((80, 30), (30, 24), (24, 24))
def checksums_of_rows(jax: Any, x: Any, u: Any, v: Any) -> Any:
    jnp = jax.numpy
    q = jnp.round(jnp.sin(x @ u) @ v * 16).astype(jnp.int32)
    return q.sum(1), (q * q).sum(0)


@_register((70, 40), (70, 40), type="bfloat16")
def bits_of_bf16(jax: Any, x: Any, y: Any) -> Any:
    jnp = jax.numpy
    z = (x * y + x) * y - x
    return jax.lax.bitcast_convert_type(z, jnp.uint16)


@_register((60, 80), (60, 80), type="bfloat16")
def comparisons_in_bf16(jax: Any, x: Any, y: Any) -> Any:
    z = (x + y) * x - y
    return z > y * y, (z * 4).astype(jax.numpy.int32)


@_register((64, 16), (64, 16), is_tiny=True)
def tiny_comparisons(jax: Any, x: Any, y: Any) -> Any:
    product = (x * 1e-20) * (y * 1e-20)
    return product > 0, product == 0


@_register((500,), (500,), is_tiny=True)
def tiny_bits(jax: Any, x: Any, y: Any) -> Any:
    return jax.lax.bitcast_convert_type((x * 2e-20) * (y * 1e-19), jax.numpy.int32) >> 8
