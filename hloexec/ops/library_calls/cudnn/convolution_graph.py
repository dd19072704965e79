"""cuDNN's forward convolution followed by a graph of pointwise operations, as XLA:GPU writes it for 8-bit floats.

The graph is a string, one operation after another, the convolution first: `identifier:[type]name(identifiers);`.
Operands that the graph does not produce are omitted from it: they are the call's operands after x and w, in order.
Source: XLA, cudnn_fused_conv_rewriter.cc (GraphString), cuda_dnn.cc (GetGenericCudnnOperationGraph).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType
from hloexec.core.ir import Instruction, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import EvaluationError, UnsupportedError
from hloexec.ops.common import require, widen
from hloexec.ops.elementwise.arithmetic import maximum, minimum
from hloexec.ops.library_calls.activations import relu
from hloexec.ops.library_calls.backend_config import read_fields
from hloexec.ops.library_calls.cudnn.convolutions import CONVOLUTION_FIELDS, elu
from hloexec.ops.library_calls.cudnn.geometry import Geometry, accumulation_type, geometry
from hloexec.ops.library_calls.shapes import (
    CallResult,
    in_declared_form,
    operand_shapes,
    require_floating,
    result_shapes,
    saturating,
    with_scratch,
)
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import custom_call


@frozen
class _Operation:
    """One operation of a graph."""

    identifier: str
    name: str
    element_type: ElementType
    operands: tuple[str, ...]
    """Those that the graph produces."""

    @property
    def takes_external(self) -> bool:
        """Whether its second operand is the call's."""
        return self.name in _BINARY and len(self.operands) == 1


_BINARY: Mapping[str, Callable[[Array, Array], Array]] = {
    "add": lambda x, y: x + y,
    "scale": lambda x, y: x * y,
    "invscale": lambda x, y: x / y,
    "max": maximum,
    "min": minimum,
}
_UNARY: Mapping[str, Callable[[Array], Array]] = {
    "relu": relu,
    "elu": elu,
    "amax": lambda x: np.abs(x).max(initial=0),
}
_OPERATION = re.compile(r"(-?\d+):\[(\w+)\](\w+)\(([\d,-]*)\);")


@lru_cache(maxsize=256)
def _graph(text: str) -> tuple[_Operation, ...]:
    """The operations of a serialized graph; UnsupportedError says what is wrong with it."""
    operations: list[_Operation] = []
    place = 0
    while place < len(text):
        match = _OPERATION.match(text, place)
        if match is None:
            raise UnsupportedError(
                f"its serialized_graph must be like `1:[f32]conv();2:[f32]relu(1);`, but has {text[place:][:40]!r}"
            )
        identifier, type_name, name, operands = match.groups()
        known = [operation.identifier for operation in operations]
        found = tuple(operand for operand in operands.split(",") if operand)
        allowed = (0,) if name == "conv" else (1, 2) if name in _BINARY else (1,)
        if name not in ("conv", *_BINARY, *_UNARY):
            raise UnsupportedError(
                f"its serialized_graph has the operation {name!r}; there are conv, {', '.join((*_BINARY, *_UNARY))}"
            )
        if (name == "conv") != (not operations):
            raise UnsupportedError("its serialized_graph must have one convolution, as its first operation")
        if len(found) not in allowed or not set(found) <= set(known) or identifier in known:
            raise UnsupportedError(
                f"operation {identifier} ({name}) of its serialized_graph must be new and take "
                f"{' or '.join(map(str, allowed))} earlier operations, but takes {', '.join(found) or 'none'}"
            )
        if type_name not in ELEMENT_TYPES or not ELEMENT_TYPES[type_name].is_floating:
            raise UnsupportedError(
                f"its serialized_graph has the type {type_name!r}, which is not a floating-point type"
            )
        operations.append(_Operation(identifier, name, ELEMENT_TYPES[type_name], found))
        place = match.end()
    if not operations:
        raise UnsupportedError("its serialized_graph is empty")
    return tuple(operations)


@frozen
class _Config:
    geometry: Geometry
    graph: tuple[_Operation, ...]


def _config(instruction: Instruction) -> _Config:
    """The convolution, and the graph of a call's config, whose other fields must say nothing."""
    fields = read_fields(instruction, "cudnn_conv_backend_config", CONVOLUTION_FIELDS)
    for name, value, wanted in (
        ("conv_result_scale", fields.number("conv_result_scale", 1), 1),
        ("side_input_scale", fields.number("side_input_scale"), 0),
        ("activation_mode", str(fields.values.get("activation_mode", "kNone")), "kNone"),
        ("reordered_int8_nchw_vect", fields.flag("reordered_int8_nchw_vect"), False),
    ):
        if value != wanted and not (name == "activation_mode" and value == "0"):
            raise UnsupportedError(f"its {name} is {value}, but a call with a graph can only have {wanted}")
    text = fields.values.get("serialized_graph")
    if not isinstance(text, str):
        raise UnsupportedError("it has no serialized_graph")
    graph = _graph(text)
    return _Config(geometry(instruction.attributes).without_vectors("a call with a graph"), graph)


def _results(graph: Sequence[_Operation]) -> list[_Operation]:
    """What the call returns: the last operation that is no amax, then every amax in the graph's order."""
    maxima = [operation for operation in graph if operation.name == "amax"]
    return [[operation for operation in graph if operation.name != "amax"][-1], *maxima]


@custom_call("__cudnn$convForwardGraph", config=_config)
class ForwardGraph:
    """The serialized_graph, from conv(x, w) on

    Operations compute in f32 and round to their own type, 8-bit floats saturating: conv; add, max, min (an array or a
    scalar); scale, invscale (times, by a scalar); relu; elu (exp(v) − 1 below 0); amax (the largest magnitude, a
    scalar). Operands: x, w, and whatever the graph does not produce, in the graph's order. Results: the last operation
    that is no amax, every amax, scratch memory (u8, zeros). Source: XLA, cudnn_fused_conv_rewriter.cc.
    """

    @staticmethod
    def infer(*operands: Shape, config: _Config, shape: Shape) -> Shape:
        count = 2 + sum(operation.takes_external for operation in config.graph)
        inputs, kernel, *others = operand_shapes(operands, "convForwardGraph", (count,))
        require_floating((inputs, kernel, *others), "convForwardGraph")
        results = _results(config.graph)
        declared = result_shapes(shape, "convForwardGraph", len(results))
        wanted = declared[0].with_element_type(results[0].element_type)
        output = config.geometry.output_shape(inputs, kernel, wanted)
        for other in others:
            require(
                other.element_count == 1 or other.dimensions == output.dimensions,
                f"an operand of the graph must be a scalar or have the result's shape {output}, but is {other}",
            )
        inferred = [output]
        for operation, leaf in zip(results[1:], declared[1:], strict=False):
            require(leaf.element_count == 1, f"the amax of the graph must be a scalar, but is declared as {leaf}")
            inferred.append(leaf.with_element_type(operation.element_type))
        return in_declared_form(inferred, shape)

    @staticmethod
    def evaluate(*operands: Array, config: _Config, shape: Shape, numerics: NumericsPolicy) -> CallResult:
        inputs, kernel, *others = operands
        wide = accumulation_type(inputs)
        if not wide.is_floating:
            raise UnsupportedError("a graph behind a convolution of integers is not supported")
        values: dict[str, Array] = {}
        with np.errstate(all="ignore"):
            for operation in config.graph:
                if operation.name == "conv":
                    value = config.geometry.forward(inputs, kernel, wide, numerics)
                else:
                    found = [widen(values[operand]) for operand in operation.operands]
                    if operation.takes_external:
                        found.append(_broadcast(widen(others.pop(0)), found[0]))
                    kernel_of = _UNARY.get(operation.name) or _BINARY[operation.name]
                    value = np.asarray(kernel_of(*found))
                values[operation.identifier] = saturating(value, operation.element_type)
        results = [values[operation.identifier] for operation in _results(config.graph)]
        declared = result_shapes(shape, "convForwardGraph")
        results[1:] = [value.reshape(leaf.dimensions) for value, leaf in zip(results[1:], declared[1:], strict=False)]
        return with_scratch(results, shape)


def _broadcast(operand: Array, like: Array) -> Array:
    """A scalar of any rank as an array of the same shape as its partner."""
    if operand.size == 1:
        return np.broadcast_to(operand.reshape(()), like.shape)
    if operand.shape != like.shape:
        raise EvaluationError(f"an operand of {list(operand.shape)} does not fit a graph of {list(like.shape)}")
    return operand
