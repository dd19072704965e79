"""The kernel of dot as tests call it."""

from typing import Any

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import ArrayShape
from hloexec.ops.contraction.dot import Dot, DotAttributes

MATMUL = DotAttributes(lhs_contracting_dims=(1,), rhs_contracting_dims=(0,))
MATMUL_TEXT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def dot(lhs: Any, rhs: Any, result: str, attributes: DotAttributes = MATMUL, **options: Any) -> Any:
    """The kernel's result, checked to be of the declared type and not to have touched its operands."""
    before = lhs.tobytes(), rhs.tobytes()
    shape = ArrayShape(ELEMENT_TYPES[result])
    value = Dot.evaluate(lhs, rhs, attributes=attributes, shape=shape, **options)
    assert value.dtype == ELEMENT_TYPES[result].storage
    assert before == (lhs.tobytes(), rhs.tobytes())
    return value


def normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)
