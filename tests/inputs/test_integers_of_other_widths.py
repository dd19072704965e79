"""Integers as NumPy makes them, in 64 bits, for parameters of other integer types: taken where none is lost."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.cli import main
from hloexec.errors import HloError, InputError
from hloexec.language import literals

LABELS = np.array([[3, 0, -2], [7, 1, 2**31 - 1]])
"""NumPy's integers, and lists of Python's, have 64 bits."""


def identity(shape: str, other: str = "f32[2]") -> hloexec.Module:
    return hloexec.parse(
        f"HloModule m\nENTRY e {{ x = {other} parameter(0)\n y = {shape} parameter(1)\n c = {shape} copy(y)\n"
        f" ROOT r = ({other}, {shape}) tuple(x, c) }}"
    )


X = np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("shape", "given"),
    [
        ("s32[2,3]", LABELS),
        ("s32[2,3]", LABELS.T.copy().T),
        ("s32[3]", LABELS[0, ::-1]),
        ("u64[2]", np.array([0, 5])),
        ("s64[2]", np.array([2**63 - 1, 0], np.uint64)),
        ("s64[2]", np.array([-5, 2**31 - 1], np.int32)),
        ("u8[2]", np.array([0, 255])),
        ("s8[2]", np.array([127, 0], np.uint64)),
        ("s4[3]", np.array([-8, 0, 7])),
        ("u4[2]", np.array([15, 0], np.uint8)),
        ("s32[2]", np.array([-8, 7], ml_dtypes.int4)),
        ("s32[]", np.int64(-3)),
        ("s32[0]", np.zeros(0, np.int64)),
        ("s32[<=4]", np.arange(3)),
    ],
)
def test_integers_that_fit_are_taken_as_they_are(shape: str, given: Any, tmp_path: Path) -> None:
    module = identity(shape)
    declared = module.entry.parameter_shapes[1].element_type.storage  # type: ignore[union-attr]
    before = given.copy()
    for result in (
        hloexec.run(module, X, given),
        *hloexec.run_devices(module, [[X, given], [X, given]], partitions=2),
    ):
        assert result[1].dtype == declared  # type: ignore[index, union-attr]
        assert np.array_equal(result[1].astype(object), np.asarray(given).astype(object))  # type: ignore[index, union-attr]
    assert given.dtype == before.dtype and np.array_equal(given, before)
    if np.asarray(given).dtype.isbuiltin == 1:
        np.savez(tmp_path / "in.npz", X, given)
        np.savez(tmp_path / "named.npz", labels=given, images=X)
        for file in ("in.npz", "named.npz"):
            with pytest.warns(hloexec.HloWarning) if file == "named.npz" else nullcontext():
                loaded = literals.load_inputs(tmp_path / file, module.entry.parameters)[1]
            assert loaded.dtype == declared  # type: ignore[union-attr]
            assert np.array_equal(loaded.astype(object), np.asarray(given).astype(object))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("shape", "given", "message"),
    [
        (
            "s32[2,3]",
            np.where(LABELS == 1, 2**31, LABELS),
            r"\[1, 1\] .*is 2147483648.* s32 .*-2147483648 to 2147483647",
        ),
        ("u32[2]", np.array([0, -1]), r"\[1\] .*is -1.* u32 .*0 to 4294967295"),
        ("u64[2]", np.array([-1, -1]), r"\[0\] .*is -1"),
        ("s64[2]", np.array([1, 2**63], np.uint64), r"\[1\] .*is 9223372036854775808"),
        ("u4[2]", np.array([16, 0]), r"\[0\] .*is 16.* u4 .*0 to 15"),
        ("s32[]", np.int64(2**40), r"is 1099511627776"),
    ],
)
def test_the_first_that_does_not_fit_is_named(shape: str, given: Any, message: str, tmp_path: Path) -> None:
    module = identity(shape)
    with pytest.raises(InputError, match=message) as raised:
        hloexec.run(module, X, given)
    assert "parameter 1 (y)" in raised.value.message
    with pytest.raises(InputError, match=message):
        hloexec.record_golden(module, [X, given], tmp_path / "m.golden")
    np.savez(tmp_path / "in.npz", X, given)
    with pytest.raises(HloError, match=message) as refused:
        literals.load_inputs(tmp_path / "in.npz", module.entry.parameters)
    assert "'arr_1'" in refused.value.message


@pytest.mark.parametrize(
    ("shape", "given", "message"),
    [
        ("f32[2]", np.zeros(2), r"f64\[2\] was given; .*astype\(numpy.float32\)"),
        ("bf16[2]", np.zeros(2, np.float32), r"f32\[2\] was given; .*astype\(ml_dtypes.bfloat16\)"),
        ("f32[2]", np.zeros(2, np.int64), r"s64\[2\] was given; .*astype\(numpy.float32\)"),
        ("s32[2]", np.zeros(2), r"f64\[2\] was given$"),
        ("pred[2]", np.zeros(2, np.int64), r"s64\[2\] was given$"),
        ("s32[2]", np.zeros(2, np.bool_), r"pred\[2\] was given$"),
        ("s32[3]", np.zeros(2, np.int64), r"s64\[2\] was given$"),
    ],
)
def test_what_would_be_rounded_or_is_of_another_kind_is_refused(shape: str, given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        hloexec.run(identity(shape), X, given)


def test_of_integers_that_may_be_dropped_none_is_likelier(tmp_path: Path) -> None:
    """Labels of 64 bits, and a mask of 32 that jit has dropped, or the other way round."""
    module = identity("s32[4]")
    labels, mask = np.arange(4), np.ones(4, np.int32)
    np.savez(tmp_path / "in.npz", X, labels, mask)
    with pytest.raises(HloError, match="several ways"):
        literals.load_inputs(tmp_path / "in.npz", module.entry.parameters)
    with pytest.raises(HloError, match=r"hold 3 arrays, but computation e takes 2 inputs"):
        hloexec.run(module, {"x": X, "y1": labels}, mask)
    np.savez(tmp_path / "two.npz", images=labels, weights=X)
    with pytest.warns(hloexec.HloWarning, match="weights is x, images is y"):
        assert literals.load_inputs(tmp_path / "two.npz", module.entry.parameters)[1].dtype == np.int32  # type: ignore[union-attr]


def test_a_golden_and_the_command_line_take_them(empty_folder: Path) -> None:
    module = identity("s32[2,3]")
    Path("m.hlo").write_text(hloexec.format(module))
    golden = hloexec.record_golden(module, [X, LABELS], "m.golden")
    assert hloexec.check_golden(golden.folder).passed
    with np.load("m.golden/inputs.npz") as file:
        assert file["1"].dtype == np.int32
    np.save("labels.npy", LABELS)
    assert main("run m.hlo --input 1=labels.npy --save out.npz".split()) == 0
    with np.load("out.npz") as file:
        assert file["1"].dtype == np.int32 and np.array_equal(file["1"], LABELS)
