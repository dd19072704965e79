"""cuDNN's layer normalization, forward and backward.

XLA:GPU reshapes the operand to [n, d...]: each of the n parts is normalized over all of its elements, and scale and
bias are [1, d...]. Source: XLA, cudnn_norm_rewriter.h, CudnnNormBackendConfig.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import ShapeError
from hloexec.ops.common import narrow, require, widen
from hloexec.ops.library_calls.backend_config import read_fields
from hloexec.ops.library_calls.shapes import (
    CallResult,
    in_declared_form,
    operand_shapes,
    require_floating,
    result_shapes,
    with_scratch,
)
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import custom_call

_KINDS = ("LAYER_FWD_INFER", "LAYER_FWD_TRAIN", "LAYER_BWD")


@frozen
class _Config:
    is_backward: bool
    epsilon: float


def _config(instruction: Instruction) -> _Config:
    """Of the fields, `algorithm` chooses among kernels, which is rounding."""
    fields = read_fields(instruction, "cudnn_norm_backend_config", ("epsilon", "algorithm", "kind"))
    return _Config(fields.word("kind", _KINDS) == "LAYER_BWD", fields.number("epsilon"))


@custom_call("__cudnn$norm", config=_config, is_reproducible=True)
class Norm:
    """y = (x − μ) · r · scale + bias, where r = 1 / √(variance + ε), over all but the first dimension, or its gradients

    By the config's kind. Forward (LAYER_FWD_INFER, LAYER_FWD_TRAIN): x [n, d...], scale and bias [1, d...] give y and,
    for training, μ and r [n, 1...]; the variance is the mean squared deviation. Backward (LAYER_BWD): x, scale, dy, μ
    and r give dx = r · (g − mean g − z · mean(g · z)), where g = dy · scale and z = (x − μ) · r, then dscale = Σ dy · z
    and dbias = Σ dy over n. All is computed in f32 and each result rounded once. Scratch memory (u8, zeros) comes last.
    Source: XLA, cudnn_norm_rewriter.cc; cuDNN, normalization.
    """

    @staticmethod
    def infer(*operands: Shape, config: _Config, shape: Shape) -> Shape:
        is_backward = config.is_backward
        arrays = operand_shapes(operands, "a normalization of this kind", (5 if is_backward else 3,))
        require_floating(arrays, "norm")
        x, *others = arrays
        require(x.rank > 0, f"what is normalized must have dimensions, but is {x}")
        per_part, once = (x.dimensions[0], *(1,) * (x.rank - 1)), (1, *x.dimensions[1:])
        wanted = {"scale": once, "bias": once}
        if is_backward:
            wanted = {"scale": once, "dy": x.dimensions, "expectation": per_part, "norm factor": per_part}
        for found, (name, dimensions) in zip(others, wanted.items(), strict=True):
            require(
                found.dimensions == dimensions,
                f"the {name} of the normalization of {x} must have dimensions {list(dimensions)}, but is {found}",
            )
        declared = result_shapes(shape, "norm")
        count = _result_count(is_backward, declared)
        if len(declared) < count or not isinstance(shape, TupleShape):
            raise ShapeError(f"the normalization has {count} results by its kind, but is declared as {shape}")
        sizes = (x.dimensions, once, once) if is_backward else (x.dimensions, per_part, per_part)
        results = zip(declared[:count], sizes, strict=False)
        return in_declared_form([ArrayShape(leaf.element_type, dimensions) for leaf, dimensions in results], shape)

    @staticmethod
    def evaluate(*operands: Array, config: _Config, shape: Shape, numerics: NumericsPolicy) -> CallResult:
        dtype = np.dtype(np.float64) if numerics.is_exact else np.result_type(np.float32, widen(operands[0]).dtype)
        wide = [widen(operand).astype(dtype, copy=False) for operand in operands]
        with np.errstate(all="ignore"):
            results = _gradients(wide) if config.is_backward else _normalized(wide, dtype.type(config.epsilon))
        declared = result_shapes(shape, "norm")
        pairs = zip(results, declared[: _result_count(config.is_backward, declared)], strict=False)
        return with_scratch([narrow(np.asarray(value), leaf.element_type) for value, leaf in pairs], shape)


def _result_count(is_backward: bool, declared: Sequence[ArrayShape]) -> int:
    """How many results precede the scratch memory; μ and r are there where the call declares room for them.

    Older dumps have no kind, and tell training from inference by that alone.
    """
    return 3 if is_backward or len(declared) > 2 else 1


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
