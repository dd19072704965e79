"""cuDNN's layer normalization, forward and backward.

XLA:GPU brings what is normalized into the form [n, d...]: every one of n parts is normalized over all of its elements,
and scale and bias are [1, d...]. Source: XLA, cudnn_norm_rewriter.h, CudnnNormBackendConfig.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloexec.custom_calls.cudnn.fields import (
    read_fields,
    refused_by,
    require_count,
    require_floating,
    result_shapes,
    with_scratch,
)
from hloexec.custom_calls.registry import custom_call
from hloexec.errors import EvaluationError, ShapeError
from hloexec.ir import ArrayShape, Shape, TupleShape
from hloexec.ops.common import array_shape, narrow, require, widen
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.values import Array

__all__: list[str] = []

_KINDS = ("LAYER_FWD_INFER", "LAYER_FWD_TRAIN", "LAYER_BWD")
_COUNTS = (3, 5)
"""How many operands it takes, forward and backward."""


def _config(backend_config: str | None) -> tuple[str, float]:
    """The kind and epsilon; `algorithm` chooses among kernels, which is rounding."""
    fields = read_fields(backend_config, "cudnn_norm_backend_config", ("epsilon", "algorithm", "kind"))
    return fields.word("kind", _KINDS), fields.number("epsilon")


@custom_call("__cudnn$norm", is_reproducible=True)
class Norm:
    """y = (x − μ) · r · scale + bias, where r = 1 / √(variance + ε), over all but the first dimension, or its gradients

    By the config's kind. Forward (LAYER_FWD_INFER, LAYER_FWD_TRAIN): x [n, d...], scale and bias [1, d...] give y and,
    for training, μ and r [n, 1...]; the variance is the mean squared deviation. Backward (LAYER_BWD): x, scale, dy, μ
    and r give dx = r · (g − mean g − z · mean(g · z)), where g = dy · scale and z = (x − μ) · r, then dscale = Σ dy · z
    and dbias = Σ dy over n. All is computed in f32 and each result rounded once. Scratch memory (u8, zeros) comes last.
    Source: XLA, cudnn_norm_rewriter.cc; cuDNN, normalization.
    """

    @staticmethod
    def infer(*operands: Shape, backend_config: str | None, shape: Shape) -> Shape:
        is_backward = _config(backend_config)[0] == "LAYER_BWD"
        require_count(operands, (_COUNTS[is_backward],), "a normalization of this kind", ShapeError)
        arrays = [array_shape(operand, f"operand {number} of norm") for number, operand in enumerate(operands)]
        require_floating(arrays, "norm")
        x, scale = arrays[:2]
        require(x.rank > 0, f"what is normalized must have dimensions, but is {x}")
        per_part = (x.dimensions[0], *(1,) * (x.rank - 1))
        wanted = {"scale": (scale, (1, *x.dimensions[1:]))}
        if is_backward:
            wanted |= {"dy": (arrays[2], x.dimensions), "expectation": (arrays[3], per_part)}
            wanted |= {"norm factor": (arrays[4], per_part)}
        else:
            wanted |= {"bias": (arrays[2], (1, *x.dimensions[1:]))}
        for name, (found, dimensions) in wanted.items():
            require(
                found.dimensions == dimensions,
                f"the {name} of the normalization of {x} must have dimensions {list(dimensions)}, but is {found}",
            )
        declared = result_shapes(shape, "norm")
        expected = _result_dimensions(x.dimensions, is_backward, len(declared))
        if len(declared) < len(expected) or not isinstance(shape, TupleShape):
            raise ShapeError(f"the normalization has {len(expected)} results by its kind, but is declared as {shape}")
        results = [ArrayShape(leaf.element_type, sizes) for leaf, sizes in zip(declared, expected, strict=False)]
        return TupleShape((*results, *declared[len(results) :]))

    supports = refused_by(lambda instruction: _config(instruction.backend_config))

    @staticmethod
    def evaluate(
        *operands: Array, backend_config: str | None, shape: Shape, numerics: NumericsPolicy = REFERENCE
    ) -> Array | tuple[Array, ...]:
        kind, epsilon = _config(backend_config)
        require_count(operands, (_COUNTS[kind == "LAYER_BWD"],), "a normalization of this kind", EvaluationError)
        dtype = np.dtype(np.float64) if numerics.is_exact else np.result_type(np.float32, widen(operands[0]).dtype)
        wide = [widen(operand).astype(dtype, copy=False) for operand in operands]
        with np.errstate(all="ignore"):
            results = _gradients(wide) if kind == "LAYER_BWD" else _normalized(wide, dtype.type(epsilon))
        declared = result_shapes(shape, "norm")
        expected = _result_dimensions(operands[0].shape, kind == "LAYER_BWD", len(declared))
        rounded = [
            narrow(np.asarray(value), leaf.element_type)
            for value, leaf in zip(results[: len(expected)], declared, strict=False)
        ]
        return with_scratch(rounded, shape)


def _result_dimensions(x: Sequence[int], is_backward: bool, declared: int) -> list[tuple[int, ...]]:
    """Those of the results before the scratch memory; μ and r are there where the call declares room for them.

    Older dumps have no kind, and tell training from inference by that alone.
    """
    if is_backward:
        return [tuple(x), (1, *x[1:]), (1, *x[1:])]
    per_part = (x[0], *(1,) * (len(x) - 1))
    return [tuple(x), per_part, per_part] if declared > 2 else [tuple(x)]


def _normalized(operands: Sequence[Array], epsilon: object) -> list[Array]:
    x, scale, bias = operands
    axes = tuple(range(1, x.ndim))
    expectation = x.mean(axes, keepdims=True)
    deviation = x - expectation
    factor = 1 / np.sqrt(np.square(deviation).mean(axes, keepdims=True) + epsilon)
    return [deviation * factor * scale + bias, expectation, factor]


def _gradients(operands: Sequence[Array]) -> list[Array]:
    x, scale, gradient, expectation, factor = operands
    axes = tuple(range(1, x.ndim))
    normalized = (x - expectation) * factor
    scaled = gradient * scale
    inner = scaled - scaled.mean(axes, keepdims=True) - normalized * (scaled * normalized).mean(axes, keepdims=True)
    return [factor * inner, (gradient * normalized).sum(0, keepdims=True), gradient.sum(0, keepdims=True)]
