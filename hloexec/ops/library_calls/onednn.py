"""oneDNN: matrix products with fused post-operations, softmax and layer normalization, as older XLA:CPU called them.

Current XLA:CPU keeps the instructions that oneDNN and YNNPACK run inside fusions of kind custom (`__onednn_fusion`,
`__ynn_fusion`), which need no special support. Source: XLA, service/cpu/onednn_config.proto; oneDNN, Primitives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import Instruction, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import EvaluationError, UnsupportedError
from hloexec.ops.common import narrow, widen
from hloexec.ops.contraction.dot import DotAttributes, contract
from hloexec.ops.elementwise.functions import erf, logistic
from hloexec.ops.library_calls.activations import gelu
from hloexec.ops.library_calls.backend_config import Fields, read_fields
from hloexec.ops.library_calls.shapes import CallResult, result_shapes, with_scratch
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import custom_call, refuse_custom_calls

_UNARY: Mapping[str, Callable[[Array], Array]] = {
    "RELU": lambda x: np.maximum(x, 0),
    "RELU6": lambda x: np.clip(x, 0, 6),
    "TANH": np.tanh,
    "SIGMOID": logistic,
    "GELU_ERF": lambda x: x.dtype.type(0.5) * x * (1 + erf(x * x.dtype.type(sqrt(0.5)))),
    "GELU_TANH": gelu,
}
_ADDING = ("BIAS", "BINARY_ADD", "SUM")
"""Each adds one more operand."""


@frozen
class _Fusions:
    """What is done to a result, in order."""

    operations: tuple[str, ...]
    alpha: float

    @property
    def operand_count(self) -> int:
        return sum(operation in _ADDING for operation in self.operations)

    def apply(self, x: Array, addends: Sequence[Array]) -> Array:
        remaining = iter(addends)
        for operation in self.operations:
            if operation in _ADDING:
                addend = widen(next(remaining)).astype(x.dtype, copy=False)
                try:
                    x = x + np.broadcast_to(addend, x.shape)
                except ValueError:
                    raise EvaluationError(
                        f"an addend of dimensions {list(addend.shape)} does not fit a result of {list(x.shape)}"
                    ) from None
            elif operation == "LINEAR":
                x = x * x.dtype.type(self.alpha)
            else:
                x = _UNARY[operation](x)
        return x


def _fusions(fields: Fields) -> _Fusions:
    """The fused operations; older configs list them as fused_ops in addition."""
    fusions = fields.object("fusions", {})
    operations = fusions.values.get("ops", fields.values.get("fused_ops", []))
    if not isinstance(operations, list):
        raise UnsupportedError(f"the fused operations of its backend_config must be a list, but are {operations!r}")
    for operation in operations:
        if operation not in (*_UNARY, *_ADDING, "LINEAR"):
            raise UnsupportedError(f"it is fused with {operation!r}, which hloexec does not know")
    return _Fusions(tuple(operations), _float_of_bits(fusions, "alpha_typecast"))


def _float_of_bits(fields: Fields, name: str) -> float:
    """An f32 that the config holds as the integer of its bits."""
    bits = fields.values.get(name, 0)
    try:
        return float(np.array(int(bits), np.int32).view(np.float32))
    except (TypeError, ValueError, OverflowError):
        raise UnsupportedError(f"{name} of its backend_config must be the bits of an f32, but is {bits!r}") from None


_MATMUL_FIELDS = (
    "transpose_a transpose_b fusions fused_ops bias_broadcast optimization_config weights_prepacked user_scratchpad"
).split()


@frozen
class _Product:
    transpose_a: bool
    transpose_b: bool
    fusions: _Fusions


def _product(instruction: Instruction) -> _Product:
    fields = read_fields(instruction, "onednn_matmul_config", _MATMUL_FIELDS)
    config, optimization = fields.values, fields.values.get("optimization_config", {})
    if config.get("weights_prepacked") or (isinstance(optimization, dict) and optimization.get("weights_prepacked")):
        raise UnsupportedError("its weights are in an order that oneDNN chose (weights_prepacked)")
    return _Product(bool(config.get("transpose_a")), bool(config.get("transpose_b")), _fusions(fields))


@custom_call("__onednn$matmul", config=_product)
class Matmul:
    """op(lhs) · op(rhs) over the last two dimensions, then the fused operations in order, rounded once.

    lhs [batch..., m, k] (transpose_a: k, m), rhs [batch..., k, n] (transpose_b: n, k), then an operand for each BIAS,
    BINARY_ADD or SUM; LINEAR multiplies by alpha, whose bits the config holds. Results after the first are scratchpads.
    Source: XLA, onednn_config.proto; oneDNN, matmul primitive.
    """

    @staticmethod
    def evaluate(*operands: Array, config: _Product, shape: Shape, numerics: NumericsPolicy) -> CallResult:
        result_type = result_shapes(shape, "the product")[0].element_type
        expected = 2 + config.fusions.operand_count
        if len(operands) != expected or operands[0].ndim < 2 or operands[0].ndim != operands[1].ndim:
            raise EvaluationError(
                f"the product must have {expected} operands by its backend_config, the first two of one rank, but has "
                f"operands of dimensions {[list(operand.shape) for operand in operands]}"
            )
        rank = operands[0].ndim
        batch = tuple(range(rank - 2))
        numbers = DotAttributes(
            lhs_batch_dims=batch,
            lhs_contracting_dims=(rank - 2 if config.transpose_a else rank - 1,),
            rhs_batch_dims=batch,
            rhs_contracting_dims=(rank - 1 if config.transpose_b else rank - 2,),
        )
        wide = element_type_of(result_type.accumulate)
        product = contract(operands[0], operands[1], numbers, wide, numerics=numerics)
        with np.errstate(all="ignore"):
            value = config.fusions.apply(product, operands[2:])
        return with_scratch([narrow(np.asarray(value), result_type)], shape)


def _softmax_axis(instruction: Instruction) -> int:
    if not instruction.backend_config:
        return -1
    return read_fields(instruction, "onednn_softmax_config", ("softmax_axis",)).whole("softmax_axis")


@custom_call("__onednn$softmax", config=_softmax_axis)
class Softmax:
    """exp(x − max x) / Σ exp(x − max x) along softmax_axis, or the last dimension without a config; rounded once.

    Source: XLA, onednn_config.proto; oneDNN, softmax primitive.
    """

    @staticmethod
    def evaluate(operand: Array, *, config: int, shape: Shape) -> Array:
        axis = config
        if not -operand.ndim <= axis < operand.ndim:
            raise EvaluationError(f"softmax along dimension {axis} of an array of {operand.ndim} dimensions")
        x = widen(operand)
        with np.errstate(all="ignore"):
            powers = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
            result = powers / powers.sum(axis, keepdims=True)
        return narrow(result, result_shapes(shape, "softmax")[0].element_type)


_RESCALING = ("UNDEFINED", "SCALE", "SHIFT", "SCALE_AND_SHIFT")


@frozen
class _Normalization:
    has_scale: bool
    has_shift: bool
    epsilon: float


def _normalization(instruction: Instruction) -> _Normalization:
    known = ("rescale", "fused_ops", "epsilon_typecast", "fusions")
    fields = read_fields(instruction, "onednn_layer_norm_config", known)
    if fields.object("fusions", {}).values.get("ops"):
        raise UnsupportedError("it is fused with other operations")
    # Older configs call it fused_ops.
    rescaling = str(fields.values.get("rescale", fields.values.get("fused_ops", "UNDEFINED")))
    if rescaling not in _RESCALING:
        raise UnsupportedError(f"it has rescale {rescaling!r}; known are {', '.join(_RESCALING)}")
    return _Normalization("SCALE" in rescaling, "SHIFT" in rescaling, _float_of_bits(fields, "epsilon_typecast"))


@custom_call("__onednn$layernorm", config=_normalization)
class LayerNorm:
    """(x − mean) / √(variance + ε) over the last dimension, times the scale, plus the shift, where there are.

    The variance is the mean squared deviation; the result is rounded once. Operands: x [..., n], then scale [n] and
    shift [n] by `rescale`. Source: XLA, onednn_config.proto; oneDNN, layer normalization primitive.
    """

    @staticmethod
    def evaluate(*operands: Array, config: _Normalization, shape: Shape) -> Array:
        count = 1 + config.has_scale + config.has_shift
        if len(operands) != count or any(operand.shape != operands[0].shape[-1:] for operand in operands[1:]):
            raise EvaluationError(
                f"layer normalization must have {count} operands, all but the first of the last dimension's size, but "
                f"has operands of dimensions {[list(operand.shape) for operand in operands]}"
            )
        x, *rescaling = (widen(operand) for operand in operands)
        with np.errstate(all="ignore"):
            deviation = x - x.mean(-1, keepdims=True)
            variance = np.square(deviation).mean(-1, keepdims=True)
            value = deviation / np.sqrt(variance + x.dtype.type(config.epsilon))
            if config.has_scale:
                value = value * rescaling[0]
            if config.has_shift:
                value = value + rescaling[-1]
        return narrow(np.asarray(value), result_shapes(shape, "layer normalization")[0].element_type)


for _target, _reason in {
    "__onednn$convolution": "the encoding of its window in the config is not supported",
    "__onednn$matmul_reorder": "the order in which oneDNN lays out weights depends on the processor",
}.items():
    refuse_custom_calls(
        _target,
        reason=_reason,
        documentation="""
        A convolution whose window and layouts the config encodes, or weights in an order of oneDNN's: both refused.

        Source: XLA, onednn_config.proto.
        """,
    )
