"""Conditions on values mean what they say, for every kind of element, and say where they are wrong."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloexec.core.values import TOKEN
from hloexec.errors import InputError
from hloexec.tools.stepping import condition

NAN, INF = float("nan"), float("inf")
F32 = np.float32


def array(*elements: Any, dtype: Any = F32) -> Any:
    return np.array(elements, dtype)


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("any nan", array(1, NAN), True),
        ("nan", array(1, NAN), True),
        ("all nan", array(1, NAN), False),
        ("nan", array(1, INF), False),
        ("inf", array(1, -INF), True),
        ("all finite", array(1, 2), True),
        ("not all finite", array(1, NAN), True),
        ("zero", array(-0.0, 1), True),
        ("all zero", array(-0.0, 0), True),
        ("negative", array(-0.0, 0), False),
        ("denormal", array(1e-40, 1), True),
        ("denormal", array(1e-5, 1, dtype=np.float16), True),
        ("denormal", array(1e-5, 1), False),
        ("denormal", array(1, 2, dtype=np.int32), False),
        ("any > 2", array(1, 3), True),
        ("> 3", array(1, 3), False),
        ("all >= 1", array(1, 3), True),
        ("== 0.1", array(0.1), True),
        ("> 0.1", array(0.1), True),
        ("!= 1", array(NAN), True),
        ("> 1e40", array(INF), True),
        ("> 1e40", array(3e38), False),
        ("max > 1e4", array(NAN, 2e4), True),
        ("max > 1e4", array(NAN, NAN), False),
        ("not max > 1e4", array(NAN, NAN), True),
        ("max == inf", array(1, INF), True),
        ("min == -inf", array(1, -INF), True),
        ("absmax >= 7", array(-7, 2), True),
        ("mean == 1.5", array(1, 2, NAN, INF), True),
        ("std == 0.5", array(1, 2), True),
        ("size == 2", array(1, 2), True),
        ("max > 0", array(), False),
        ("all nan", array(), True),
        ("[1] == 2", array(1, 2), True),
        ("[-1] == 2", array(1, 2), True),
        ("[2] == 2", array(1, 2), False),
        ("[] == 2", np.array(2, F32), True),
        ("[0, 1] < 0", np.array([[1, -2]], F32), True),
        ("max > 1 and min < 0", array(2, -1), True),
        ("max > 5 or min < 0 and nan", array(6, 1), True),
        ("(max > 5 or min < 0) and nan", array(6, 1), False),
        ("max == 18446744073709551615", array(2**64 - 1, dtype=np.uint64), True),
        ("absmax == 128", array(-128, dtype=np.int8), True),
        ("any == 1", array(True, False, dtype=np.bool_), True),
        ("max == 1", array(True, False, dtype=np.bool_), True),
        ("mean == 0.5", array(True, False, dtype=np.bool_), True),
        ("absmax == 5", array(3 + 4j, dtype=np.complex64), True),
        ("> 4.9", array(3 + 4j, dtype=np.complex64), True),
        ("nan", array(complex(0, NAN), dtype=np.complex64), True),
        ("max == 1.5", array(1.5, dtype=ml_dtypes.bfloat16), True),
        ("any == 1.7", array(1.703125, dtype=ml_dtypes.bfloat16), True),
        ("max == -3", array(-3, dtype=ml_dtypes.int4), True),
        ("nan", (array(1), (array(NAN), TOKEN)), True),
        ("all finite", (array(1), array(NAN)), False),
        ("all finite", TOKEN, True),
        ("nan", TOKEN, False),
    ],
)
def test_a_condition_holds_where_it_says(text: str, value: Any, holds: bool) -> None:
    found = condition(text)
    assert found.holds(value) is holds
    assert condition(str(found)).holds(value) is holds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a comparison or one of nan, inf, .* is expected, but it ends there"),
        ("any", "a comparison or one of nan"),
        ("max", "one of < <= > >= == != is expected, but it ends there"),
        ("max > ", "a number is expected, but it ends there"),
        ("max > many", "a number is expected, not 'many' at column 7"),
        ("max > 1 2", "`and`, `or` or the end is expected, not '2' at column 9"),
        ("(max > 1", "`\\)` is expected, but it ends there"),
        ("any max > 1", "not 'max' at column 5"),
        ("[1 2] > 0", "`,` or `\\]` is expected, not '2'"),
        ("[1.5] > 0", "an index is expected, not '1.5'"),
        ("max = 1", "one of < <= > >= == != is expected, not '=' at column 5"),
        ("max > 1 and", "a comparison or one of"),
        ("__import__('os')", "not '__import__' at column 1"),
        ("not", "but it ends there"),
    ],
)
def test_a_condition_that_is_none_says_where(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        condition(text)
