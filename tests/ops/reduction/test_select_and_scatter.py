"""select-and-scatter against XLA:CPU.

Where elements of a window tie, XLA:CPU's choice depends on how it lays the window out; the evaluator's, and ours, is
row-major. Operands here have no equal elements.
"""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import xla
from hloexec.core.ir import WindowDimension
from hloexec.errors import ShapeError
from hloexec.ops import resources
from hloexec.ops.reduction import select_and_scatter
from hloexec.ops.relations.parts import output_size
from tests.drawing import examples
from tests.ops.against_xla import needs_xla
from tests.ops.evaluation import evaluate

DTYPES: dict[str, Any] = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16, "s32": np.int32}


def module(
    element_type: str, extents: tuple[int, ...], window: tuple[WindowDimension, ...], direction: str, scatter: str
) -> str:
    def shape(sizes: tuple[int, ...]) -> str:
        return f"{element_type}[{','.join(map(str, sizes))}]"

    sizes = tuple(map(output_size, extents, window))
    text = (
        f"size={'x'.join(str(d.size) for d in window)} stride={'x'.join(str(d.stride) for d in window)} "
        f"pad={'x'.join(f'{d.padding_low}_{d.padding_high}' for d in window)}"
    )
    return f"""HloModule m
select {{
  a = {element_type}[] parameter(0)
  b = {element_type}[] parameter(1)
  ROOT r = pred[] compare(a, b), direction={direction}
}}
scatter {{
  a = {element_type}[] parameter(0)
  b = {element_type}[] parameter(1)
  ROOT r = {element_type}[] {scatter}(a, b)
}}
ENTRY e {{
  x = {shape(extents)} parameter(0)
  s = {shape(sizes)} parameter(1)
  i = {element_type}[] parameter(2)
  ROOT r = {shape(extents)} select-and-scatter(x, s, i), window={{{text}}}, select=select, scatter=scatter
}}"""


@st.composite
def scatters(draw: st.DrawFn) -> tuple[str, str, tuple[int, ...], tuple[int, ...]]:
    rank = draw(st.integers(1, 3))
    window, extents = [], []
    for _ in range(rank):
        size = draw(st.integers(1, 3))
        padding = st.integers(0, 1 if size > 1 else 0)
        window.append(WindowDimension(size, draw(st.integers(1, 3)), draw(padding), draw(padding)))
        extents.append(draw(st.integers(size, 6)))
    element_type = draw(st.sampled_from(list(DTYPES)))
    direction = draw(st.sampled_from("GE LE GT LT".split()))
    operation = draw(st.sampled_from("add multiply maximum subtract".split()))
    text = module(element_type, tuple(extents), tuple(window), direction, operation)
    return element_type, text, tuple(extents), tuple(map(output_size, extents, window))


@needs_xla
@settings(max_examples=examples(15), deadline=None)
@given(scatters(), st.integers(0, 2**32 - 1))
def test_select_and_scatter_agrees_with_xla(
    scatter: tuple[str, str, tuple[int, ...], tuple[int, ...]], seed: int
) -> None:
    """Small whole numbers: sums and products are exact but for products in bf16 and f16, which round step by step."""
    element_type, text, extents, sizes = scatter
    generator = np.random.default_rng(seed)
    dtype = DTYPES[element_type]
    operand = generator.permutation(int(np.prod(extents))).reshape(extents).astype(dtype)
    source = generator.integers(-9, 10, sizes).astype(dtype)
    init_value = np.array(3, dtype)
    (expected,) = xla.run_hlo(text, operand, source, init_value)
    assert evaluate(text, operand, source, init_value).tobytes() == expected.tobytes()


def test_of_equal_elements_the_first_is_kept_by_ge() -> None:
    text = module("f32", (2, 2), (WindowDimension(2), WindowDimension(2)), "GE", "add")
    result = evaluate(text, np.ones((2, 2), np.float32), np.full((1, 1), 5, np.float32), np.float32(0))
    assert result.tolist() == [[5, 0], [0, 0]]


def test_bf16_sums_are_rounded_at_every_step() -> None:
    """257 is no bf16: 256 + 1 rounds back to 256, each time."""
    text = module("bf16", (3,), (WindowDimension(2),), "GE", "add")
    operand = np.array([0, 1, 0], ml_dtypes.bfloat16)
    result = evaluate(text, operand, np.ones(2, ml_dtypes.bfloat16), np.array(256, ml_dtypes.bfloat16))
    assert result.tolist() == [256, 256, 256]


def test_a_window_of_padding_alone_scatters_nothing() -> None:
    text = module("f32", (2,), (WindowDimension(1, 1, 1, 1),), "GE", "add")
    source = np.array([100, 1, 2, 200], np.float32)
    assert evaluate(text, np.zeros(2, np.float32), source, np.float32(0)).tolist() == [1, 2]


KEEPS = {"GE": np.greater_equal, "GT": np.greater, "LE": np.less_equal, "LT": np.less}


def by_definition(operand: Any, source: Any, init_value: Any, window: Any, keeps: Any) -> Any:
    """One source element after the other, one tap after the other."""
    result, wide = np.full(operand.shape, init_value), operand.astype(np.float32)
    for place in np.ndindex(source.shape):
        held = None
        for tap in np.ndindex(tuple(d.size for d in window)):
            index = tuple(
                p * d.stride + t * d.window_dilation - d.padding_low for p, t, d in zip(place, tap, window, strict=True)
            )
            inside = all(0 <= i < n for i, n in zip(index, operand.shape, strict=True))
            if inside and (held is None or not keeps(wide[held], wide[index])):
                held = index
        if held is not None:
            result[held] = (result[held].astype(np.float32) + source[place].astype(np.float32)).astype(result.dtype)
    return result


@pytest.mark.sampled(5)
@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("direction", list(KEEPS))
@pytest.mark.parametrize("init_value", [0.0, -0.0, 256.0])
@pytest.mark.parametrize("special", [[], [np.nan], [-np.inf, np.inf, -0.0]])
def test_pooling_follows_the_definition_with_ties_nan_and_zeros(
    monkeypatch: pytest.MonkeyPatch, cores: int, dtype: Any, direction: str, init_value: float, special: list[float]
) -> None:
    monkeypatch.setattr(resources, "core_count", lambda: cores)
    resources._pool.cache_clear()
    monkeypatch.setattr(select_and_scatter, "_BLOCK_BYTES", 200)
    window = (WindowDimension(1), WindowDimension(3, 2, 1, 1), WindowDimension(2, 1, 0, 1), WindowDimension(1))
    generator = np.random.default_rng(5)
    operand = generator.choice(np.array([*range(4), *special]), (3, 9, 6, 2)).astype(dtype)
    source = generator.choice(np.array([-0.0, 0.0, 1.0, -1.0, 3.0]), (3, 5, 6, 2)).astype(dtype)
    name = "f32" if dtype is np.float32 else "bf16"
    text = module(name, operand.shape, window, direction, "add")
    actual = evaluate(text, operand, source, np.array(init_value, dtype))
    expected = by_definition(operand, source, np.array(init_value, dtype), window, KEEPS[direction])
    assert actual.tobytes() == expected.tobytes()
    resources._pool.cache_clear()


GOOD = module("f32", (4, 5), (WindowDimension(2), WindowDimension(2)), "GE", "add")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("s = f32[3,4]", "s = f32[3,5]", r"source of select-and-scatter must have shape \[3, 4\]"),
        ("s = f32[3,4]", "s = s32[3,4]", "of type s32|one element type"),
        ("i = f32[]", "i = f32[1]", "must be a scalar"),
        ("size=2x2 stride=1x1 pad=0_0x0_0", "size=2", "window of select-and-scatter has 1 dimensions"),
        ("size=2x2", "size=2x0", "size of window dimension 1"),
        ("select=select", "select=scatter", "select of select-and-scatter must return pred"),
        ("scatter=scatter", "scatter=select", "parameter 0 of scatter of select-and-scatter"),
    ],
)
def test_wrong_select_and_scatters_are_refused(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(ShapeError, match=message):
        evaluate(GOOD.replace(old, new))
