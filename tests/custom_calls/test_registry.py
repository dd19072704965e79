"""The registry of library calls, and users' own entries in it."""

from __future__ import annotations

import numpy as np
import pytest

import hloexec.custom_calls  # noqa: F401  (fills the registry)
from hloexec.custom_calls.registry import (
    CUSTOM_CALLS,
    custom_call,
    find_custom_call,
    register_custom_call,
    unregister_custom_call,
)
from hloexec.dtypes import ELEMENT_TYPES
from hloexec.errors import EvaluationError, InputError
from hloexec.ir import ArrayShape, TupleShape

F32 = ELEMENT_TYPES["f32"]
SHAPE = ArrayShape(F32, (2,))


@pytest.fixture
def target():
    yield "my_kernel"
    unregister_custom_call("my_kernel")


def call(target, shape, *operands):
    entry = find_custom_call(target)
    assert entry is not None
    assert entry.evaluate_needs == {"shape"}
    return entry.evaluate(*operands, shape=shape)


def test_an_unknown_target_has_no_entry():
    assert find_custom_call("no_such_library") is None


def test_a_users_function_is_called_with_the_operands(target):
    register_custom_call(target, lambda a, b: a + 2 * b)
    assert call(target, SHAPE, np.ones(2, np.float32), np.ones(2, np.float32)).tolist() == [3, 3]


def test_a_users_function_wins_over_the_built_in_one_until_it_is_removed():
    built_in = find_custom_call("__cublas$gemm")
    register_custom_call("__cublas$gemm", lambda *operands: operands[0])
    assert find_custom_call("__cublas$gemm") is not built_in
    unregister_custom_call("__cublas$gemm")
    assert find_custom_call("__cublas$gemm") is built_in


def test_a_users_tuple_may_be_nested(target):
    register_custom_call(target, lambda a: (a, [a + 1]))
    shape = TupleShape((SHAPE, TupleShape((SHAPE,))))
    first, (second,) = call(target, shape, np.zeros(2, np.float32))
    assert (first.tolist(), second.tolist()) == ([0, 0], [1, 1])


@pytest.mark.parametrize(
    ("result", "shape", "message"),
    [
        (np.zeros(2), SHAPE, "array of float64"),
        (np.zeros(3, np.float32), SHAPE, r"shape \[3\]"),
        (np.zeros((2, 1), np.float32), SHAPE, r"shape \[2, 1\]"),
        ((np.zeros(2, np.float32),), SHAPE, "tuple of 1 values"),
        (np.zeros(2, np.float32), TupleShape((SHAPE,)), "must return a tuple of 1"),
        ((), TupleShape((SHAPE,)), "tuple of 0 values"),
        (None, SHAPE, "type NoneType"),
    ],
)
def test_a_result_that_is_not_as_declared_is_an_error_that_names_the_target(target, result, shape, message):
    register_custom_call(target, lambda: result)
    with pytest.raises(EvaluationError, match=message) as raised:
        call(target, shape)
    assert "my_kernel" in raised.value.message


def test_a_bounded_dimension_may_be_shorter(target):
    register_custom_call(target, lambda: np.zeros(1, np.float32))
    assert call(target, ArrayShape(F32, (2,), dynamic_dimensions=(True,))).shape == (1,)


def test_what_is_not_a_function_is_refused():
    with pytest.raises(InputError, match="must be a function"):
        register_custom_call("my_kernel", 3)


def test_two_built_in_entries_for_one_target_are_a_mistake():
    with pytest.raises(ValueError, match="two entries"):

        @custom_call("__cublas$gemm")
        class Again:
            evaluate = staticmethod(lambda: None)


def test_every_entry_says_what_it_computes_and_where_that_is_written():
    for entry in CUSTOM_CALLS.values():
        assert "Source:" in entry.documentation, entry.target
