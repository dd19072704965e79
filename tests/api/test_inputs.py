"""Inputs: every function takes them under the same name, in the same place and in the same forms."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec

SUBTRACT = """HloModule subtract
ENTRY e { x.1 = f32[4] parameter(0)
  y = f32[4] parameter(1)
  ROOT z = f32[4] subtract(x.1, y) }
"""
SWAP = """HloModule swap
ENTRY e { p = (f32[4], f32[4]) parameter(0)
  q = (f32[4], (f32[4])) parameter(1)
  a = f32[4] get-tuple-element(p), index=0
  b = f32[4] get-tuple-element(q), index=0
  ROOT z = f32[4] subtract(a, b) }
"""
ONE_PAIR = """HloModule one_pair
ENTRY e { p = (f32[4], f32[4]) parameter(0)
  a = f32[4] get-tuple-element(p), index=0
  b = f32[4] get-tuple-element(p), index=1
  ROOT z = f32[4] subtract(a, b) }
"""
NOTHING = "HloModule nothing\nENTRY e { ROOT z = f32[4] constant({1, 2, 3, 4}) }\n"
X, Y = np.arange(4, dtype=np.float32), np.full(4, 0.5, np.float32)
MODULE = hloexec.parse(SUBTRACT)

FORMS: dict[str, Any] = {
    "a list": [X, Y],
    "a tuple": (X, Y),
    "a mapping by name": {"y": Y, "x.1": X},
    "a mapping by name with a percent sign": {"%y": Y, "%x.1": X},
    "a mapping by number": {1: Y, 0: X},
    "a mapping by number as text": {"0": X, "y": Y},
    "a list of one list": [[X, Y]],
    "a tuple of one tuple": ((X, Y),),
    "a list of one mapping": [{"y": Y, "x.1": X}],
}
RUNS: dict[str, Callable[[Any, Path], Any]] = {
    "run": lambda inputs, _: hloexec.run(MODULE, inputs),
    "run_devices": lambda inputs, _: hloexec.run_devices(MODULE, inputs)[0],
    "trace": lambda inputs, folder: _traced(hloexec.trace(MODULE, inputs, folder / "trace")),
    "extract": lambda inputs, _: hloexec.extract(MODULE, inputs, "z").expected[0],
    "record_golden": lambda inputs, folder: _expected(hloexec.record_golden(MODULE, inputs, folder / "m.golden")),
    "shard_inputs": lambda inputs, _: hloexec.run(MODULE, *hloexec.shard_inputs(MODULE, inputs)[0]),
}
"""What functions give of X − Y."""


def _traced(trace: hloexec.Trace) -> Any:
    return trace.value(trace.find("z"))


def _expected(golden: hloexec.Golden) -> Any:
    with np.load(golden.folder / "expected.npz") as file:
        return file[file.files[0]]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("function", RUNS)
def test_each_function_takes_each_form(function: str, form: str, tmp_path: Path) -> None:
    assert_array_equal(RUNS[function](FORMS[form], tmp_path), X - Y)


@pytest.mark.parametrize("form", FORMS)
def test_functions_that_compare_take_each_form(form: str, tmp_path: Path) -> None:
    inputs = FORMS[form]
    assert hloexec.diff(MODULE, MODULE, inputs).verdict == "agree"
    assert hloexec.find_nan(MODULE, inputs).finding is None
    off = (X - Y) * np.float32(1 + 2**-20)
    comparison = hloexec.compare(off, X - Y, module=MODULE, inputs=inputs)
    assert comparison.leaves[0].tolerance.factor > 0  # was measured on the inputs
    for stage in ("before_optimizations", "cpu_after_optimizations"):
        (tmp_path / f"module_0001.subtract.{stage}.txt").write_text(SUBTRACT + "\n" * len(stage))
    assert hloexec.diff_folders(tmp_path, inputs=inputs).outcome == "agree"


@pytest.mark.parametrize(
    ("text", "inputs"),
    [
        (SWAP, [(X, X), (Y, (X,))]),
        (SWAP, [[X, X], [Y, [X]]]),
        (SWAP, [[(X, X), (Y, (X,))]]),
        (SWAP, {"p": (X, X), "q": (Y, (X,))}),
        (ONE_PAIR, [(X, Y)]),
        (ONE_PAIR, [[X, Y]]),
        (ONE_PAIR, [[(X, Y)]]),
        (ONE_PAIR, ((X, Y),)),
        (ONE_PAIR, {"p": [X, Y]}),
    ],
)
def test_parameters_that_are_tuples_are_told_from_devices(text: str, inputs: Any) -> None:
    module = hloexec.parse(text)
    assert_array_equal(hloexec.run(module, inputs), X - Y)
    assert_array_equal(hloexec.run_devices(module, inputs)[0], X - Y)
    assert hloexec.diff(module, module, inputs).verdict == "agree"


def test_a_run_takes_values_one_by_one_too() -> None:
    assert_array_equal(hloexec.run(MODULE, X, Y), X - Y)
    assert_array_equal(hloexec.run(hloexec.parse(SWAP), (X, X), (Y, (X,))), X - Y)
    assert_array_equal(hloexec.run(hloexec.parse(ONE_PAIR), (X, Y)), X - Y)


@pytest.mark.parametrize("inputs", [[], (), {}, [[]], [()], [{}]])
def test_a_module_without_parameters_takes_nothing_in_each_form(inputs: Any) -> None:
    module = hloexec.parse(NOTHING)
    assert hloexec.run(module).tolist() == hloexec.run(module, inputs).tolist() == [1, 2, 3, 4]
    assert hloexec.run_devices(module, inputs)[0].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("second", [[Y, X], (Y, X), {"y": X, "x.1": Y}])
def test_each_device_has_inputs_in_a_form_of_its_own(second: Any) -> None:
    first, other = hloexec.run_devices(MODULE, [[X, Y], second], replicas=2)
    assert_array_equal(first, X - Y)
    assert_array_equal(other, Y - X)


def test_one_set_of_inputs_serves_all_devices() -> None:
    for inputs in FORMS.values():
        for result in hloexec.run_devices(MODULE, inputs, replicas=3):
            assert_array_equal(result, X - Y)


def test_none_draws_the_inputs_by_the_seed(tmp_path: Path) -> None:
    x, y = hloexec.random_inputs(MODULE, seed=5)
    assert_array_equal(hloexec.run_devices(MODULE, None, seed=5)[0], x - y)
    assert_array_equal(hloexec.extract(MODULE, None, "z", seed=5).expected[0], x - y)
    assert_array_equal(_traced(hloexec.trace(MODULE, None, tmp_path / "trace", seed=5)), x - y)
    assert_array_equal(_expected(hloexec.record_golden(MODULE, None, tmp_path / "m.golden", seed=5)), x - y)


def test_inputs_have_one_name_and_stand_behind_the_modules() -> None:
    for name in "diff extract find_nan record_golden run run_devices shard_inputs trace".split():
        parameters = list(inspect.signature(getattr(hloexec, name)).parameters)
        assert parameters[: parameters.index("inputs")] in (["module"], ["before", "after"]), name
    assert "inputs" in inspect.signature(hloexec.compare).parameters
    assert "inputs" in inspect.signature(hloexec.diff_folders).parameters


def test_goldens_of_tuples_given_as_lists_are_checked(tmp_path: Path) -> None:
    golden = hloexec.record_golden(hloexec.parse(SWAP), [[X, X], [Y, [X]]], tmp_path / "m.golden")
    assert hloexec.check_golden(golden.folder).passed
