"""The order in which lowering holds a view to lie in memory is the one in which NumPy's view of a row-major array lies."""

from __future__ import annotations

import numpy as np
import pytest

import hloexec
from hloexec.engine.exec import plan_of

SIZES = (3, 4, 5, 6)


def _order(array: np.ndarray) -> tuple[int, ...]:
    """The dimensions from the one with the longest stride to the one with the shortest."""
    return tuple(int(axis) for axis in np.argsort([-stride for stride in array.strides], kind="stable"))


@pytest.mark.parametrize("planner", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_views_of_views_lie_as_numpys_do(seed: int, planner: bool) -> None:
    random = np.random.default_rng(seed)
    array = np.zeros(SIZES, np.float32)
    lines = ["  v0 = f32[3,4,5,6] parameter(0)"]
    for number in range(int(random.integers(1, 5))):
        kind = random.choice(["transpose", "transpose", "slice", "copy"])
        if kind == "transpose":
            axes = [int(axis) for axis in random.permutation(4)]
            array = array.transpose(axes)
            call = f"transpose(v{number}), dimensions={{{','.join(map(str, axes))}}}"
        elif kind == "slice":
            array = array[1:]
            rest = "".join(f", [0:{size}]" for size in array.shape[1:])
            call = f"slice(v{number}), slice={{[1:{len(array) + 1}]{rest}}}"
        else:
            call = f"copy(v{number})"
        if not array.size or min(array.shape) < 2:
            break
        lines.append(f"  v{number + 1} = f32[{','.join(map(str, array.shape))}] {call}")
        expected = _order(array)
    lines[-1] = f"  ROOT {lines[-1].strip()}" if len(lines) > 1 else "  ROOT v0 = f32[3,4,5,6] parameter(0)"
    expected = expected if len(lines) > 1 else (0, 1, 2, 3)
    plan = plan_of(hloexec.parse("HloModule m\nENTRY e {\n" + "\n".join(lines) + "\n}\n"), planner=planner)
    assert (plan.result_orders[0] or (0, 1, 2, 3)) == expected
