"""What is said of an element does not depend on numbers that have no part in it, however large or small they are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hloexec
from hloexec.tools.golden.checking import check_golden
from hloexec.tools.golden.recording import record_golden
from tests.drawing import examples

ROWS, COLUMNS = 12, 24
ADD = "add { a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b) }\n"
DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
WIDE = f"f32[{ROWS},{COLUMNS}]"
OPERATIONS = "add subtract multiply maximum dot sum tanh square centre select".split()
SWAPS = {"add": "subtract", "subtract": "add", "multiply": "add", "maximum": "minimum"}


@st.composite
def programs(draw):
    """A module whose rows have nothing to do with one another, and its lines that a fault may change."""
    lines, values = [], ["x", "y"]
    for number in range(draw(st.integers(2, 7))):
        name, operation = f"v{number}", draw(st.sampled_from(OPERATIONS))
        lhs, rhs = values[-1], draw(st.sampled_from(values))
        if operation == "dot":
            lines.append(f"{name} = {WIDE} dot({lhs}, w), {DOT}")
        elif operation in ("sum", "centre"):
            lines.append(f"{name}_s = f32[{ROWS}] reduce({lhs}, zero), dimensions={{1}}, to_apply=add")
            lines.append(f"{name}_b = {WIDE} broadcast({name}_s), dimensions={{0}}")
            lines.append(f"{name} = {WIDE} {'subtract' if operation == 'centre' else 'add'}({lhs}, {name}_b)")
        elif operation == "tanh":
            lines.append(f"{name} = {WIDE} tanh({lhs})")
        elif operation == "square":
            lines.append(f"{name} = {WIDE} multiply({lhs}, {lhs})")
        elif operation == "select":
            lines.append(f"{name}_p = pred[{ROWS},{COLUMNS}] compare({lhs}, {rhs}), direction=LT")
            lines.append(f"{name} = {WIDE} select({name}_p, {lhs}, {rhs})")
        else:
            lines.append(f"{name} = {WIDE} {operation}({lhs}, {rhs})")
        values.append(name)
    lines.append(f"r = {WIDE} add({values[-1]}, y)")
    return lines


def module_of(lines):
    body = "\n  ".join(
        [
            f"x = {WIDE} parameter(0)",
            f"y = {WIDE} parameter(1)",
            f"w = f32[{COLUMNS},{COLUMNS}] parameter(2)",
            "u = f32[5] parameter(3)",
            "zero = f32[] constant(0)",
            *lines,
            "q = f32[5] sine(u)",
            f"ROOT t = ({WIDE}, f32[5]) tuple(r, q)",
        ]
    )
    return hloexec.parse(f"HloModule m\n{ADD}ENTRY e {{\n  {body}\n}}\n")


def inputs_of(seed, row, scale):
    """Arguments of which all rows but one, and the other leaf, are so many times as large."""
    rng = np.random.default_rng(seed)
    x, y = (rng.standard_normal((ROWS, COLUMNS)).astype(np.float32) for _ in range(2))
    others = np.arange(ROWS) != row
    factor = np.where(others, np.float32(scale), np.float32(1)).astype(np.float32)[:, None]
    w = (rng.standard_normal((COLUMNS, COLUMNS)) / COLUMNS**0.5).astype(np.float32)
    return [x * factor, y * factor, w, rng.standard_normal(5).astype(np.float32) * np.float32(scale)]


def said_of(leaf, row):
    """Which elements of a row a comparison calls different: it names the first of those beyond tolerance, and counts
    them all."""
    return leaf.mismatches, {element.index for element in leaf.first if element.index[0] == row}


CASES = {"seed": st.integers(0, 1000), "row": st.integers(0, ROWS - 1), "column": st.integers(0, COLUMNS - 1)}


@settings(max_examples=examples(25), deadline=None)
@given(lines=programs(), **CASES)
def test_a_fault_in_an_element_is_seen_whatever_the_other_rows_are(lines, seed, row, column):
    module = module_of(lines)
    said = []
    for scale in (1.0, 1e-20, 1e20):
        inputs = inputs_of(seed, row, scale)
        with np.errstate(all="ignore"):
            expected = hloexec.run(module, *inputs)
            actual = expected[0].copy()
            size = np.abs(actual[row]).max() + np.float32(1e-3)
            actual[row, column] += np.float32(0.5) * size
            found = hloexec.compare((actual, expected[1]), expected, module=module, inputs=inputs)
            clean = hloexec.compare(expected, expected, module=module, inputs=inputs)
        said.append((found.verdict.value, *said_of(found.leaves[0], row), clean.verdict.value))
    assert said == [said[0]] * 3
    assert said[0] == ("different", 1, {(row, column)}, "equal")


@settings(max_examples=examples(15), deadline=None)
@given(lines=programs(), seed=st.integers(0, 1000), row=st.integers(0, ROWS - 1), data=st.data())
def test_a_wrong_instruction_is_found_whatever_the_other_rows_are(lines, seed, row, data):
    swappable = [n for n, line in enumerate(lines) for old in SWAPS if f" {old}(" in line]
    number = data.draw(st.sampled_from(swappable))
    old = next(old for old in SWAPS if f" {old}(" in lines[number])
    wrong = [*lines[:number], lines[number].replace(f" {old}(", f" {SWAPS[old]}("), *lines[number + 1 :]]
    before, after = module_of(lines), module_of(wrong)
    for scale in (1.0, 1e-20, 1e20):
        inputs = inputs_of(seed, row, scale)
        with np.errstate(all="ignore"):
            sides = [hloexec.run(module, *inputs)[0][row] for module in (before, after)]
            found = hloexec.diff(before, after, inputs)
        is_changed = bool((np.abs(sides[0] - sides[1]) > 1e-2 * np.abs(sides[0]).max()).any())
        if is_changed:
            assert found.verdict == "differ"
            assert found.findings


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e20])
@pytest.mark.parametrize("seed", range(3))
def test_a_golden_says_the_same_of_a_row_whatever_the_others_are(tmp_path, seed, scale):
    lines = [
        f"a = {WIDE} dot(x, w), {DOT}",
        f"b = {WIDE} add(a, y)",
        f"s = f32[{ROWS}] reduce(b, zero), dimensions={{1}}, to_apply=add",
        f"c = {WIDE} broadcast(s), dimensions={{0}}",
        f"r = {WIDE} subtract(b, c)",
    ]
    wrong = [line.replace("add(a, y)", "subtract(a, y)") for line in lines]
    golden = record_golden(module_of(lines), inputs_of(seed, 3, scale), tmp_path / "m.golden").folder
    assert check_golden(golden).passed
    found = check_golden(golden, module=module_of(wrong))
    assert not found.passed
    assert found.comparison.leaves[0].mismatches >= ROWS * COLUMNS * 0.9
    assert found.comparison.leaves[1].verdict.value == "equal"
