"""Programs of the fresh half in bf16 and f16, some beside products in f32."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from evaluation.explaining.operations.arithmetic import Arithmetic
from evaluation.explaining.operations.program import Program, registering
from evaluation.programs.program import normal, positive

NARROW: dict[str, Program] = {}
_program = registering(NARROW)
_f32 = np.float32


def _bf16(value: Any) -> Any:
    return np.asarray(value).astype(ml_dtypes.bfloat16)


def _f16(value: Any) -> Any:
    return np.asarray(value).astype(np.float16)


@_program((_bf16(normal(1, 24, 32) * 5), _bf16(normal(2, 32, 36)), _bf16(normal(3, 32, 36))), "gates_swapped no_gate")
def gated_projections(w: Arithmetic, x: Any, gate: Any, up: Any) -> Any:
    """Two products in bf16, one gates the other."""
    g, u = w.dot(x, gate), w.dot(x, up)
    if w.wrong("gates_swapped"):
        g, u = u, g
    s = w.narrow("mul", g, w.narrow_logistic(g))
    return w.narrow("add", s if w.wrong("no_gate") else w.narrow("mul", s, u), g)


@_program((_bf16(normal(1, 36, 120) * 5), _bf16(normal(2, 120))), "count no_square")
def moments(w: Arithmetic, x: Any, weight: Any) -> Any:
    """Weighted means and mean squares of rows, added up in bf16."""
    share = _bf16(1 / (110 if w.wrong("count") else 120))
    weighted = w.narrow("mul", x, w.moved(lambda v: v[None] * w.jax.numpy.ones((36, 1), v.dtype), weight))
    mean = w.narrow("mul", w.sum(weighted, 1), share)
    square = w.narrow("mul", w.sum(x if w.wrong("no_square") else w.narrow("mul", x, x), 1), share)
    return mean, square


@_program((_bf16(normal(1, 40, 30) * 5), _bf16(normal(2, 40, 30) * 5)), "coefficient order")
def horner(w: Arithmetic, x: Any, y: Any) -> Any:
    """A polynomial in bf16, elementwise, and what it is multiplied with."""
    coefficients = [0.25, -0.625, 1.03125 if w.wrong("coefficient") else 1.0, 0.5]
    if w.wrong("order"):
        coefficients[1:3] = coefficients[2:0:-1]
    value = w.narrow("mul", x, _bf16(coefficients[0]))
    for each in coefficients[1:]:
        value = w.narrow("mul", w.narrow("add", value, _bf16(each)), x)
    return w.narrow("sub", w.narrow("mul", value, y), y)


@_program((normal(1, 20, 24) * 4, normal(2, 24, 90), normal(3, 90, 10)), "maximum_left_out weight")
def narrow_softmax(w: Arithmetic, x: Any, keys: Any, values: Any) -> Any:
    """Scores in f32, their softmax in bf16 with its sum, and a product in f32."""
    scores = w.dot(x, keys)
    if not w.wrong("maximum_left_out"):
        scores = scores - scores.max(-1, keepdims=True)
    powers = w.narrow("exp", w.narrowed(scores))
    total = w.sum(powers, 1)
    shares = w.narrow("div", powers, w.moved(lambda v: w.jax.numpy.broadcast_to(v[:, None], (20, 90)), total))
    return w.dot(w.widened(shares), values * _f32(1.01 if w.wrong("weight") else 1))


@_program((_f16(positive(1, 40, 30) * 4), _f16(positive(2, 40, 30))), "shoulder toe")
def tone_mapping(w: Arithmetic, light: Any, exposure: Any) -> Any:
    """A filmic curve in f16."""
    v = w.narrow("mul", light, exposure)
    a, b = _f16(2.51), _f16(0.04 if w.wrong("toe") else 0.03)
    c, d = _f16(2.43), _f16(0.65 if w.wrong("shoulder") else 0.59)
    above = w.narrow("mul", v, w.narrow("add", w.narrow("mul", v, a), b))
    below = w.narrow("add", w.narrow("mul", v, w.narrow("add", w.narrow("mul", v, c), d)), _f16(0.14))
    return w.narrow("div", above, below)


@_program((_f16(normal(1, 30, 80) * 5), normal(2, 30, 16) * 4, normal(3, 16, 12)), "frames_shifted scale")
def frame_energies(w: Arithmetic, frames: Any, features: Any, weight: Any) -> Any:
    """Energies of frames, added up in f16, scale what a product in f32 gives."""
    energy = w.sum(w.narrow("mul", frames, frames), 1)
    if w.wrong("frames_shifted"):
        energy = w.moved(lambda v: w.jax.numpy.roll(v, 1), energy)
    scale = w.widened(energy) * _f32(0.0127 if w.wrong("scale") else 0.0125)
    return w.dot(features, weight) * scale[:, None]


@_program(
    (_bf16(normal(1, 26, 40) * 5), _bf16(normal(2, 40, 28)), _bf16(normal(3, 28)), normal(4, 28, 9)),
    "bias_twice activation",
)
def narrow_head(w: Arithmetic, x: Any, weight: Any, bias: Any, out: Any) -> Any:
    """A layer in bf16, its mean over features in bf16, and a head in f32."""
    h = w.dot(x, weight)
    b = w.moved(lambda v: w.jax.numpy.broadcast_to(v, (26, 28)), bias)
    h = w.narrow("add", h, b)
    if w.wrong("bias_twice"):
        h = w.narrow("add", h, b)
    h = w.narrow("max", h, _bf16(0)) if w.wrong("activation") else w.narrow("tanh", h)
    centre = w.narrow("mul", w.sum(h, 1), _bf16(1 / 28))
    h = w.narrow("sub", h, w.moved(lambda v: w.jax.numpy.broadcast_to(v[:, None], (26, 28)), centre))
    return w.dot(w.widened(h), out)


@_program(
    (_bf16(normal(1, 100, 24) * 4), _bf16(normal(2, 64, 24) * 4), normal(3, 24, 24) * 3), "rows_left_out subtracted"
)
def column_statistics(w: Arithmetic, x: Any, y: Any, mix: Any) -> Any:
    """Sums over the rows of two arrays in bf16, their difference mixed by a product in f32."""
    if w.wrong("rows_left_out"):
        x = x.at[90:].set(0)
    first, second = w.sum(x, 0), w.sum(y, 0)
    both = w.narrow("add" if w.wrong("subtracted") else "sub", first, second)
    return w.dot(w.widened(both)[None], mix)[0], both


@_program((normal(1, 22, 16) * 4, normal(2, 16, 64), normal(3, 16, 64)), "product_of_one mean")
def bilinear_pooling(w: Arithmetic, x: Any, left: Any, right: Any) -> Any:
    """Two products in f32, multiplied and added up in bf16."""
    u, v = w.narrowed(w.dot(x, left)), w.narrowed(w.dot(x, right))
    p = w.narrow("mul", u, u if w.wrong("product_of_one") else v)
    total = w.sum(p, 1)
    return w.narrow("mul", total, _bf16(0.127 if w.wrong("mean") else 0.125))
