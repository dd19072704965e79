"""Matrix products: a dot of HLO's for each instance, and an addition of the accumulator.

Source: Triton, its dialect (DotOp, InputPrecisionAttr).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hloexec.core.ir import ArrayShape
from hloexec.core.values import Array
from hloexec.ops.library_calls.mosaic.bridging import hlo_kernel
from hloexec.ops.library_calls.mosaic.ir import Operation
from hloexec.ops.library_calls.mosaic.registry import Kernel, Scope
from hloexec.ops.library_calls.triton.registry import TRITON

_ALGORITHMS = {
    0: "dot_tf32_tf32_f32",
    1: "dot_tf32_tf32_f32_x3",
    3: "dot_bf16_bf16_f32_x3",
    4: "dot_bf16_bf16_f32_x6",
}
"""By `inputPrecision`, which counts for products of f32; 2 is that of f32 itself."""


def _refuse_rank(operation: Operation) -> str | None:
    return None if len(operation.operand_types[0].dimensions) in (2, 3) else "its operands are no matrices"


@TRITON.operation("tt.dot", refuses=_refuse_rank)
def bind_dot(operation: Operation, scope: Scope) -> Kernel:
    """acc + lhs · rhs: a dot in the accumulator's type; `inputPrecision` says to what it rounds operands of f32 first.

    TF32 and its triple, and bf16 in three or six products, are those of HLO's algorithms. Products of narrower floats
    are exact and add up in f32; integers wrap. The accumulator is added last.
    """
    lhs, rhs, result = *operation.operand_types[:2], operation.result_type
    rank = len(lhs.dimensions)
    batch = tuple(range(rank - 2))
    precision = operation.attributes.get("inputPrecision", 2)
    attributes: dict[str, Any] = {
        "lhs_contracting_dims": (rank - 1,),
        "rhs_contracting_dims": (rank - 2,),
        "lhs_batch_dims": batch,
        "rhs_batch_dims": batch,
    }
    if lhs.element == "f32" and precision in _ALGORITHMS:
        attributes["algorithm"] = _ALGORITHMS[precision]
    else:
        attributes["operand_precision"] = ("highest", "highest")
    shape = ArrayShape(result.element_type, result.dimensions)
    dot = hlo_kernel("dot", [lhs.shape, rhs.shape], shape, scope.numerics, **attributes)
    add = hlo_kernel("add", [shape, shape], shape, scope.numerics)

    def compute(left: Array, right: Array, accumulator: Array) -> Array:
        product = dot(np.ascontiguousarray(left), np.ascontiguousarray(right))
        return np.asarray(add(accumulator, product))

    return compute
