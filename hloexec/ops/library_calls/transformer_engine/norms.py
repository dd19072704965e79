"""Transformer Engine's normalizations, softmax and matrix product.

Transformer Engine's normalizations over the last dimension: layer norm and RMS norm, forward and backward.

The calls differ in their operands and results, which tables list by name. Source: TransformerEngine,
jax/csrc/extensions/normalization.cpp.

Transformer Engine's softmax of scaled scores, with a mask or causal, forward and backward.

Source: TransformerEngine, jax/csrc/extensions/softmax.cpp, common/fused_softmax.

Transformer Engine's matrix product, which runs on cuBLASLt, and the calls of it that are refused.

Source: TransformerEngine, jax/csrc/extensions/gemm.cpp, jax/cpp_extensions/gemm.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Arrays, Dimensions
from hloexec.errors import EvaluationError, ShapeError, UnsupportedError
from hloexec.ops.common import narrow, operand_shapes, widen
from hloexec.ops.contraction.dot import contract, dot_of
from hloexec.ops.library_calls.activations import gelu
from hloexec.ops.library_calls.configs import (
    Attributes,
    CallResult,
    in_declared_form,
    result_shapes,
    with_scratch,
    zeros,
)
from hloexec.ops.library_calls.transformer_engine.quantization import SCALINGS, as_matrix, largest_magnitude, scaled
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import add_custom_call, custom_call, refuse_custom_calls


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
    arrays = _named(form, operand_shapes(operands, target), target)
    x, gamma = arrays["x"], arrays["gamma"]
    if x.rank < 1 or gamma.dimensions != x.dimensions[-1:] or not x.element_count:
        raise ShapeError(f"{target} normalizes the last dimension of x, but x is {x} and gamma {gamma}")
    rows = x.dimensions[:-1]
    expected = {"beta": gamma.dimensions, "dz": x.dimensions, "rsigma": rows, "mu": rows}
    # RMS norms have neither a mean nor a shift, and arrays of one element in their place.
    absent = () if config.norm == "layer" else ("beta", "mu", "dbeta")
    for name, array in arrays.items():
        if name in expected and name not in absent and array.dimensions != expected[name]:
            raise ShapeError(f"{name} of {target} must have dimensions {list(expected[name])}, but is {array}")
    if "scale" in arrays and config.scaling == "delayed" and not arrays["scale"].element_count:
        raise ShapeError(f"{target} must have a scale of one element, but has {arrays['scale']}")
    declared = result_shapes(shape, target, len(form.results))
    expected |= {"output": x.dimensions, "dx": x.dimensions, "dgamma": gamma.dimensions, "dbeta": gamma.dimensions}
    for number, name in enumerate(form.results):
        if name in expected and name not in absent:
            declared[number] = attrs.evolve(declared[number], dimensions=expected[name])
    return TupleShape(tuple(declared))


def _forward(target: str, *operands: Array, config: _Config, shape: Shape) -> Arrays:
    form, declared = _FORMS[target], result_shapes(shape, target)
    arrays = _named(form, operands, target)
    x, gamma = widen(arrays["x"]), widen(arrays["gamma"])
    dtype = x.dtype.type
    mean = x.mean(-1, keepdims=True) if config.norm == "layer" else dtype(0)
    deviation = x - mean
    variance = np.square(deviation).mean(-1, keepdims=True)
    factor = dtype(1) / np.sqrt(variance + dtype(config.epsilon))
    value = deviation * factor * (gamma + dtype(1) if config.adds_one else gamma)
    if config.norm == "layer":
        value = value + widen(arrays["beta"])
    scale = widen(arrays["scale"]).reshape(-1)[:1] if config.scaling == "delayed" else np.ones(1, np.float32)
    inverse = np.float32(1) / scale
    largest: Any = largest_magnitude(value) if config.has_largest else np.float32(0)
    if "amax" in arrays:
        # The buffer is the operand's, and only ever grows.
        largest = np.fmax(widen(arrays["amax"]), largest)
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


def _backward(target: str, *operands: Array, config: _Config, shape: Shape) -> Arrays:
    form, declared = _FORMS[target], result_shapes(shape, target)
    arrays = {name: widen(value) for name, value in _named(form, operands, target).items()}
    x, factor = arrays["x"], arrays["rsigma"][..., None]
    dtype = x.dtype.type
    is_layer = config.norm == "layer"
    others = tuple(range(x.ndim - 1))
    normal = ((x - arrays["mu"][..., None]) if is_layer else x) * factor
    gamma = arrays["gamma"] + dtype(1) if config.adds_one else arrays["gamma"]
    inner = arrays["dz"] * gamma
    rest = (inner * normal).mean(-1, keepdims=True) * normal
    gradient = factor * (inner - rest - (inner.mean(-1, keepdims=True) if is_layer else dtype(0)))
    results = {
        "dx": gradient,
        "dgamma": (arrays["dz"] * normal).sum(others),
        "dbeta": arrays["dz"].sum(others) if is_layer else None,
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


_HIDDEN = np.float32(-10000)
"""What the library puts in the place of a masked score; a row with nothing else gives 0."""


def _scale(instruction: Instruction) -> np.float32:
    with Attributes(instruction.backend_config) as attributes:
        return np.float32(attributes.number("scale_factor"))


def _causal(shape: Dimensions) -> Array:
    """[s, t]: the keys up to a query's own place."""
    return np.tri(shape[-2], shape[-1], dtype=np.bool_)


def _result(scores: ArrayShape, shape: Shape, target: str) -> Shape:
    if scores.rank < 3 or not scores.element_type.is_floating:
        raise ShapeError(f"{target} takes scores [batch..., heads, s, t], but has {scores}")
    return in_declared_form([ArrayShape(result_shapes(shape, target)[0].element_type, scores.dimensions)], shape)


def _infer_forward(target: str, kind: str, *operands: Shape, shape: Shape) -> Shape:
    if len(operands) != 1 + (kind == "masked"):
        raise ShapeError(f"{target} takes scores{' and a mask' * (kind == 'masked')}, but has {len(operands)} operands")
    scores, *masks = operand_shapes(operands, target)
    result = _result(scores, shape, target)
    for mask in masks:
        one_for_all = (*scores.dimensions[:-3], 1, *scores.dimensions[-2:])
        fits = mask.rank == scores.rank and all(
            size in (1, expected) if number < mask.rank - 3 else size == expected
            for number, (size, expected) in enumerate(zip(mask.dimensions, one_for_all, strict=True))
        )
        if not fits:
            raise ShapeError(f"the mask of {target} must have dimensions {list(one_for_all)}, but is {mask}")
    return result


def _forward_softmax(target: str, kind: str, *operands: Array, config: np.float32, shape: Shape) -> CallResult:
    scores = widen(operands[0]).astype(np.float32, copy=False)
    scores = scores * config
    if kind == "causal":
        scores = np.where(_causal(scores.shape), scores, -np.inf)
    elif kind == "masked":
        scores = np.where(operands[1] == 1, _HIDDEN, scores)
    largest = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - largest)
    weights /= weights.sum(-1, keepdims=True)
    if kind == "masked":
        weights = np.where(largest == _HIDDEN, np.float32(0), weights)
    return with_scratch([narrow(np.asarray(weights), result_shapes(shape, target)[0].element_type)], shape)


def _infer_backward(target: str, kind: str, gradient: Shape, weights: Shape, *, shape: Shape) -> Shape:
    first, second = operand_shapes((gradient, weights), target)
    if first.dimensions != second.dimensions:
        raise ShapeError(f"{target} takes a gradient and an output of one shape, but has {first} and {second}")
    return _result(first, shape, target)


def _backward_softmax(
    target: str, kind: str, gradient: Array, weights: Array, *, config: np.float32, shape: Shape
) -> CallResult:
    delta, chosen = (widen(array).astype(np.float32, copy=False) for array in (gradient, weights))
    if kind == "causal":
        chosen = np.where(_causal(chosen.shape), chosen, np.float32(0))
    product = delta * chosen
    value = config * (product - chosen * product.sum(-1, keepdims=True))
    return with_scratch([narrow(value, result_shapes(shape, target)[0].element_type)], shape)


_KINDS = {
    "te_scaled_softmax": ("plain", ""),
    "te_scaled_masked_softmax": ("masked", "; a score whose mask is 1 counts as −10 000, and a row of such gives 0"),
    "te_scaled_upper_triang_masked_softmax": ("causal", " over the scores up to the diagonal, the others giving 0"),
}
_SOURCE = "Source: TransformerEngine, jax/csrc/extensions/softmax.cpp, common/fused_softmax."

for _name, (_kind, _what) in _KINDS.items():
    add_custom_call(
        f"{_name}_forward_ffi",
        partial(_forward_softmax, f"{_name}_forward_ffi", _kind),
        infer=partial(_infer_forward, f"{_name}_forward_ffi", _kind),
        config=_scale,
        documentation=f"softmax(scale_factor · x) along the last dimension{_what}\n\nIn f32, rounded once. {_SOURCE}",
    )
    add_custom_call(
        f"{_name}_backward_ffi",
        partial(_backward_softmax, f"{_name}_backward_ffi", _kind),
        infer=partial(_infer_backward, f"{_name}_backward_ffi", _kind),
        config=_scale,
        documentation="scale_factor · (dy · y − y · Σ dy · y), the gradient of a softmax given its output y\n\n"
        f"Operands: dy, y. In f32, rounded once. {_SOURCE}",
    )


@frozen
class _GemmConfig:
    scaling: str
    boundaries: tuple[int, int]
    transposed: tuple[bool, bool]
    has_bias: bool
    has_gelu: bool


def _gemm_config(instruction: Instruction) -> _GemmConfig:
    with Attributes(instruction.backend_config) as attributes:
        config = _GemmConfig(
            attributes.choice("scaling_mode", {number: SCALINGS[number] for number in (0, 1, 3)}),
            (attributes.integer("lhs_axis_boundary"), attributes.integer("rhs_axis_boundary")),
            (attributes.truth("lhs_transposed"), attributes.truth("rhs_transposed")),
            attributes.truth("fuse_bias"),
            attributes.truth("fuse_gelu"),
        )
        if attributes.truth("grad", False) and (config.has_bias or config.has_gelu):
            raise UnsupportedError("it asks for gradients of a bias or of gelu in addition to the product (grad)")
        if config.scaling != "none" and config.transposed != (False, True):
            raise UnsupportedError(
                "its operands have eight bits (scaling_mode) and lhs_transposed, rhs_transposed other than false, "
                "true: which of them lie in memory transposed depends on the device"
            )
        if attributes.integer("collective_op", 0):
            raise UnsupportedError("it communicates with other devices (collective_op)")
        # Whether sums of eight-bit products are promoted to f32 every so often: here they are f32 from the start.
        attributes.ignore("use_split_accumulator")
    return config


def _sides(config: _GemmConfig, lhs: Dimensions, rhs: Dimensions) -> tuple[Dimensions, ...]:
    """The free dimensions of lhs, the contracted ones of either, and the free ones of rhs."""
    parts = []
    for name, dimensions, boundary in zip(("lhs", "rhs"), (lhs, rhs), config.boundaries, strict=True):
        if not 0 < boundary < len(dimensions):
            raise ShapeError(f"{name}_axis_boundary is {boundary}, which does not part dimensions {list(dimensions)}")
        parts.append((dimensions[:boundary], dimensions[boundary:]))
    left, right = parts
    free, contracted = reversed(left) if config.transposed[0] else left
    other, last = reversed(right) if config.transposed[1] else right
    return free, contracted, other, last


@custom_call("te_gemm_ffi", config=_gemm_config)
class Gemm:
    """lhs · rhs + bias, or gelu of it, rounded once from f32

    The dimensions before and after an operand's axis_boundary are those of a matrix: lhs is [free, contracted], the
    other way round where lhs_transposed, and rhs [contracted, free]. Operands: lhs, its inverse scale (f32[1]), rhs,
    its inverse scale, bias, gelu's input (for gradients), and in newer versions alpha and beta, which must be 0.
    Results: the product, an unused gradient, what gelu was applied to, workspaces. Inverse scales apply where
    scaling_mode is not 0. Source: TransformerEngine, jax/csrc/extensions/gemm.cpp (GemmFFI).
    """

    @staticmethod
    def infer(*operands: Shape, config: _GemmConfig, shape: Shape) -> Shape:
        if len(operands) not in (6, 8):
            raise ShapeError(f"te_gemm_ffi takes 6 operands, or 8 with alpha and beta, but has {len(operands)}")
        lhs, lhs_scale, rhs, rhs_scale, bias, *_ = operand_shapes(operands, "te_gemm_ffi")
        free, contracted, other, last = _sides(config, lhs.dimensions, rhs.dimensions)
        if prod(contracted) != prod(other):
            raise ShapeError(f"te_gemm_ffi contracts dimensions {list(contracted)} with {list(other)}")
        if config.scaling != "none" and not (lhs_scale.element_count and rhs_scale.element_count):
            raise ShapeError("te_gemm_ffi must have an inverse scale for each operand of eight bits")
        if config.has_bias and bias.element_count != prod(last):
            raise ShapeError(f"the bias of te_gemm_ffi must have {prod(last)} elements, but is {bias}")
        declared = result_shapes(shape, "te_gemm_ffi", 3)
        declared[0] = ArrayShape(declared[0].element_type, (*free, *last))
        if config.has_gelu:
            declared[2] = ArrayShape(declared[2].element_type, (*free, *last))
        return TupleShape(tuple(declared))

    @staticmethod
    def evaluate(*operands: Array, config: _GemmConfig, shape: Shape, numerics: NumericsPolicy) -> Arrays:
        declared = result_shapes(shape, "te_gemm_ffi")
        lhs, lhs_scale, rhs, rhs_scale, bias, _, *factors = operands
        numbers = dot_of(f"{('mk', 'km')[config.transposed[0]]},{('kn', 'nk')[config.transposed[1]]}->mn")
        wide = element_type_of(np.result_type(*(element_type_of(operand.dtype).accumulate for operand in (lhs, rhs))))
        product = contract(
            as_matrix(lhs, config.boundaries[0]), as_matrix(rhs, config.boundaries[1]), numbers, wide, numerics=numerics
        )
        if config.scaling != "none":
            product = product * (widen(lhs_scale).reshape(-1)[0] * widen(rhs_scale).reshape(-1)[0])
        if factors:
            alpha, beta = factors
            if alpha.size != 1 or widen(beta).any():
                raise EvaluationError(
                    "te_gemm_ffi must have one alpha and a beta of 0, since there is nothing to add to"
                )
            product = product * widen(alpha).reshape(-1)[0].astype(product.dtype)
        if config.has_bias:
            product = product + widen(bias).reshape(-1)
        value = gelu(product) if config.has_gelu else product
        results = zeros(declared)
        results[0] = narrow(value, declared[0].element_type).reshape(declared[0].dimensions)
        if config.has_gelu:
            results[2] = narrow(product, declared[2].element_type).reshape(declared[2].dimensions)
        return tuple(results)


_OPAQUE = (
    "te_transpose te_cast_transpose te_dbias_cast_transpose te_quantize te_dequantize te_act_lu te_act_lu_fp8 "
    "te_dact_lu te_dact_lu_dbias_cast_transpose te_dgated_act_lu_cast_transpose te_gelu te_gelu_fp8 te_dgelu "
    "te_gated_gelu te_gated_gelu_fp8 te_dgated_gelu te_dgated_gelu_cast_transpose te_dgelu_dbias_cast_transpose "
    "te_gated_silu te_gated_silu_fp8 te_dgated_silu te_gemm te_layernorm_forward te_layernorm_forward_fp8 "
    "te_layernorm_backward te_rmsnorm_forward te_rmsnorm_forward_fp8 te_rmsnorm_backward te_scaled_softmax_forward "
    "te_scaled_softmax_backward te_scaled_masked_softmax_forward te_scaled_masked_softmax_backward "
    "te_scaled_upper_triang_masked_softmax_forward te_scaled_upper_triang_masked_softmax_backward "
    "te_fused_attn_forward te_fused_attn_backward te_self_fused_attn_forward te_self_fused_attn_backward "
    "te_cross_fused_attn_forward te_cross_fused_attn_backward"
).split()
_TYPED = (
    "te_grouped_gemm_ffi te_grouped_gemm_d2h_group_sizes_ffi te_grouped_quantize_ffi te_rht_amax_ffi "
    "te_collective_gemm_init_ffi te_dact_lu_dbias_cast_transpose_ffi te_dgated_act_lu_cast_transpose_ffi"
).split()


for _targets, _reason in (
    (
        _OPAQUE,
        "its backend_config is a packed structure whose layout changes from version to version; newer versions of "
        "Transformer Engine (those whose calls end in _ffi) say the same in words",
    ),
    (_TYPED, "what it does with its operands changes from version to version, and its attributes do not say which"),
):
    refuse_custom_calls(
        *_targets,
        reason=_reason,
        documentation="""
        Calls of Transformer Engine whose configs do not say what to compute: all refused.

        Source: TransformerEngine 0.x and 1.x, jax/csrc/extensions/packing.cpp.
        """,
    )
