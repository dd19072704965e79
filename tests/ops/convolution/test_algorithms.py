"""The `algorithm` of a convolution, as a dot's: against sums in f64 of products of operands rounded beforehand."""

from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.core.dtypes import element_type
from hloexec.ops.common import narrow, widen
from tests.text.building import op


def _convolved(algorithm: str, lhs: Any, rhs: Any, numerics: str = "reference") -> Any:
    text = op(
        f"f32[1,3,3,5] convolution(a, b), window={{size=2x2}}, dim_labels=b01f_01io->b01f, algorithm={algorithm}",
        a="f32[1,4,4,8]",
        b="f32[2,2,8,5]",
    )
    return hloexec.run(hloexec.parse(text, strict=True), lhs, rhs, numerics=numerics)


def _parts(array: Any, name: str, count: int) -> list[Any]:
    """An array as the sum of its rounding, the rounding of what is left, …, as the algorithms split it."""
    left, found = array.astype(np.float32), []
    for _ in range(count):
        part = widen(narrow(left, element_type(name)))
        found.append(part.astype(np.float64))
        left = left - part
    return found


def _expected(pairs: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """The sum of the products, and of their magnitudes."""
    total = sizes = 0
    for lhs, rhs in pairs:
        for row in range(2):
            for column in range(2):
                window, taps = lhs[:, row : row + 3, column : column + 3], rhs[row, column]
                total, sizes = total + window @ taps, sizes + np.abs(window) @ np.abs(taps)
    return total, sizes


@pytest.mark.parametrize(
    ("algorithm", "name", "count", "kept"),
    [
        ("dot_bf16_bf16_f32", "bf16", 1, [(0, 0)]),
        ("dot_f16_f16_f32", "f16", 1, [(0, 0)]),
        ("dot_bf16_bf16_f32_x3", "bf16", 2, [(0, 0), (0, 1), (1, 0)]),
        ("dot_f32_f32_f32", "f32", 1, [(0, 0)]),
    ],
)
@pytest.mark.parametrize("numerics", ["reference", "exact"])
def test_operands_are_rounded_and_split_first(
    algorithm: str, name: str, count: int, kept: list[tuple[int, int]], numerics: str
) -> None:
    generator = np.random.default_rng(5)
    lhs, rhs = generator.standard_normal((1, 4, 4, 8), np.float32), generator.standard_normal((2, 2, 8, 5), np.float32)
    ours, theirs = _parts(lhs, name, count), _parts(rhs, name, count)
    expected, sizes = _expected([(ours[i], theirs[j]) for i, j in kept])
    # 32 products of each pair and their sums are rounded to f32, or the whole sum once.
    roundings = 32 * len(kept) if numerics == "reference" else 1
    error = np.abs(_convolved(algorithm, lhs, rhs, numerics) - expected)
    assert (error <= roundings * 2.0**-24 * sizes + 2.0**-24 * np.abs(expected)).all()
    if name != "f32":
        assert (error < 0.01 * np.abs(_convolved("dot_f32_f32_f32", lhs, rhs) - expected).max()).any()


def test_sums_are_rounded_to_the_type_that_an_algorithm_names() -> None:
    ones = np.ones((1, 4, 4, 8), np.float32), np.full((2, 2, 8, 5), 1 + 2.0**-7, np.float32)
    assert (_convolved("dot_bf16_bf16_f32", *ones) == 32.25).all()
    assert (_convolved("dot_bf16_bf16_bf16", *ones) == 32.25).all()
    assert (_convolved("dot_bf16_bf16_bf16", ones[0], ones[1] * np.float32(1 + 2.0**-7)) == 32.5).all()


def test_xla_cpu_ignores_it() -> None:
    generator = np.random.default_rng(6)
    operands = generator.standard_normal((1, 4, 4, 8), np.float32), generator.standard_normal((2, 2, 8, 5), np.float32)
    found = [_convolved(each, *operands, "xla-cpu") for each in ("dot_bf16_bf16_f32", "dot_f32_f32_f32")]
    assert np.array_equal(*found)
