"""Shuffle against NumPy's indexing, coordinate by coordinate, and against the slices and the gather that XLA makes of it."""

from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.errors import HloError
from tests.families import of_each_family
from tests.text.building import op


def _shuffled(operand: np.ndarray[Any, Any], attributes: str, element_type: str = "f32") -> Any:
    shape = f"{element_type}[{','.join(map(str, operand.shape))}]"
    return hloexec.run(hloexec.parse(op(f"{shape} shuffle(a), {attributes}", a=shape)), operand)


@pytest.mark.parametrize("shape", [(4,), (3, 5), (2, 3, 4), (1, 1), (0, 3)])
@pytest.mark.parametrize("shift", [0, 1, -1, 2, 7, -9])
def test_rotations_take_each_element_from_the_place_a_shift_further_on(shape: tuple[int, ...], shift: int) -> None:
    operand = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    for dimension, size in enumerate(shape):
        found = _shuffled(operand, f"dimensions={{{dimension}}}, mode=rotate, shifts={{{shift}}}")
        places = [(place + shift) % size for place in range(size)]
        assert np.array_equal(found, np.take(operand, places, dimension)), (dimension, shift)


@pytest.mark.parametrize("name", of_each_family(name for name, entry in ELEMENT_TYPES.items() if entry.is_array))
def test_elements_of_every_type_are_moved_as_they_are(name: str) -> None:
    operand = np.array([0, 1, 1, 0, 1]).astype(ELEMENT_TYPES[name].storage)
    found = _shuffled(operand, "dimensions={0}, mode=rotate, shifts={2}", name)
    assert found.dtype == operand.dtype
    assert found.tobytes() == np.take(operand, [2, 3, 4, 0, 1]).tobytes()


def test_rotations_of_several_dimensions_are_slices_put_together_again_as_xla_expands_them() -> None:
    operand = np.arange(6, dtype=np.float32).reshape(2, 3)
    rows = np.concatenate([operand[1:], operand[:1]], 0)
    expected = np.concatenate([rows[:, 2:], rows[:, :2]], 1)
    assert np.array_equal(_shuffled(operand, "dimensions={0,1}, mode=rotate, shifts={1,2}"), expected)
    assert np.array_equal(_shuffled(operand, "dimensions={1,0}, mode=rotate, shifts={-1,3}"), expected)


@pytest.mark.parametrize(
    ("shape", "dimensions", "indices"),
    [
        ((4,), (0,), "s32[4]{0} {3, 1, 0, 2}"),
        ((3, 2), (0,), "s32[3,1]{1,0} { {2}, {0}, {1} }"),
        ((3, 2), (0, 1), "s32[3,2,2]{2,1,0} { { {2,0}, {0,1} }, { {0,0}, {2,1} }, { {1,0}, {1,1} } }"),
        ((3, 2), (1, 0), "s8[3,2,2]{2,1,0} { { {0,2}, {1,0} }, { {0,0}, {1,2} }, { {0,1}, {1,1} } }"),
        ((2, 2, 2), (0, 2), "u16[2,1,2,2] { { { {1,1}, {1,0} } }, { { {0,1}, {0,0} } } }"),
        ((2, 3), (1,), "s64[1,3,1] { { {2}, {2}, {0} } }"),
    ],
)
def test_permutations_take_each_element_from_its_coordinates(
    shape: tuple[int, ...], dimensions: tuple[int, ...], indices: str
) -> None:
    operand = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    listed = ",".join(map(str, dimensions))
    found = _shuffled(operand, f"dimensions={{{listed}}}, mode=permute, indices={indices}")
    sizes = tuple(map(int, indices.partition("[")[2].partition("]")[0].split(",")))
    numbers = np.array(
        [int(each) for each in "".join(c if c.isdigit() else " " for c in indices.partition(" ")[2]).split()]
    )
    table = numbers.reshape(*sizes, 1) if len(sizes) == len(shape) else numbers.reshape(sizes)
    table = np.broadcast_to(table, (*shape, len(dimensions)))
    for place in np.ndindex(*shape):
        source = list(place)
        for number, dimension in enumerate(dimensions):
            source[dimension] = table[place][number]
        assert found[place] == operand[tuple(source)]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ("dimensions={}, mode=rotate, shifts={}", "at least one dimension"),
        ("dimensions={0,0}, mode=rotate, shifts={1,1}", "dimensions"),
        ("dimensions={2}, mode=rotate, shifts={1}", "dimensions"),
        ("dimensions={0,1}, mode=rotate, shifts={1}", "as many shifts, but has 1"),
        ("dimensions={0}, mode=rotate", "as many shifts, but has 0"),
        ("dimensions={0}, mode=permute", "needs indices"),
        ("dimensions={0}, mode=permute, shifts={1}, indices=s32[2,1] {{0},{1}}", "has no shifts"),
        ("dimensions={0}, mode=permute, indices=s32[3,1] {{0},{1},{0}}", "but have shape s32[3,1]"),
        ("dimensions={0}, mode=permute, indices=f32[2,1] {{0},{1}}", "must be integers"),
        ("dimensions={0}, mode=permute, indices=s32[2,1] {{0},{2}}", "beyond dimension 0 of size 2"),
        ("dimensions={0}, mode=interleave", "mode"),
        ("mode=rotate, shifts={1}", "'dimensions', which is missing"),
    ],
)
def test_wrong_attributes_are_refused(attributes: str, message: str) -> None:
    with pytest.raises(HloError) as caught:
        _shuffled(np.zeros((2, 3), np.float32), attributes)
    assert message in str(caught.value)
