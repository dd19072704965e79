"""Shapes, arrays and inputs that `hloexec.testing` draws."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

import hloexec
from hloexec import testing
from hloexec.core.dtypes import ELEMENT_TYPES, largest_number, part_type, smallest_normal
from hloexec.errors import InputError, ResourceError
from hloexec.ops.common import widen
from tests.drawing import examples
from tests.families import of_each_family

FINDING = settings(max_examples=2000, deadline=None, database=None, suppress_health_check=[*HealthCheck])
ANY = settings(FINDING, phases=[Phase.generate])
ARRAYS = [name for name, entry in ELEMENT_TYPES.items() if entry.is_array]
FLOATS = [name for name in ARRAYS if ELEMENT_TYPES[name].is_floating or ELEMENT_TYPES[name].is_complex]


def _parts(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wide = widen(array)
    return wide.view(f"f{wide.itemsize // 2}") if wide.dtype.kind == "c" else wide


@given(testing.shapes(["bf16", "s4"], min_rank=1, max_rank=4, min_size=0, max_size=7, max_elements=50))
def test_shapes_keep_to_their_bounds(shape: hloexec.ArrayShape) -> None:
    assert shape.element_type.name in ("bf16", "s4")
    assert 1 <= shape.rank <= 4 and max(shape.dimensions) <= 7 and shape.element_count <= 50


def test_ranks_that_many_elements_forbid_are_not_drawn() -> None:
    @given(testing.shapes(min_rank=1, min_size=6, max_size=9, max_elements=200))
    def test(shape: hloexec.ArrayShape) -> None:
        assert shape.rank in (1, 2) and shape.element_count <= 200

    test()
    with pytest.raises(InputError, match="no shape of rank 2 and sizes from 6 has only 35 elements"):
        testing.shapes(min_rank=2, min_size=6, max_size=9, max_elements=35)


def test_shapes_shrink_to_scalars_of_the_first_type() -> None:
    assert str(find(testing.shapes(), lambda shape: True)) == "f32[]"
    assert str(find(testing.shapes(["s8", "f32"]), lambda shape: shape.rank > 1)) == "s8[1,1]"
    assert str(find(testing.shapes("pred", max_size=9, max_rank=1), lambda shape: shape.element_count > 7)) == "pred[8]"


@pytest.mark.parametrize("name", of_each_family(ARRAYS))
def test_arrays_are_of_every_element_type(name: str) -> None:
    @settings(max_examples=examples(20), deadline=None)
    @given(testing.arrays(f"{name}[2,3]"), testing.arrays(f"{name}[100]"), testing.arrays(name, max_rank=1))
    def test(small: Any, large: Any, any_size: Any) -> None:
        storage = ELEMENT_TYPES[name].storage
        assert [(a.dtype, a.shape) for a in (small, large)] == [(storage, (2, 3)), (storage, (100,))]
        assert any_size.dtype == storage and any_size.ndim <= 1

    test()


def _special(name: str) -> dict[str, Any]:
    """What each special is, where the type has it."""
    entry = part_type(ELEMENT_TYPES[name])
    found = {"largest": lambda x: x == largest_number(entry)}
    if entry.has_nan:
        found["NaN"] = np.isnan
    if entry.has_inf:
        found |= {"infinity": lambda x: x == np.inf, "minus infinity": lambda x: x == -np.inf}
    if entry.has_negative_zero:
        found["-0"] = lambda x: (x == 0) & np.signbit(x)
    if entry.mantissa_bits:
        found["denormal"] = lambda x: (x != 0) & (np.abs(x) < smallest_normal(entry))
    return found


@pytest.mark.slow_cases("bf16-infinity", "f8e4m3-infinity", "f8e4m3fnuz-denormal")
@pytest.mark.sampled(8)
@pytest.mark.parametrize(("name", "special"), [(name, special) for name in FLOATS for special in _special(name)])
def test_arrays_hold_specials(name: str, special: str) -> None:
    is_special = _special(name)[special]
    if ELEMENT_TYPES[name].is_complex:
        find(testing.arrays(f"{name}[3]"), lambda array: is_special(_parts(array)).any(), settings=ANY)
        return
    found = find(testing.arrays(f"{name}[3]"), lambda array: is_special(_parts(array)).any(), settings=FINDING)
    simplest = 1 if name == "f8e8m0fnu" else 0  # f8e8m0fnu has powers of two only
    assert (found[~is_special(_parts(found))] == simplest).all()


@pytest.mark.parametrize("name", of_each_family(FLOATS))
def test_specials_can_be_left_out(name: str) -> None:
    entry = part_type(ELEMENT_TYPES[name])
    flags = ("allow_nan", "allow_infinity", "allow_subnormal", "allow_negative_zero")

    @settings(max_examples=examples(20), deadline=None)
    @given(testing.arrays(f"{name}[20]", **dict.fromkeys(flags, False)))
    def test(array: Any) -> None:
        parts = _parts(array)
        assert np.isfinite(parts).all() and not (np.signbit(parts) & (parts == 0)).any()
        assert ((parts == 0) | (np.abs(parts) >= smallest_normal(entry))).all()

    test()


@pytest.mark.parametrize(
    "name", of_each_family(name for name in ARRAYS if name not in "pred s1 u1 s2 f8e8m0fnu".split())
)
def test_elements_keep_to_their_bounds(name: str) -> None:
    @settings(max_examples=examples(20), deadline=None)
    @given(testing.arrays(f"{name}[10]", min_value=1, max_value=3), testing.arrays(f"{name}[99]", min_value=2))
    def test(few: Any, many: Any) -> None:
        assert (_parts(few) >= 1).all() and (_parts(few) <= 3).all() and (_parts(many) >= 2).all()

    test()


def test_large_arrays_shrink_to_one_number() -> None:
    found = find(testing.arrays("f32[1000]"), lambda array: (array > 5).sum() > 100, settings=FINDING)
    assert (found == 6).all()


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ("f32[2", {}, r"'f32\[2' is no shape"),
        ("(f32[2])", {}, "arrays have a shape such as"),
        ("f32[?]", {}, "arrays have a shape such as"),
        ("token[]", {}, "arrays have a shape such as"),
        ("float32", {}, "'float32' is no element type of arrays"),
        (3, {}, "element_types must be a list of element types"),
        ("f32[2]", {"max_rank": 2}, "max_rank choose shapes of an element type, but a shape is given"),
        ("f32[2]", {"min_value": "1"}, "min_value must be a number"),
        ("f32[2]", {"allow_nan": None}, "allow_nan must be True or False"),
        ("s4[2]", {"min_value": 8}, "type s4 has no number from 8"),
        ("c64[2]", {"min_value": 1e39}, "type c64 has no number from 1e[+]39$"),
        ("f4e2m1fn[2]", {"min_value": 4.5, "max_value": 5.5}, "holds no number of type f4e2m1fn"),
        ("f32[2]", {"min_value": 2, "max_value": 1}, "type f32 has no number from 2 to 1"),
    ],
)
def test_arrays_that_do_not_exist_are_refused(shape: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        testing.arrays(shape, **options)


def test_what_does_not_fit_into_memory_is_refused() -> None:
    with pytest.raises(ResourceError, match=r"an array f32\[99999999999999\] takes .* more than this machine has free"):
        testing.arrays("f32[99999999999999]")
    module = hloexec.parse("HloModule m\nENTRY e { ROOT x = f32[99999999999999] parameter(0) }\n")
    with pytest.raises(ResourceError, match="the parameters of e take"):
        testing.inputs(module)


LOOKUP = hloexec.parse("""HloModule lookup
ENTRY e {
  table = f32[5,2] parameter(0)
  rows = s32[3,1] parameter(1)
  scale = f32[] parameter(2)
  many = bf16[8,16] parameter(3)
  pair = (s8[2], token[]) parameter(4)
  found = f32[3,2] gather(table, rows), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0},
    index_vector_dim=1, slice_sizes={1,2}
  root = f32[] rsqrt(scale)
  ROOT t = (f32[3,2], f32[]) tuple(found, root)
}
""")


@settings(max_examples=examples(30), deadline=None)
@given(testing.inputs(LOOKUP))
def test_inputs_suit_their_use(values: list[Any]) -> None:
    table, rows, scale, many, (bytes_, token) = values
    assert (table.shape, many.shape, bytes_.dtype) == ((5, 2), (8, 16), np.int8)
    assert (rows >= 0).all() and (rows <= 4).all() and 0 < scale < 10 and isinstance(token, hloexec.Token)
    hloexec.run(LOOKUP, *values)


def test_inputs_hold_specials_unless_told_otherwise() -> None:
    for is_there in (lambda v: np.isnan(v[0]).any(), lambda v: np.isinf(v[0]).any(), lambda v: (v[4][0] == -128).any()):
        find(testing.inputs(LOOKUP), is_there, settings=ANY)

    @settings(max_examples=examples(30), deadline=None)
    @given(testing.inputs(LOOKUP, specials=False))
    def test(values: list[Any]) -> None:
        assert (np.abs(values[0]) < 5).all() and (np.abs(widen(values[3])) < 5).all()

    test()


@pytest.mark.slow
def test_inputs_shrink_to_zeros_and_small_indices() -> None:
    table, rows, scale, many, _ = find(testing.inputs(LOOKUP), lambda values: values[1].max() > 1, settings=FINDING)
    assert not table.any() and not widen(many).any() and sorted(rows.ravel()) == [0, 0, 2] and scale == 1


DYNAMIC = hloexec.parse("""HloModule dynamic
ENTRY e {
  x = f32[<=4,2] parameter(0)
  y = f32[<=4,2] parameter(1)
  ROOT z = f32[<=4,2] add(x, y)
}
""")


def test_dynamic_dimensions_have_any_size_up_to_their_bound() -> None:
    for size in range(5):
        x, y = find(testing.inputs(DYNAMIC), lambda values, size=size: len(values[0]) == size, settings=ANY)
        assert x.shape == y.shape == (size, 2)
        assert hloexec.run(DYNAMIC, x, y).shape == (size, 2)


def test_inputs_that_cannot_be_made_are_refused() -> None:
    opaque = hloexec.parse("HloModule m\nENTRY e { x = opaque[] parameter(0)\n  ROOT y = f32[] constant(0) }\n")
    with pytest.raises(InputError, match="of which no value can be made"):
        testing.inputs(opaque)
    with pytest.raises(InputError, match="has no computation f"):
        testing.inputs(LOOKUP, "f")
    with pytest.raises(InputError, match="module must be a Module"):
        testing.inputs("text")  # type: ignore[arg-type]


@settings(max_examples=examples(20), deadline=None)
@given(st.data())
def test_inputs_of_other_computations(data: st.DataObject) -> None:
    module = hloexec.parse(
        "HloModule m\nf { a = u4[3] parameter(0)\n  ROOT b = u4[3] not(a) }\n"
        "ENTRY e { x = u4[3] parameter(0)\n  ROOT y = u4[3] call(x), to_apply=f }\n"
    )
    (value,) = data.draw(testing.inputs(module, "f"))
    assert str(value.dtype) == "uint4" and value.shape == (3,)


@pytest.mark.slow
def test_hypothesis_is_imported_by_this_package_alone() -> None:
    program = "import sys, hloexec\n[getattr(hloexec, name) for name in hloexec.__all__]\nassert 'hypothesis' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_what_is_missing_is_named() -> None:
    program = "import sys\nsys.modules['hypothesis'] = None\nimport hloexec.testing"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "hloexec.testing needs Hypothesis, which is not installed: pip install 'hloexec[testing]'" in done.stderr
