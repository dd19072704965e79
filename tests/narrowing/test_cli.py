"""`hloexec precision`: the report, the module it writes, and its inputs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import hloexec
from hloexec.cli import main
from tests.command_line import CommandLine
from tests.narrowing.test_narrow import CANCELLING, LAYERS, STEP
from tests.records import read_record

SCRIPT = """
import numpy as np

def make(module, seed):
    generator = np.random.default_rng(seed)
    return [generator.normal(size=shape.dimensions).astype("f4") for shape in module.entry.parameter_shapes]

def fixed(module):
    return [np.ones(shape.dimensions, "f4") for shape in module.entry.parameter_shapes]
"""


@pytest.fixture(autouse=True)
def folder(empty_folder: Path) -> Path:
    Path("layers.hlo").write_text(LAYERS)
    Path("step.hlo").write_text(STEP)
    Path("cancelling.hlo").write_text(CANCELLING)
    Path("inputs.py").write_text(SCRIPT)
    return empty_folder


def test_report_says_what_is_narrowed_what_may_not_be_and_why(cli: CommandLine) -> None:
    out = cli("precision cancelling.hlo --tolerance 0.05 --range 0=0.01:0.05")
    assert "not even alone" in out and "%cosine" in out
    assert "changes output value" in out
    assert "f32 → bf16" in out


def test_module_that_is_written_runs(cli: CommandLine) -> None:
    assert "written to mixed.hlo" in cli("precision layers.hlo --tolerance 1 -o mixed.hlo")
    assert "bf16[8,16]" in Path("mixed.hlo").read_text()
    cli("run mixed.hlo")


def test_module_that_cannot_be_written_is_printed(folder: Path, cli: CommandLine) -> None:
    arguments = "precision layers.hlo --tolerance 1 --held-back 0 -o missing/narrow.hlo".split()
    said = cli.ended(*arguments, code=2)
    assert "cannot write 'missing/narrow.hlo'" in said.err
    assert hloexec.parse(said.out).entry.root.shape == hloexec.parse(LAYERS).entry.root.shape and "bf16" in said.out
    assert json.loads(cli(*arguments, "--json", code=2))["schema"] == "hloexec.error"


def test_outputs_that_are_not_numbers_are_warned_of(folder: Path, cli: CommandLine) -> None:
    x = np.ones((8, 16), np.float32)
    weights = np.ones((16, 16), np.float32), np.ones((16, 4), np.float32)
    for rows, message in ((1, "4 of 32 elements"), (8, "all elements")):
        x[:rows] = np.nan
        np.savez("inputs.npz", x, *weights)
        options = "--tolerance 1 --held-back 0 --inputs inputs.npz".split()
        assert f"warning: of output value, {message} are NaN or infinite" in cli.complaint(
            "precision layers.hlo", *options, code=0
        )


def test_record_is_of_its_schema(cli: CommandLine) -> None:
    record = read_record(cli("precision step.hlo --tolerance 0.1 --steps 3 --seeds 2 --held-back 2 --json"))
    assert record["schema"] == "hloexec.precision"
    pairs = [("1", "0"), ("2", "1")]
    assert record["carried"]["pairs"] == [{"output": output, "parameter": parameter} for output, parameter in pairs]
    assert (record["steps"], record["input_count"], record["held_back_count"]) == (3, 2, 2)
    assert {each["instruction"] for each in record["instructions"]} >= {"guess", "gradient"}


def test_script_that_takes_a_seed_gives_inputs_for_each(cli: CommandLine) -> None:
    command = "precision layers.hlo --tolerance 1 --inputs inputs.py:make --seeds 2 --held-back 1"
    assert "2 inputs, checked on 1 others" in cli(command).replace("\n", " ")


def test_scripts_of_other_commands_are_given_the_seed_too(cli: CommandLine) -> None:
    printed = []
    for seed in (3, 3, 4):
        printed.append(
            read_record(cli(f"run layers.hlo --inputs inputs.py:make --seed {seed} --json"))["inputs"][0]["hash"]
        )
    assert printed[0] == printed[1] != printed[2]


def test_inputs_that_no_seed_changes_are_one(cli: CommandLine) -> None:
    assert "1 input, none held back" in cli("precision layers.hlo --tolerance 1 --inputs inputs.py:fixed")


def test_several_files_are_several_inputs(cli: CommandLine) -> None:
    module = hloexec.parse(LAYERS)
    for number in range(3):
        values = hloexec.random_inputs(module, number)
        np.savez(f"{number}.npz", **{str(place): value for place, value in enumerate(values)})
    files = " ".join(f"--inputs {number}.npz" for number in range(3))
    assert "2 inputs, checked on 1 others" in cli(f"precision layers.hlo --tolerance 1 {files}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "Missing option '--tolerance'"),
        ("--tolerance 0", "--tolerance must be a finite number above 0"),
        ("--tolerance nan", "--tolerance must not be negative or NaN"),
        ("--tolerance much", "'much' is not a valid float"),
        ("--tolerance 1 --type f33", "--type must be one of"),
        ("--tolerance 1 --kind sum", "'sum' is not one of"),
        ("--tolerance 1 --output-tolerance 0", "not of the form"),
        ("--tolerance 1 --output-tolerance 7=1", "--output-tolerance names '7'"),
        ("--tolerance 1 --output-tolerance value=x", "'x' is not a number"),
        ("--tolerance 1 --only-output 4", "--only-output names '4'"),
        ("--tolerance 1 --carry value=0", "give --steps, too"),
        ("--tolerance 1 --steps 2", "--carry says which output becomes which parameter"),
        ("--tolerance 1 --inputs missing.npz", "missing.npz"),
        ("--tolerance 1 --inputs inputs.py:nothing", "has no function nothing"),
        ("--tolerance 1 -o nowhere/mixed.hlo", "cannot write"),
        ("--tolerance 1 --margin 0", "--margin must be above 0"),
    ],
)
def test_wrong_options_are_explained(options: str, message: str, cli: CommandLine) -> None:
    assert message in " ".join(cli.complaint(f"precision layers.hlo {options}").split())


def test_module_without_floats_is_refused(cli: CommandLine) -> None:
    Path("m.hlo").write_text("HloModule m\nENTRY e { x = s32[4] parameter(0) ROOT y = s32[4] add(x, x) }")
    assert "no contraction or elementwise instruction on floats" in cli.complaint("precision m.hlo --tolerance 1")


def test_optimized_modules_are_narrowed_within_their_fusions() -> None:
    example = Path(__file__).parents[2] / "examples" / "attention.optimized.hlo"
    shutil.copy(example, "optimized.hlo")
    assert main("precision optimized.hlo --tolerance 1 --seeds 1 --held-back 1 -o mixed.hlo".split()) == 0
    module = hloexec.load("mixed.hlo")
    hloexec.verify(module)
    fused = [each for each in module if each.name != module.entry_name and "fused" in each.name]
    assert any("bf16" in str(instruction.shape) for each in fused for instruction in each)
