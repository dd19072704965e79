"""What travels as JSON comes back as it was, and what is not as annotated is refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.core.structs import frozen
from hloexec.core.values import TOKEN, Array, Value
from hloexec.tools.diffing.folders import Stage
from hloexec.tools.executing.codec import coded, coded_inputs, decoded, decoded_inputs
from hloexec.tools.golden import GoldenCheck, Outcome
from tests.text.building import op


@frozen(eq=False)
class _Everything:
    path: Path
    outcome: Outcome
    word: Literal["one", "two"]
    _number: float
    numbers: tuple[int, float, complex, bool]
    scalar: float | int | complex | bool
    names: Mapping[int, str]
    array: Array
    stage: Stage | None = None
    other: Stage | str | None = None


def _through_json(value: Any, kind: Any) -> Any:
    return decoded(json.loads(json.dumps(coded(value, kind), allow_nan=False)), kind)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.bool_, np.complex64, ml_dtypes.int4, ">f8"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_arrays_keep_type_shape_and_bits(dtype: Any, shape: tuple[int, ...]) -> None:
    numbers = np.arange(np.prod(shape)).reshape(shape) % 5 - 2
    array = np.asarray(numbers).astype(dtype).T
    same = _through_json(array, Array)
    assert (same.dtype, same.shape) == (array.dtype.newbyteorder("="), array.shape)
    assert same.tobytes() == array.astype(same.dtype).tobytes()


@pytest.mark.parametrize("scalar", [1, 1.0, -0.0, True, 1 - 2j, float("inf"), complex("nan"), 2**70])
def test_every_kind_of_field_comes_back(scalar: Any) -> None:
    stage = Stage(Path("a/b.txt"), "dce", holder=Stage(Path("c"), "outer"))
    whole = _Everything(
        Path("x y"),
        Outcome.FAILED,
        "two",
        float("-inf"),
        (3, 4, 5j, False),
        scalar,
        {7: "a"},
        np.eye(2),
        stage,
        "t",
    )
    same = _through_json(whole, _Everything)
    for field in attrs.fields(_Everything):
        before, after = getattr(whole, field.name), getattr(same, field.name)
        assert type(before) is type(after) and repr(before) == repr(after), field.name


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"outcome": "WORSE"}, KeyError),
        ({"word": "three"}, ValueError),
        ({"path": 5}, TypeError),
        ({"numbers": [1, 2.0]}, ValueError),
        ({"numbers": [1.5, 2.0, [0, 0], True]}, TypeError),
        ({"scalar": [9, 1]}, IndexError),
        ({"names": [[1]]}, ValueError),
        ({"array": {"element_type": "object", "shape": [1], "data": ""}}, KeyError),
        ({"array": {"element_type": "f32", "shape": [2], "data": "AAAA"}}, ValueError),
        ({"stage": "a text"}, TypeError),
        ({"unheard_of": 1}, KeyError),
        ({"stage": {"path": "a", "name": "b", "__class__": "os.system"}}, KeyError),
    ],
)
def test_data_of_another_kind_is_refused(change: dict[str, Any], error: type[Exception]) -> None:
    whole = _Everything(Path("x"), Outcome.PASSED, "one", 0.5, (3, 4, 5j, False), 1, {}, np.eye(2))
    with pytest.raises(error):
        decoded({**coded(whole, _Everything), **change}, _Everything)


def test_values_of_another_kind_are_refused() -> None:
    for value, kind in ((1.5, int), (True, int), ("a", float), ({}, Stage), (Stage, Stage), (np.array(["a"]), Array)):
        with pytest.raises(TypeError):
            coded(value, kind)


def test_a_check_comes_back_with_all_that_its_page_shows(tmp_path: Path) -> None:
    module = hloexec.parse(
        op("f32[4,3] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}", x="f32[4,50]", y="f32[50,3]")
    )
    folder = hloexec.record_golden(module, None, tmp_path / "m.golden").folder
    wrong = np.full((4, 3), np.float32(np.nan))
    check = hloexec.check_golden(folder, actual=wrong)
    same = _through_json(check, GoldenCheck)
    assert coded(same, GoldenCheck) == coded(check, GoldenCheck) and not same.passed
    assert str(same.comparison) == str(check.comparison) and same.golden == check.golden


def test_values_of_modules_come_back() -> None:
    value = (np.ones(2), (TOKEN, ()), np.zeros((), np.int8))
    assert repr(_through_json([value], list[Value])) == repr([value])


def test_inputs_in_any_form_travel() -> None:
    inputs = [{"w": (np.ones(2), 3), "b": None}, [1.5, True, 2j], np.float32(4), TOKEN]
    same = decoded_inputs(json.loads(json.dumps(coded_inputs(inputs))))
    assert repr(same) == repr([{"w": [np.ones(2), 3], "b": None}, [1.5, True, 2j], np.array(4, np.float32), TOKEN])
    with pytest.raises(hloexec.InputError, match=r"inputs hold .*object.*, which cannot travel to workers; "):
        coded_inputs([object()])
