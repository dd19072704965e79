"""Transformer Engine's softmax of scaled scores, with a mask or causal, forward and backward.

Source: TransformerEngine, jax/csrc/extensions/softmax.cpp, common/fused_softmax.
"""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np

from hloexec.custom_calls.registry import add_custom_call
from hloexec.custom_calls.transformer_engine.configs import Attributes, leaves, reason
from hloexec.errors import ShapeError
from hloexec.ir import ArrayShape, Shape, TupleShape
from hloexec.ops.common import array_shape, narrow, widen
from hloexec.values import Array

__all__: list[str] = []

_HIDDEN = np.float32(-10000)
"""What the library puts in the place of a masked score; a row with nothing else gives 0."""


@lru_cache(maxsize=64)
def _scale(backend_config: str | None) -> np.float32:
    attributes = Attributes(backend_config)
    scale = attributes.number("scale_factor")
    attributes.done()
    return np.float32(scale)


def _causal(shape: tuple[int, ...]) -> Array:
    """[s, t]: the keys up to a query's own place."""
    return np.tri(shape[-2], shape[-1], dtype=np.bool_)


def _check_scores(scores: ArrayShape, target: str) -> None:
    if scores.rank < 3 or not scores.element_type.is_floating:
        raise ShapeError(f"{target} takes scores [batch..., heads, s, t], but has {scores}")


def _result(like: ArrayShape, shape: Shape, target: str) -> Shape:
    (declared, *_) = leaves(shape, 1, target)
    result = ArrayShape(declared.element_type, like.dimensions)
    return TupleShape((result,)) if isinstance(shape, TupleShape) else result


def _infer_forward(target: str, kind: str, *operands: Shape, shape: Shape) -> Shape:
    arrays = [array_shape(operand, f"operand {number} of {target}") for number, operand in enumerate(operands)]
    if len(arrays) != 1 + (kind == "masked"):
        raise ShapeError(f"{target} takes scores{' and a mask' * (kind == 'masked')}, but has {len(arrays)} operands")
    _check_scores(arrays[0], target)
    for mask in arrays[1:]:
        one_for_all = (*arrays[0].dimensions[:-3], 1, *arrays[0].dimensions[-2:])
        fits = mask.rank == arrays[0].rank and all(
            size in (1, expected) if number < mask.rank - 3 else size == expected
            for number, (size, expected) in enumerate(zip(mask.dimensions, one_for_all, strict=True))
        )
        if not fits:
            raise ShapeError(f"the mask of {target} must have dimensions {list(one_for_all)}, but is {mask}")
    return _result(arrays[0], shape, target)


def _forward(
    target: str, kind: str, *operands: Array, backend_config: str | None, shape: Shape
) -> Array | tuple[Array, ...]:
    (declared, *_) = leaves(shape, 1, target)
    scores = widen(operands[0]).astype(np.float32, copy=False)
    with np.errstate(all="ignore"):
        scores = scores * _scale(backend_config)
        if kind == "causal":
            scores = np.where(_causal(scores.shape), scores, -np.inf)
        elif kind == "masked":
            scores = np.where(operands[1] == 1, _HIDDEN, scores)
        largest = scores.max(-1, keepdims=True, initial=-np.inf)
        weights = np.exp(scores - largest)
        weights /= weights.sum(-1, keepdims=True)
        if kind == "masked":
            weights = np.where(largest == _HIDDEN, np.float32(0), weights)
    result = narrow(np.asarray(weights), declared.element_type)
    return (result,) if isinstance(shape, TupleShape) else result


def _infer_backward(target: str, kind: str, gradient: Shape, weights: Shape, *, shape: Shape) -> Shape:
    first, second = array_shape(gradient, f"the gradient of {target}"), array_shape(weights, f"the output of {target}")
    _check_scores(first, target)
    if first.dimensions != second.dimensions:
        raise ShapeError(f"{target} takes a gradient and an output of one shape, but has {first} and {second}")
    return _result(first, shape, target)


def _backward(
    target: str, kind: str, gradient: Array, weights: Array, *, backend_config: str | None, shape: Shape
) -> Array | tuple[Array, ...]:
    (declared, *_) = leaves(shape, 1, target)
    delta, chosen = (widen(array).astype(np.float32, copy=False) for array in (gradient, weights))
    with np.errstate(all="ignore"):
        if kind == "causal":
            chosen = np.where(_causal(chosen.shape), chosen, np.float32(0))
        product = delta * chosen
        value = _scale(backend_config) * (product - chosen * product.sum(-1, keepdims=True))
    result = narrow(value, declared.element_type)
    return (result,) if isinstance(shape, TupleShape) else result


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
        supports=reason(_scale),
        documentation=f"softmax(scale_factor · x) along the last dimension{_what}\n\nIn f32, rounded once. {_SOURCE}",
    )
    add_custom_call(
        f"{_name}_backward_ffi",
        partial(_backward, f"{_name}_backward_ffi", _kind),
        infer=partial(_infer_backward, f"{_name}_backward_ffi", _kind),
        supports=reason(_scale),
        documentation="scale_factor · (dy · y − y · Σ dy · y), the gradient of a softmax given its output y\n\n"
        f"Operands: dy, y. In f32, rounded once. {_SOURCE}",
    )
