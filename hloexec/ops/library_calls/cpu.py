"""Libraries that older versions of XLA:CPU and JAX called on CPUs.

oneDNN: matrix products with fused post-operations, softmax and layer normalization, as older XLA:CPU called them.

Current XLA:CPU keeps the instructions that oneDNN and YNNPACK run inside fusions of kind custom (`__onednn_fusion`,
`__ynn_fusion`), which need no special support. Source: XLA, service/cpu/onednn_config.proto; oneDNN, Primitives.

Fourier transforms by DUCC, which older versions of JAX called on CPUs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from math import prod, sqrt
from typing import Any

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import ArrayShape, Instruction, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.errors import EvaluationError, UnsupportedError
from hloexec.ops.common import array_shape, narrow, widen
from hloexec.ops.contraction.dot import DotAttributes, contract
from hloexec.ops.elementwise.functions import erf, logistic
from hloexec.ops.library_calls.activations import gelu
from hloexec.ops.library_calls.configs import CallResult, Fields, read_fields, result_shapes, with_scratch
from hloexec.ops.policies.exact.linear import fourier_transform
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
    field_names = ("rescale", "fused_ops", "epsilon_typecast", "fusions")
    fields = read_fields(instruction, "onednn_layer_norm_config", field_names)
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


_C2C, _C2R, _R2C = range(3)
_LARGEST_RANK = 64


@frozen
class _Descriptor:
    """What to transform; `scale` multiplies a transform without any factor of its own."""

    kind: int
    axes: Dimensions
    forward: bool
    scale: float

    @property
    def is_inverse(self) -> bool:
        return self.kind == _C2R or (self.kind == _C2C and not self.forward)


@custom_call("ducc_fft", is_reproducible=True)
class DuccFft:
    """The discrete Fourier transform of the second operand, along the axes that the first, a descriptor, says.

    The descriptor (u8) is a FlatBuffer: complex to complex (forward or backward), complex to real, or real to complex,
    and a factor, which is 1/N for inverses. Source: jaxlib, cpu/ducc_fft.fbs; DUCC, pypocketfft.
    """

    @staticmethod
    def evaluate(descriptor: Array, operand: Array, *, shape: ArrayShape, numerics: NumericsPolicy) -> Array:
        if descriptor.dtype != np.uint8 or descriptor.ndim != 1:
            raise EvaluationError(
                f"the descriptor of ducc_fft must be u8[n], but is {descriptor.dtype}{descriptor.shape}"
            )
        plan = _read(descriptor.tobytes())
        result = array_shape(shape, "the result of ducc_fft")
        axes = plan.axes
        if not axes or len(set(axes)) != len(axes) or not all(axis < operand.ndim == result.rank for axis in axes):
            raise EvaluationError(f"ducc_fft cannot transform dimensions {list(axes)} of an array of {operand.shape}")
        points = result.dimensions if plan.kind == _C2R else operand.shape
        transform = _transform_exactly if numerics.is_exact else _transform
        value = transform(operand, plan, [points[axis] for axis in axes])
        if value.shape != result.dimensions:
            raise EvaluationError(f"ducc_fft gives dimensions {list(value.shape)}, but is declared as {result}")
        return value.astype(result.element_type.storage)


def _transform(operand: Array, plan: _Descriptor, sizes: Sequence[int]) -> Array:
    """NumPy's "forward" norm divides forward transforms, "backward" the others: each time the other is taken."""
    complex_transform = np.fft.ifftn if plan.is_inverse else np.fft.fftn
    transform: Any = {_R2C: np.fft.rfftn, _C2R: np.fft.irfftn, _C2C: complex_transform}[plan.kind]
    value = transform(operand, sizes, plan.axes, norm="forward" if plan.is_inverse else "backward")
    return np.asarray(value if plan.scale == 1 else value * value.real.dtype.type(plan.scale))


def _transform_exactly(operand: Array, plan: _Descriptor, sizes: Sequence[int]) -> Array:
    """`_transform` by the transforms of the `exact` policy, whose inverses divide by the number of points."""
    last = range(operand.ndim - len(sizes), operand.ndim)
    moved = np.moveaxis(operand, plan.axes, last)
    kind = {_R2C: "RFFT", _C2R: "IRFFT", _C2C: "IFFT" if plan.is_inverse else "FFT"}[plan.kind]
    value = np.ascontiguousarray(np.moveaxis(fourier_transform(moved, kind, sizes), last, plan.axes))
    factor = plan.scale * prod(sizes) if plan.is_inverse else plan.scale
    # As real numbers: NumPy does not round products of complex ones alike on all processors.
    return np.asarray((value.view(np.float64) * factor).view(value.dtype))


# A FlatBuffer table starts with the distance back to its list of fields: u16 sizes, then where in the table each field
# is, in the order of the schema, 0 where it has its default. Vectors are reached through a relative offset.

_FIELDS = {"fft_type": 1, "axes": 5, "forward": 6, "scale": 7}


def _read(data: bytes) -> _Descriptor:
    try:
        table = _number(data, "<I", 0)
        fields = table - _number(data, "<i", table)
        count = (_number(data, "<H", fields) - 4) // 2

        def place(name: str) -> int:
            index = _FIELDS[name]
            offset = _number(data, "<H", fields + 4 + 2 * index) if index < count else 0
            return table + offset if offset else 0

        axes: Dimensions = ()
        if start := place("axes"):
            start += _number(data, "<I", start)
            length = _number(data, "<I", start)
            if length > _LARGEST_RANK:
                raise ValueError(f"{length} axes")
            axes = struct.unpack_from(f"<{length}I", data, start + 4)
        kind = data[place("fft_type")] if place("fft_type") else _C2C
        forward = bool(data[place("forward")]) if place("forward") else False
        scale = struct.unpack_from("<d", data, place("scale"))[0] if place("scale") else 0.0
        if kind not in (_C2C, _C2R, _R2C):
            raise ValueError(f"type {kind}")
    except (struct.error, IndexError, ValueError) as error:
        raise EvaluationError(f"the descriptor of ducc_fft cannot be read ({error})") from None
    return _Descriptor(kind, axes, forward, scale)


def _number(data: bytes, form: str, place: int) -> int:
    if place < 0:
        raise ValueError("an offset before the start")
    return int(struct.unpack_from(form, data, place)[0])
