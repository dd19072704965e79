"""Transformer Engine's normalizations over the last dimension: layer norm and RMS norm, forward and backward.

The calls differ in their operands and results, which tables list by name. Source: TransformerEngine,
jax/csrc/extensions/normalization.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import Instruction, Shape, TupleShape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.ops.common import narrow, widen
from hloexec.ops.library_calls.ffi import Attributes
from hloexec.ops.library_calls.shapes import operand_shapes, result_shapes, zeros
from hloexec.ops.library_calls.transformer_engine.quantization import SCALINGS, largest_magnitude, scaled
from hloexec.ops.registry import add_custom_call


@frozen
class _Form:
    """The operands and the results of a call in order; what follows are workspaces, and what newer versions add."""

    operands: tuple[str, ...]
    results: tuple[str, ...]
    norm: str | None = None
    """None where the attribute norm_type says it."""

    @property
    def is_forward(self) -> bool:
        return "dz" not in self.operands


_FORMS: Mapping[str, _Form] = {
    "te_norm_forward_ffi": _Form(
        ("x", "scale", "gamma", "beta"),
        ("output", "colwise_output", "scale_inv", "colwise_scale_inv", "amax", "mu", "rsigma"),
    ),
    "te_layernorm_forward_ffi": _Form(("x", "gamma", "beta"), ("output", "mu", "rsigma"), "layer"),
    "te_layernorm_forward_fp8_ffi": _Form(
        ("x", "gamma", "beta", "amax", "scale", "scale_inv"), ("output", "mu", "rsigma", "amax"), "layer"
    ),
    "te_rmsnorm_forward_ffi": _Form(("x", "gamma"), ("output", "rsigma"), "rms"),
    "te_rmsnorm_forward_fp8_ffi": _Form(
        ("x", "gamma", "amax", "scale", "scale_inv"), ("output", "rsigma", "amax"), "rms"
    ),
    "te_norm_backward_ffi": _Form(("dz", "x", "mu", "rsigma", "gamma"), ("dx", "dgamma", "dbeta")),
    "te_layernorm_backward_ffi": _Form(("dz", "x", "mu", "rsigma", "gamma"), ("dx", "dgamma", "dbeta"), "layer"),
    "te_rmsnorm_backward_ffi": _Form(("dz", "x", "rsigma", "gamma"), ("dx", "dgamma"), "rms"),
}


@frozen
class _Config:
    norm: str
    adds_one: bool
    """Whether gamma is stored less 1."""
    epsilon: float
    scaling: str
    has_largest: bool
    """Whether the largest magnitude is found without a scale, too."""


def _config(instruction: Instruction) -> _Config:
    form = _FORMS[instruction.attributes.custom_call_target]
    scaling = "delayed" if "scale" in form.operands else "none"
    epsilon = 0.0
    with Attributes(instruction.backend_config) as attributes:
        norm = form.norm or attributes.choice("norm_type", {0: "layer", 1: "rms"})
        if form.is_forward and form.norm is None:
            scaling = attributes.choice("scaling_mode", {0: SCALINGS[0], 1: SCALINGS[1]})
            if attributes.truth("is_2x", False) or attributes.integer("quantize_layout", 0):
                raise UnsupportedError("it asks for the transpose, too (is_2x or quantize_layout)")
        has_largest = attributes.truth("output_amax_when_no_scaling", False) or scaling != "none"
        adds_one = attributes.truth("zero_centered_gamma")
        if form.is_forward:
            epsilon = attributes.number("epsilon" if form.norm is None else "eps")
        # How many processors work; older backward calls repeat forward's ε, which is in the deviation already.
        attributes.ignore("sm_margin", *(() if form.is_forward else ("eps", "epsilon")))
    return _Config(norm, adds_one, epsilon, scaling, has_largest)


def _named(form: _Form, values: Sequence[object], target: str) -> dict[str, Any]:
    # Newer versions take the buffer of the largest magnitude after the scale.
    has_amax = form.operands == ("x", "scale", "gamma", "beta") and len(values) == 5
    names = ("x", "scale", "amax", "gamma", "beta") if has_amax else form.operands
    if len(values) != len(names):
        raise ShapeError(f"{target} takes {', '.join(names)}, but has {len(values)} operands")
    return dict(zip(names, values, strict=True))


def _infer_shapes(target: str, *operands: Shape, config: _Config, shape: Shape) -> Shape:
    form = _FORMS[target]
    given = _named(form, operand_shapes(operands, target), target)
    x, gamma = given["x"], given["gamma"]
    if x.rank < 1 or gamma.dimensions != x.dimensions[-1:] or not x.element_count:
        raise ShapeError(f"{target} normalizes the last dimension of x, but x is {x} and gamma {gamma}")
    rows = x.dimensions[:-1]
    expected = {"beta": gamma.dimensions, "dz": x.dimensions, "rsigma": rows, "mu": rows}
    # RMS norms have neither a mean nor a shift, and arrays of one element in their place.
    absent = () if config.norm == "layer" else ("beta", "mu", "dbeta")
    for name, array in given.items():
        if name in expected and name not in absent and array.dimensions != expected[name]:
            raise ShapeError(f"{name} of {target} must have dimensions {list(expected[name])}, but is {array}")
    if "scale" in given and config.scaling == "delayed" and not given["scale"].element_count:
        raise ShapeError(f"{target} must have a scale of one element, but has {given['scale']}")
    declared = result_shapes(shape, target, len(form.results))
    expected |= {"output": x.dimensions, "dx": x.dimensions, "dgamma": gamma.dimensions, "dbeta": gamma.dimensions}
    for number, name in enumerate(form.results):
        if name in expected and name not in absent:
            declared[number] = attrs.evolve(declared[number], dimensions=expected[name])
    return TupleShape(tuple(declared))


def _forward(target: str, *operands: Array, config: _Config, shape: Shape) -> tuple[Array, ...]:
    form, declared = _FORMS[target], result_shapes(shape, target)
    given = _named(form, operands, target)
    x, gamma = widen(given["x"]), widen(given["gamma"])
    dtype = x.dtype.type
    with np.errstate(all="ignore"):
        mean = x.mean(-1, keepdims=True) if config.norm == "layer" else dtype(0)
        deviation = x - mean
        variance = np.square(deviation).mean(-1, keepdims=True)
        factor = dtype(1) / np.sqrt(variance + dtype(config.epsilon))
        value = deviation * factor * (gamma + dtype(1) if config.adds_one else gamma)
        if config.norm == "layer":
            value = value + widen(given["beta"])
        scale = widen(given["scale"]).reshape(-1)[:1] if config.scaling == "delayed" else np.ones(1, np.float32)
        inverse = np.float32(1) / scale
    largest: Any = largest_magnitude(value) if config.has_largest else np.float32(0)
    if "amax" in given:
        # The buffer is the operand's, and only ever grows.
        largest = np.fmax(widen(given["amax"]), largest)
    results = {
        "mu": np.asarray(mean).reshape(-1) if config.norm == "layer" else None,
        "rsigma": factor,
        "amax": np.asarray(largest),
        "scale_inv": inverse,
        "colwise_scale_inv": inverse,
    }
    outputs = zeros(declared)
    for number, name in enumerate(form.results):
        leaf = declared[number]
        if name == "output":
            outputs[number] = scaled(value, scale if config.scaling == "delayed" else None, leaf.element_type)
        elif (result := results.get(name)) is not None and result.size in (1, leaf.element_count):
            fitting = result.reshape(leaf.dimensions) if result.size == leaf.element_count else result.reshape(())
            outputs[number] = narrow(np.broadcast_to(fitting, leaf.dimensions), leaf.element_type)
    return tuple(outputs)


def _backward(target: str, *operands: Array, config: _Config, shape: Shape) -> tuple[Array, ...]:
    form, declared = _FORMS[target], result_shapes(shape, target)
    given = {name: widen(value) for name, value in _named(form, operands, target).items()}
    x, factor = given["x"], given["rsigma"][..., None]
    dtype = x.dtype.type
    is_layer = config.norm == "layer"
    others = tuple(range(x.ndim - 1))
    with np.errstate(all="ignore"):
        normal = ((x - given["mu"][..., None]) if is_layer else x) * factor
        gamma = given["gamma"] + dtype(1) if config.adds_one else given["gamma"]
        inner = given["dz"] * gamma
        rest = (inner * normal).mean(-1, keepdims=True) * normal
        gradient = factor * (inner - rest - (inner.mean(-1, keepdims=True) if is_layer else dtype(0)))
        results = {
            "dx": gradient,
            "dgamma": (given["dz"] * normal).sum(others),
            "dbeta": given["dz"].sum(others) if is_layer else None,
        }
    outputs = zeros(declared)
    for number, name in enumerate(form.results):
        if (result := results[name]) is not None:
            outputs[number] = narrow(np.asarray(result), declared[number].element_type)
    return tuple(outputs)


_DOCUMENTATION = {
    True: """(x − μ) / σ · γ + β over the last dimension, with σ² = mean((x − μ)²) + ε

    μ is the mean, or for RMS norms 0, which have no β either; γ + 1 stands for γ where zero_centered_gamma. Operands:
    {operands}; newer versions of te_norm_forward_ffi have amax after scale. Results: {results}, then workspaces;
    rsigma is 1 / σ in f32. An eight-bit output is scaled and saturates, amax is the largest magnitude before that, and
    at least that of the operand. Everything else is rounded once from f32. Source: TransformerEngine,
    jax/csrc/extensions/normalization.cpp.
    """,
    False: """The gradients of a normalization, given 1 / σ and (layer norm) μ as forward left them

    With n = (x − μ) / σ and g = dz · γ: dx = (g − n · mean(g · n) − mean(g)) / σ, without the last term for RMS norms;
    dγ = Σ dz · n and dβ = Σ dz over all rows. Operands: {operands}; results: {results}, then workspaces; rounded once
    from f32. Source: TransformerEngine, jax/csrc/extensions/normalization.cpp.
    """,
}

for _target, _form in _FORMS.items():
    add_custom_call(
        _target,
        partial(_forward if _form.is_forward else _backward, _target),
        infer=partial(_infer_shapes, _target),
        config=_config,
        documentation=_DOCUMENTATION[_form.is_forward].format(
            operands=", ".join(_form.operands), results=", ".join(_form.results)
        ),
    )
