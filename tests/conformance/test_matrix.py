"""The matrix: every opcode has a cell, a slice of it holds, and what does not hold is found."""

import re
from pathlib import Path

import attrs
import mpmath
import numpy as np
import pytest
from click.testing import CliRunner

from conformance import bounds
from conformance.__main__ import main
from conformance.cell import EXACT, TYPES, Accumulated, Correct, Example
from conformance.cells import GENERATORS
from conformance.checking import check_result, same_bits
from conformance.corpus import examine, files_of
from conformance.known import KNOWN
from conformance.matrix import Cell, Status, examples_of, run_matrix
from conformance.summary import markdown
from conformance.worker import Worker, XlaRefused
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.ops.registry import OPCODES
from hloexec.tools.executing.engines import opened_engine
from tests.drawing import examples
from tests.ops.against_xla import needs_xla

SLICE = (
    "add exponential sort dot all-gather power pad gather scatter reduce ragged-dot while async-done "
    "rng-bit-generator"
).split()  # fmt: skip


def test_every_opcode_has_a_cell() -> None:
    assert {*GENERATORS} ^ {*OPCODES} == set(), "conformance/cells has one for each"
    for opcode in GENERATORS:
        assert any(examples_of(opcode, entry.name, 1, 0) for entry in TYPES), opcode


def test_examples_depend_on_the_seed_and_on_nothing_else() -> None:
    first, again, other = (examples_of("reshape", "f32", 3, seed) for seed in (1, 1, 2))
    assert [str(example) for example in first] == [str(example) for example in again]
    assert [str(example) for example in first] != [str(example) for example in other]


@pytest.mark.slow
@needs_xla
def test_a_slice_of_the_matrix_holds() -> None:
    cells = run_matrix(SLICE[: examples(len(SLICE))], "pred s4 f32 c64".split(), examples=1, seed=7, workers=1)
    failed = [cell.first(Status.FAIL) for cell in cells if cell.status is Status.FAIL]
    assert not failed, "\n".join(f"{finding.example}: {finding.message}" for finding in failed)
    statuses = {(cell.opcode, cell.element_type): cell.status for cell in cells}
    assert statuses["add", "f32"] is Status.PASS
    assert statuses["exponential", "s4"] is Status.REFUSED
    text = markdown(cells, 1, 7)
    assert "| exponential | – |" in text and f"{len(cells)} cells" in text
    # Beside a page of another jaxlib, what was otherwise there is listed, and nothing else.
    add = next(line for line in text.splitlines() if line.startswith("| add |"))
    other = re.sub(r"jaxlib [\d.]+", "jaxlib 0.9.1", text).replace("| exponential | – |", "| exponential | ○ |")
    beside = markdown(cells, 1, 7, other.replace(f"{add}\n", "")).partition("## Beside jaxlib 0.9.1\n")[2]
    rows = [line for line in beside.partition("\n## ")[0].splitlines() if line.startswith("| ")][2:]
    assert rows == ["| exponential | ○ | – | pred |"]
    assert "does not know: add." in beside


def test_wrong_results_are_found() -> None:
    values = np.linspace(0, 1, 8, dtype=np.float32)
    exact = Example("exponential", "f32", "f32[8]", "exponential($0)", (values,), check=Correct(np.exp))
    right = np.exp(values.astype(np.float64)).astype(np.float32)
    wrong = right.copy()
    wrong[3] *= np.float32(1 + 2**-19)
    assert check_result(exact, [right], [right], None, None).is_right
    outcome = check_result(exact, [wrong], [right], None, None)
    assert outcome.wrong[0].tolist() == [number == 3 for number in range(8)]
    copied = attrs.evolve(exact, check=EXACT)
    assert not check_result(copied, [np.negative(values)], [values], None, None).is_right
    assert "leaves" in check_result(copied, [values, values], [values], None, None).message


def test_a_sum_beyond_its_bound_is_found() -> None:
    summed = Example("reduce", "f32", "f32[]", "reduce($0, $1)", check=Accumulated(4))
    exact, magnitude = np.array(1.0), np.array(3.0)
    for error, is_right in ((6 * 3 * 2.0**-24, True), (16 * 3 * 2.0**-24, False)):
        value = np.array(1.0 + error, np.float32)
        assert check_result(summed, [value], None, [exact], [magnitude]).is_right == is_right


@pytest.mark.parametrize("name", "f32 f64 bf16 f16 f8e4m3fn f8e5m2fnuz f4e2m1fn f8e8m0fnu".split())
def test_steps_count_representable_values(name: str) -> None:
    entry = ELEMENT_TYPES[name]
    one = np.array([1.0]).astype(entry.storage)
    pattern = one.view(f"u{one.itemsize}")
    for count in (1, 2):
        other = (pattern + count).astype(pattern.dtype).view(entry.storage)
        assert bounds.steps(other, one)[0] == count
    if entry.has_negative_zero:
        zeros = np.array([0.0, -0.0]).astype(entry.storage)
        assert bounds.steps(zeros, zeros[::-1]).tolist() == [np.inf, np.inf]
    if entry.has_nan:
        nan = np.array([np.nan]).astype(entry.storage)
        assert bounds.steps(nan, nan)[0] == 0 and bounds.steps(nan, one)[0] == np.inf


def test_mpmath_numbers_are_rounded_once() -> None:
    third = mpmath.mpf(1) / 3
    assert bounds.rounded([third], ELEMENT_TYPES["f32"])[0] == np.float32(1 / 3)


def test_bits_below_the_width_of_a_type_do_not_count() -> None:
    storage = ELEMENT_TYPES["s4"].storage
    low, high = (np.array([pattern], np.uint8).view(storage) for pattern in (0x05, 0xF5))
    assert same_bits(low, high).all()


def test_known_differences_say_who_is_right_and_have_names_of_their_own() -> None:
    assert len({known.name for known in KNOWN}) == len(KNOWN)
    assert all(len(known.reason) > 60 and known.reason.endswith(".") for known in KNOWN)


def _serve_and_die(connection: object, log: str) -> None:
    import os

    with open(log, "w") as file:
        file.write("F1121 something.cc:3] Check failed: everything\n")
    connection.recv()  # type: ignore[attr-defined]
    os.abort()


@pytest.mark.slow
def test_a_process_that_dies_is_reported_and_replaced() -> None:
    worker = Worker(serve=_serve_and_die)
    for _ in range(2):
        with pytest.raises(XlaRefused, match="Check failed: everything") as caught:
            worker.run("anything")
        assert caught.value.crashed
    worker.close()


@needs_xla
def test_a_folder_of_files_is_compared(tmp_path: Path) -> None:
    good = "HloModule m\n\nENTRY e {\n  a = f32[4] parameter(0)\n  ROOT r = f32[4] exponential(a)\n}\n"
    (tmp_path / "good.hlo").write_text(good)
    (tmp_path / "bad.txt").write_text(good.replace("exponential(a)", "exponential(b)"))
    (tmp_path / "notes.txt").write_text("nothing of the kind")
    with opened_engine("processes:2") as engine:
        reports = {report.path.name: report for report in examine(files_of(tmp_path), engine)}
    assert set(reports) == {"good.hlo", "bad.txt"}
    assert reports["good.hlo"].agrees and 0 <= reports["good.hlo"].worst_steps <= 4
    assert reports["good.hlo"].leaves == 1 and reports["good.hlo"].path == tmp_path / "good.hlo"
    assert set(reports["bad.txt"].failures) == {"XLA parse", "hloexec parse"}
    lines = {
        CliRunner().invoke(main, ["corpus", str(tmp_path), *options]).output
        for options in (["--workers", "2"], ["--executor", "concurrent.futures:ThreadPoolExecutor"])
    }
    assert len(lines) == 1 and "2 files: 1 agree, 0 differ, 1 fail" in lines.pop()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--opcodes frobnicate", "frobnicate: no opcode"),
        ("--types f31,f32", "f31: no element type"),
        ("--types ,", "an empty list"),
        ("--examples 0", "not in the range"),
        ("--examples x", "not a valid integer"),
        ("--workers 0", "not in the range"),
        ("corpus no-such-folder", "does not exist"),
        ("corpus .", "holds no HLO text"),
        ("corpus . --workers 0", "not in the range"),
        ("verdicts --draws 0", "not in the range"),
        ("verdicts --into no-such-page.md", "does not exist"),
        ("frobnicate", "No such command"),
    ],
)
def test_wrong_arguments_are_refused(arguments: str, message: str, empty_folder: Path) -> None:
    result = CliRunner().invoke(main, arguments.split())
    assert result.exit_code != 0 and message in result.output


def test_an_executor_that_is_none_is_refused(empty_folder: Path) -> None:
    Path("m.hlo").write_text("HloModule m")
    for options, message in (
        (["--executor", "nobody"], "is none of processes:N"),
        (["--executor", "processes:2", "--workers", "2"], "leave it out"),
    ):
        result = CliRunner().invoke(main, ["corpus", ".", *options])
        assert result.exit_code == 1 and message in result.output, result.output


def test_a_cell_has_the_status_of_its_worst_example() -> None:
    example = examples_of("add", "f32", 1, 0)[0]
    from conformance.matrix import Finding

    cell = Cell("add", "f32", [Finding(example, status) for status in (Status.PASS, Status.KNOWN, Status.XLA_CANNOT)])
    assert cell.status is Status.KNOWN
