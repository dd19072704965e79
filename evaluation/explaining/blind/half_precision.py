"""Programs of the blind half in bf16 and f16, some beside products in f32."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from evaluation.explaining.operations.arithmetic import Arithmetic
from evaluation.explaining.operations.program import Program, registering
from evaluation.programs.program import normal, positive

HALF_PRECISION: dict[str, Program] = {}
_program = registering(HALF_PRECISION)
_f32 = np.float32


def _bf16(value: Any) -> Any:
    return np.asarray(value).astype(ml_dtypes.bfloat16)


def _f16(value: Any) -> Any:
    return np.asarray(value).astype(np.float16)


@_program((_bf16(normal(1, 20, 68) * 5),), "tap taps_reversed")
def smoothing_filter(w: Arithmetic, signal: Any) -> Any:
    """A filter of five taps over signals in bf16, and what it takes away."""
    taps = [0.0625, 0.25, 0.377 if w.wrong("tap") else 0.375, 0.22, 0.0925]
    taps = taps[::-1] if w.wrong("taps_reversed") else taps
    total = None
    for number, tap in enumerate(taps):
        term = w.narrow("mul", w.moved(lambda v, n=number: v[:, n : n + 64], signal), _bf16(tap))
        total = term if total is None else w.narrow("add", total, term)
    return total, w.narrow("sub", w.moved(lambda v: v[:, 2:66], signal), total)


@_program((_bf16(normal(1, 40, 96) * 5), _bf16(positive(2, 96)), normal(3, 96, 14)), "epsilon gain_shifted")
def narrow_norm(w: Arithmetic, x: Any, gain: Any, out: Any) -> Any:
    """A root-mean-square norm in bf16 with its sum, and a product in f32."""
    jnp = w.jax.numpy
    mean = w.narrow("mul", w.sum(w.narrow("mul", x, x), 1), _bf16(1 / 96))
    factor = w.narrow("rsqrt", w.narrow("add", mean, _bf16(0.05 if w.wrong("epsilon") else 0.001)))
    y = w.narrow("mul", x, w.moved(lambda v: jnp.broadcast_to(v[:, None], (40, 96)), factor))
    shift = 1 if w.wrong("gain_shifted") else 0
    y = w.narrow("mul", y, w.moved(lambda v: jnp.broadcast_to(jnp.roll(v, shift), (40, 96)), gain))
    return w.dot(w.widened(y), out)


@_program((_f16(positive(1, 6, 24, 16)), _f16(positive(2, 6, 24, 16))), "opacity order")
def compositing(w: Arithmetic, colours: Any, opacities: Any) -> Any:
    """Six layers laid over a grey ground in f16, and how much of it shines through."""
    layers = [5, 3, 4, 2, 1, 0] if w.wrong("order") else [5, 4, 3, 2, 1, 0]
    total, through = _f16(np.full((24, 16), 0.3)), _f16(np.full((24, 16), 0.9))
    for number in layers:
        c, a = (w.moved(lambda v, n=number: v[n], each) for each in (colours, opacities))
        if w.wrong("opacity"):
            a = w.narrow("mul", a, _f16(0.98))
        clear = w.narrow("sub", _f16(1), a)
        total = w.narrow("add", w.narrow("mul", c, a), w.narrow("mul", total, clear))
        through = w.narrow("mul", through, clear)
    return total, through


@_program((_bf16(normal(1, 36, 28) * 5), _bf16(normal(2, 36, 28)), _bf16(positive(3, 28))), "half_step stiffness")
def narrow_oscillations(w: Arithmetic, place: Any, speed: Any, stiffness: Any) -> Any:
    """Verlet steps of nonlinear springs in bf16, written out."""
    dt = _bf16(0.25)
    k = w.moved(lambda v: w.jax.numpy.broadcast_to(v, (36, 28)), stiffness)
    if w.wrong("stiffness"):
        k = w.narrow("mul", k, _bf16(1.03))
    for step in range(3):
        force = w.narrow("mul", w.narrow("neg", w.narrow("tanh", place)), k)
        share = _bf16(0.125) if w.wrong("half_step") and step == 0 else dt
        speed = w.narrow("add", speed, w.narrow("mul", force, share))
        place = w.narrow("add", place, w.narrow("mul", speed, dt))
    return place, speed


@_program(
    (_bf16(normal(1, 30, 40) * 5), _bf16(normal(2, 40, 48)), _bf16(normal(3, 48, 32)), _bf16(normal(4, 30, 32))),
    "residual_less activation",
)
def narrow_layers(w: Arithmetic, x: Any, enter: Any, leave: Any, beside: Any) -> Any:
    """Two products in bf16 with an activation between them, and what goes past."""
    h = w.dot(x, enter)
    h = w.narrow("max", h, _bf16(0)) if w.wrong("activation") else w.narrow("mul", h, w.narrow_logistic(h))
    y = w.dot(h, leave)
    return y if w.wrong("residual_less") else w.narrow("add", w.narrow("mul", y, _bf16(0.7)), beside)


@_program((_f16(positive(1, 90, 40) * 2), normal(2, 40, 18) * 3, normal(3, 18, 20)), "rows_left_out share")
def weighted_votes(w: Arithmetic, votes: Any, features: Any, project: Any) -> Any:
    """Votes added up in f16, their shares, and the features that they weight by a product in f32."""
    if w.wrong("rows_left_out"):
        votes = votes.at[84:].set(0)
    counts = w.sum(votes, 0)
    spread = w.narrow("mul", counts, _f16(0.0204 if w.wrong("share") else 0.02))
    return w.dot(features * w.widened(spread)[:, None], project), spread


@_program(
    (normal(1, 24, 16) * 4, normal(2, 16, 30), _bf16(normal(3, 30)), _bf16(normal(4, 24, 30) * 4)), "gate_twice offset"
)
def narrow_memory(w: Arithmetic, x: Any, weight: Any, bias: Any, state: Any) -> Any:
    """A gate from a product in f32 that mixes a state in bf16 with a new one."""
    found = w.narrowed(w.dot(x, weight))
    b = w.moved(lambda v: w.jax.numpy.broadcast_to(v, (24, 30)), bias)
    gate = w.narrow_logistic(w.narrow("add", found, b))
    if w.wrong("gate_twice"):
        gate = w.narrow("mul", gate, gate)
    new = w.narrow("tanh", w.narrow("add", found, _bf16(0.02)) if w.wrong("offset") else found)
    kept = w.narrow("mul", gate, state)
    return w.narrow("add", kept, w.narrow("mul", w.narrow("sub", _bf16(1), gate), new))
