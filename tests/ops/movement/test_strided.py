"""broadcast, reshape, transpose, slice, concatenate, pad, reverse, iota and copy, against XLA bit for bit."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from numpy.testing import assert_array_equal

import hloexec
from conformance.cell import text_of
from hloexec import testing
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import PaddingDimension
from hloexec.errors import ShapeError
from hloexec.language.text.shapes import parse_shape
from hloexec.ops.common import strided
from hloexec.ops.movement.assembly import Pad, PadAttributes
from tests.drawing import examples
from tests.ops.against_xla import Case, assert_same_as_xla, random_array
from tests.ops.evaluation import assert_refused, evaluate

# XLA:CPU takes no arrays of one-bit integers.
TYPES = [name for name, entry in ELEMENT_TYPES.items() if entry.is_array and name not in ("s1", "u1")]
# XLA:CPU's process dies of concatenating two-bit integers; its importer refuses an iota of pred.
CONCATENATE_TYPES = [name for name in TYPES if name not in ("s2", "u2")]
IOTA_TYPES = [name for name in TYPES if name != "pred"]

sizes = st.sampled_from([0, 1, 1, 2, 3, 4, 5])
dimensions = st.lists(sizes, max_size=5).map(tuple)
types = st.sampled_from(TYPES)
few = settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def _braces(numbers: Any) -> str:
    return f"{{{','.join(map(str, numbers))}}}"


def _array(draw: Any, name: str, shape: Any) -> Any:
    return draw(testing.arrays(f"{name}[{','.join(map(str, shape))}]"))


@st.composite
def _broadcast(draw: Any) -> Case:
    name, result = draw(types), draw(dimensions)
    kept = sorted(draw(st.sets(st.integers(0, len(result) - 1)))) if result else []
    operand = _array(draw, name, [result[axis] for axis in kept])
    return Case("broadcast", [operand], text_of(name, result), f"dimensions={_braces(kept)}")


@st.composite
def _reshape(draw: Any) -> Case:
    name, source = draw(types), draw(dimensions)
    count, result = int(np.prod(source)), []
    remaining = count
    while remaining > 1 and len(result) < 4:
        factor = draw(st.sampled_from([k for k in range(1, remaining + 1) if remaining % k == 0]))
        result.append(factor)
        remaining //= factor
    result.insert(draw(st.integers(0, len(result))), remaining)
    return Case("reshape", [_array(draw, name, source)], text_of(name, result))


@st.composite
def _transpose(draw: Any) -> Case:
    name, source = draw(types), draw(dimensions)
    order = draw(st.permutations(range(len(source))))
    result = [source[axis] for axis in order]
    return Case("transpose", [_array(draw, name, source)], text_of(name, result), f"dimensions={_braces(order)}")


@st.composite
def _slice(draw: Any) -> Case:
    name, source = draw(types), draw(dimensions)
    ranges = []
    for size in source:
        start = draw(st.integers(0, size))
        ranges.append(range(start, draw(st.integers(start, size)), draw(st.integers(1, 3))))
    attributes = ", ".join(f"[{r.start}:{r.stop}:{r.step}]" for r in ranges)
    return Case("slice", [_array(draw, name, source)], text_of(name, map(len, ranges)), f"slice={{{attributes}}}")


@st.composite
def _concatenate(draw: Any) -> Case:
    name = draw(st.sampled_from(CONCATENATE_TYPES))
    first = draw(st.lists(sizes, min_size=1, max_size=4))
    axis = draw(st.integers(0, len(first) - 1))
    along = draw(st.lists(sizes, min_size=1, max_size=4))
    operands = [_array(draw, name, (*first[:axis], size, *first[axis + 1 :])) for size in along]
    result = text_of(name, (*first[:axis], sum(along), *first[axis + 1 :]))
    return Case("concatenate", operands, result, f"dimensions={{{axis}}}")


@st.composite
def _pad(draw: Any) -> Case:
    name = draw(types)
    source = draw(st.lists(sizes, min_size=1, max_size=4))
    padding, result = [], []
    for size in source:
        interior = draw(st.integers(0, 2))
        whole = size + max(size - 1, 0) * interior
        low = draw(st.integers(-whole, 3))
        high = draw(st.integers(-(whole + low), 3)) if whole + low >= 0 else 0
        padding.append(f"{low}_{high}_{interior}")
        result.append(whole + low + high)
    operands = [_array(draw, name, source), _array(draw, name, ())]
    return Case("pad", operands, text_of(name, result), f"padding={'x'.join(padding)}")


@st.composite
def _reverse(draw: Any) -> Case:
    name, source = draw(types), draw(dimensions)
    turned = sorted(draw(st.sets(st.integers(0, len(source) - 1)))) if source else []
    return Case("reverse", [_array(draw, name, source)], text_of(name, source), f"dimensions={_braces(turned)}")


@st.composite
def _iota(draw: Any) -> Case:
    # f8e8m0fnu has no zero: XLA's constant folding makes it 2**-127, its compiled code NaN.
    name = draw(st.sampled_from([name for name in IOTA_TYPES if name != "f8e8m0fnu"]))
    result = draw(st.lists(sizes, min_size=1, max_size=4))
    axis = draw(st.integers(0, len(result) - 1))
    if draw(st.booleans()):
        result[axis] = draw(st.sampled_from([17, 300]))
    return Case("iota", [], text_of(name, result), f"iota_dimension={axis}")


@st.composite
def _copy(draw: Any) -> Case:
    name, source = draw(types), draw(dimensions)
    return Case("copy", [_array(draw, name, source)], text_of(name, source))


@pytest.mark.usefixtures("newer_emitters")
@few
@given(
    st.lists(
        st.one_of(
            _broadcast(), _reshape(), _transpose(), _slice(), _concatenate(), _pad(), _reverse(), _iota(), _copy()
        ),
        min_size=8,
        max_size=24,
    )
)
def test_data_movement_is_that_of_xla(cases: list[Case]) -> None:
    """XLA's older emitters round numbers of f8e5m2fnuz below 2**-14 up, and end the process at some pads of s4."""
    assert_same_as_xla(cases)


@pytest.mark.parametrize("opcode", "transpose pad reverse slice broadcast copy reshape".split())
def test_every_element_type_moves_as_in_xla(opcode: str) -> None:
    attributes = {
        "transpose": ("4,3", "dimensions={1,0}"),
        "pad": ("8,3", "padding=1_2_1x-1_0_0"),
        "reverse": ("3,4", "dimensions={0,1}"),
        "slice": ("2,2", "slice={[0:3:2],[1:3]}"),
        "broadcast": ("3,2,4", "dimensions={0,2}"),
        "copy": ("3,4", ""),
        "reshape": ("2,6", ""),
    }
    sizes_text, rest = attributes[opcode]
    cases = []
    for seed, name in enumerate(TYPES):
        operands = [random_array(seed, (3, 4), ELEMENT_TYPES[name].storage)]
        if opcode == "pad":
            operands.append(random_array(seed + 99, (), ELEMENT_TYPES[name].storage))
        cases.append(Case(opcode, operands, f"{name}[{sizes_text}]", rest))
    assert_same_as_xla(cases)


@pytest.mark.usefixtures("newer_emitters")
def test_iota_of_every_element_type_wraps_and_rounds_as_in_xla() -> None:
    assert_same_as_xla([Case("iota", [], f"{name}[600,2]", "iota_dimension=0") for name in IOTA_TYPES])


@pytest.mark.slow
def test_iota_beyond_the_exact_integers_of_f32_rounds_as_in_xla() -> None:
    size = 2**24 + 40
    text = f"HloModule m\nENTRY e {{\n i = NAME[{size}] iota(), iota_dimension=0\n ROOT s = NAME[60] slice(i), slice={{[{size - 60}:{size}]}}\n}}"
    xla = pytest.importorskip("conformance.xla")
    for name in ("f32", "bf16", "u8"):
        this = text.replace("NAME", name)
        (expected,) = xla.run_hlo(this)
        assert_array_equal(evaluate(this).astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("name", "s2 u2 s1 u1".split())
def test_concatenate_of_the_narrowest_integers_keeps_every_element(name: str) -> None:
    first, second = (random_array(seed, (3, 2), ELEMENT_TYPES[name].storage) for seed in (1, 2))
    text = f"HloModule m\nENTRY e {{\n a = {name}[3,2] parameter(0)\n b = {name}[3,2] parameter(1)\n ROOT r = {name}[6,2] concatenate(a, b), dimensions={{0}}\n}}"
    result = evaluate(text, first, second)
    assert result.astype(np.int8).tolist() == [*first.astype(np.int8).tolist(), *second.astype(np.int8).tolist()]


def test_concatenate_of_mixed_float_widths_converts_to_the_declared_type() -> None:
    narrow = random_array(1, (3,), ELEMENT_TYPES["bf16"].storage)
    wide = random_array(2, (2,), np.float32)
    text = "HloModule m\nENTRY e {\n a = bf16[3] parameter(0)\n b = f32[2] parameter(1)\n ROOT r = f32[5] concatenate(a, b), dimensions={0}\n}"
    result = evaluate(text, narrow, wide)
    assert_array_equal(result, [*narrow.astype(np.float32), *wide])


@pytest.mark.parametrize(
    ("opcode", "attributes", "result"),
    [
        ("transpose", "dimensions={2,0,1}", "s32[4,2,3]"),
        ("reshape", "", "s32[6,4]"),
        ("slice", "slice={[0:1],[1:3],[0:4:2]}", "s32[1,2,2]"),
        ("broadcast", "dimensions={0,2,3}", "s32[2,7,3,4]"),
        ("copy", "", "s32[2,3,4]"),
        ("pad", "padding=-1_0x0_0x0_-2", "s32[1,3,2]"),
    ],
)
def test_movement_that_strides_can_express_is_a_view(opcode: str, attributes: str, result: str) -> None:
    operand = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    more = ", v" if opcode == "pad" else ""
    tail = f", {attributes}" if attributes else ""
    text = f"HloModule m\nENTRY e {{\n p = s32[2,3,4] parameter(0)\n v = s32[] parameter(1)\n ROOT r = {result} {opcode}(p{more}){tail}\n}}"
    assert np.shares_memory(evaluate(text, operand, np.int32(7).reshape(())), operand)


def test_an_array_without_elements_is_broadcast_to_all_dimensions() -> None:
    text = "HloModule m\nENTRY e { x = f32[0,1] parameter(0)\n ROOT y = f32[0,4,1,2] broadcast(x), dimensions={0,2} }\n"
    for planner in (True, False):
        found = hloexec.run(hloexec.parse(text), np.zeros((0, 1), np.float32), planner=planner)
        assert found.shape == (0, 4, 1, 2)


def test_what_is_reversed_lies_in_memory_in_its_own_order() -> None:
    """NumPy's functions round otherwise on memory with negative steps."""
    text = "HloModule m\nENTRY e {\n p = s32[2,3,4] parameter(0)\n ROOT r = s32[2,3,4] reverse(p), dimensions={1}\n}"
    assert min(evaluate(text, np.arange(24, dtype=np.int32).reshape(2, 3, 4)).strides) > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("f32[3,4] broadcast(m), dimensions={0}", "must name one result dimension"),
        ("f32[3,4] broadcast(v), dimensions={2}", "dimension 2, but the dimensions are 0 to 1"),
        ("f32[3,4] broadcast(v), dimensions={1}", "must be of one size"),
        ("f32[3,4] broadcast(m), dimensions={0,0}", "repeats a dimension"),
        ("f32[3,4] broadcast(d), dimensions={0}", "both must be dynamic or neither"),
        ("f32[3] reshape(m)", "keep the number of elements"),
        ("f32[3,4] reshape(m), inferred_dimension=7", "inferred_dimension 7"),
        ("f32[3,4] transpose(m), dimensions={0,0}", "permutation"),
        ("f32[3,4] transpose(m), dimensions={0}", "permutation"),
        ("f32[3] slice(v), slice={[0:4]}", "limit <= 3"),
        ("f32[3] slice(v), slice={[2:1]}", "start <= limit"),
        ("f32[1] slice(v), slice={[0:1:0]}", "positive stride"),
        ("f32[3] slice(v), slice={}", "one range per dimension"),
        ("f32[3,4] concatenate(m, v), dimensions={0}", "may differ in dimension 0 only"),
        ("f32[3] concatenate(v), dimensions={1}", "dimension 1 is not one"),
        ("f32[6] concatenate(v, i), dimensions={0}", "same element type"),
        ("f32[3] pad(v, v), padding=0_0", "must be a scalar"),
        ("f32[3] pad(v, z), padding=-2_-2", "negative size -1"),
        ("f32[3] reverse(v), dimensions={0,0}", "repeats a dimension"),
        ("f32[3] reverse(v), dimensions={-1}", "dimension -1"),
        ("f32[] iota(), iota_dimension=0", "iota_dimension 0"),
        ("pred[3] iota(), iota_dimension=0", "integer, floating-point or complex"),
        ("token[] transpose(t), dimensions={}", "must be an array"),
        ("f32[12] reshape(e)", "must leave one dynamic dimension"),
    ],
)  # fmt: skip
def test_shape_rules_say_what_is_wrong(call: str, message: str) -> None:
    shapes = {
        "m": "f32[3,4]",
        "v": "f32[3]",
        "d": "f32[<=3]",
        "e": "f32[<=2,6]",
        "i": "s32[3]",
        "z": "f32[]",
        "t": "token[]",
    }
    assert_refused(call, message, **shapes)


def test_no_elements_are_taken_away_between_others() -> None:
    """The text has no way to say so."""
    vector, scalar = (parse_shape(text) for text in ("f32[3]", "f32[]"))
    with pytest.raises(ShapeError, match="must not be negative"):
        Pad.infer(vector, scalar, attributes=PadAttributes(padding=(PaddingDimension(0, 0, -1),)))


WHOLE = np.arange(48, dtype=np.int32).reshape(6, 8)


@pytest.mark.parametrize(
    ("array", "dimensions", "strides"),
    [
        (WHOLE, (5, 7, 2, 2), (32, 4, 32, 4)),
        (WHOLE, (3,), (0,)),
        (WHOLE, (), ()),
        (WHOLE, (0, 3), (32, 4)),
        (WHOLE[:0], (0,), (4,)),
        (WHOLE[0, 0], (1,), (0,)),
        (np.asfortranarray(WHOLE), (2, 6, 3), (24, 4, 24)),
        (WHOLE[1:, ::2], (2, 3), (32, 8)),
        (WHOLE[::-1, ::-1], (6, 8), (-32, -4)),
        (WHOLE[:1][::-1], (1, 4), (-32, 4)),
    ],
    ids=["windows", "repeated", "one", "no windows", "empty", "scalar", "turned", "cut", "reversed", "reversed row"],
)
def test_views_show_what_numpys_do(array: Any, dimensions: tuple[int, ...], strides: tuple[int, ...]) -> None:
    array = np.asarray(array)
    found, expected = strided(array, dimensions, strides), as_strided(array, dimensions, strides)
    assert found.strides == expected.strides
    assert np.array_equal(found, expected)
    assert not found.flags.writeable
    assert not array.size or np.shares_memory(found, array) or not found.size


@pytest.mark.parametrize("dtype", [np.bool_, np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.int4])
def test_views_keep_the_element_type(dtype: Any) -> None:
    array = np.array([0, 1, 1, 0, 1, 0]).astype(dtype)
    found = strided(array, (4, 3), (array.itemsize, array.itemsize))
    assert found.dtype == array.dtype
    assert found.tobytes() == np.stack([array[k : k + 3] for k in range(4)]).tobytes()
