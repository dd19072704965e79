"""Transformer Engine's softmax of scaled scores, with a mask or causal, forward and backward.

Source: TransformerEngine, jax/csrc/extensions/softmax.cpp, common/fused_softmax.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from hloexec.core.ir import ArrayShape, Instruction, Shape
from hloexec.core.values import Array
from hloexec.errors import ShapeError
from hloexec.ops.common import narrow, widen
from hloexec.ops.library_calls.ffi import Attributes
from hloexec.ops.library_calls.shapes import CallResult, in_declared_form, operand_shapes, result_shapes, with_scratch
from hloexec.ops.registry import add_custom_call

_HIDDEN = np.float32(-10000)
"""What the library puts in the place of a masked score; a row with nothing else gives 0."""


def _scale(instruction: Instruction) -> np.float32:
    with Attributes(instruction.backend_config) as attributes:
        return np.float32(attributes.number("scale_factor"))


def _causal(shape: tuple[int, ...]) -> Array:
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


def _forward(target: str, kind: str, *operands: Array, config: np.float32, shape: Shape) -> CallResult:
    scores = widen(operands[0]).astype(np.float32, copy=False)
    with np.errstate(all="ignore"):
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


def _backward(
    target: str, kind: str, gradient: Array, weights: Array, *, config: np.float32, shape: Shape
) -> CallResult:
    delta, chosen = (widen(array).astype(np.float32, copy=False) for array in (gradient, weights))
    with np.errstate(all="ignore"):
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
        partial(_forward, f"{_name}_forward_ffi", _kind),
        infer=partial(_infer_forward, f"{_name}_forward_ffi", _kind),
        config=_scale,
        documentation=f"softmax(scale_factor · x) along the last dimension{_what}\n\nIn f32, rounded once. {_SOURCE}",
    )
    add_custom_call(
        f"{_name}_backward_ffi",
        partial(_backward, f"{_name}_backward_ffi", _kind),
        infer=partial(_infer_backward, f"{_name}_backward_ffi", _kind),
        config=_scale,
        documentation="scale_factor · (dy · y − y · Σ dy · y), the gradient of a softmax given its output y\n\n"
        f"Operands: dy, y. In f32, rounded once. {_SOURCE}",
    )
