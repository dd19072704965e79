"""What `--json` prints: one record, of the schema that it names, whatever happens."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hloexec.cli import main
from hloexec.report.json.deriving import keys_of
from hloexec.report.json.schemas import classes_of, parts_of, printed_keys, printed_records
from tests.command_line import CommandLine
from tests.records import read_record
from tests.text.building import op

ADD = op("f32[2,3] add(x, y)", x="f32[2,3]", y="f32[2,3]")
SUBTRACT = ADD.replace("add(", "subtract(")
STRANGE = op("(c64[2], f32[2], pred[2], s8[0], token[]) tuple(c, x, p, e, t)", c="c64[2]", x="f32[2]", p="pred[2]", e="s8[0]", t="token[]")  # fmt: skip
UNKNOWN = op('f32[2] custom-call(x), custom_call_target="nobody"', x="f32[2]")
IN_A_BRANCH = (
    UNKNOWN.replace("ENTRY main", "known { x = f32[2] parameter(0)\n  ROOT y = f32[2] negate(x) }\nlacking")
    + """
ENTRY e { p = pred[] parameter(0)
  x = f32[2] parameter(1)
  ROOT r = f32[2] conditional(p, x, x), true_computation=lacking, false_computation=known }
"""
)
PASSED_ON = op("f32[2] add(x, c)", x="f32[2]").replace("  ROOT", "  c = f32[2] constant({...})\n  ROOT")


@pytest.fixture(autouse=True)
def folder(empty_folder: Path) -> Path:
    Path("add.hlo").write_text(ADD)
    Path("subtract.hlo").write_text(SUBTRACT)
    Path("strange.hlo").write_text(STRANGE)
    Path("unknown.hlo").write_text(UNKNOWN)
    Path("elided.hlo").write_text(PASSED_ON)
    Path("log.hlo").write_text(op("f32[2,3] log(x)", x="f32[2,3]"))
    Path("broken.hlo").write_text("HloModule m\nENTRY e {\n  ROOT x = f32[2] add(\n}\n")
    Path("unlike.hlo").write_text(ADD.replace("f32[2,3] add", "f32[2,4] add"))
    Path("faults.hlo").write_text(
        op("f32[3] add(a, x)", x="f32[2]").replace("  ROOT", "  a = f32[3] negate(x)\n  ROOT")
    )
    np.savez("a.npz", **{"0": np.array([1, np.nan, np.inf, 4], np.float32), "1": np.array([1 + 2j, 3])})
    np.savez("b.npz", **{"0": np.array([1, 2, 3, 4], np.float32), "1": np.array([1 + 2j, complex(np.nan, -np.inf)])})
    np.savez("c.npz", **{"0": np.zeros(3, np.float32), "2": np.array([True])})
    return empty_folder


@pytest.mark.slow_cases("ops --types-ops-0")
@pytest.mark.parametrize(
    ("line", "schema", "code"),
    [
        ("run add.hlo", "run", 0),
        ("run add.hlo --iterations 2 --print --against subtract.hlo", "run", 1),
        ("run strange.hlo --print --distribution special", "run", 0),
        ("trace log.hlo -o t", "trace", 0),
        ("trace add.hlo -o t --stats-only --select add", "trace", 0),
        ("nan log.hlo --range x=-2:-1", "nan", 1),
        ("nan add.hlo", "nan", 0),
        ("precision add.hlo --tolerance 0.1 --seeds 1 --held-back 1", "precision", 0),
        ("extract add.hlo --instruction root -o s", "extract", 0),
        ("compare a.npz a.npz", "compare", 0),
        ("compare a.npz b.npz", "compare", 1),
        ("compare a.npz c.npz", "compare", 1),
        ("compare a.npz b.npz --atol 3", "compare", 1),
        ("diff add.hlo add.hlo", "diff", 0),
        ("diff add.hlo subtract.hlo", "diff", 1),
        ("golden record add.hlo -o g.golden", "golden-record", 0),
        ("info add.hlo", "info", 0),
        ("info unknown.hlo --computations", "info", 0),
        ("info a.npz", "info-arrays", 0),
        ("plan add.hlo", "plan", 0),
        ("memory add.hlo", "memory", 0),
        ("ops", "ops", 0),
        ("ops --types", "ops", 0),
    ],
)
def test_records_are_of_their_schemas(line: str, schema: str, code: int, cli: CommandLine) -> None:
    record = cli.record(line, code=code)
    assert (record["schema"], record["version"]) == (f"hloexec.{schema}", 2)


def test_goldens_that_fail_and_that_are_broken_are_records_too(
    cli: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("right", "wrong", "broken"):
        assert main(["golden", "record", "add.hlo", "-o", f"g/{name}.golden"]) == 0
    Path("g/wrong.golden/expected.npz").write_bytes(Path("b.npz").read_bytes())
    Path("g/broken.golden/inputs.npz").unlink()
    capsys.readouterr()
    checks = cli.record("golden check g", code=2)["checks"]
    assert sorted(check["outcome"] for check in checks) == ["broken", "failed", "passed"]


@pytest.mark.parametrize("name", ["run", "trace -o t", "nan", "extract --instruction root -o s", "golden record -o g"])
def test_commands_that_run_say_how(name: str, cli: CommandLine) -> None:
    *words, options = name.partition(" ")[0], name.partition(" ")[2]
    if name.startswith("golden"):
        words, options = ["golden", "record"], "-o g"
    record = cli.record(*words, "add.hlo", *options.split(), "--seed", "7", "--numerics", "random-rounding:3")
    assert (record["seed"], record["numerics"]) == (7, "random-rounding:3")
    assert (record["file"], record["module"]) == ("add.hlo", "m")


def test_a_diff_says_how_it_ran_either_side(cli: CommandLine) -> None:
    record = cli.record("diff add.hlo add.hlo --seed 7 --numerics-after exact")
    keys = ("seed", "numerics_before", "numerics_after", "before_file", "after_module")
    assert [record[key] for key in keys] == [7, "reference", "exact", "add.hlo", "m"]


def test_info_says_what_only_branches_need(cli: CommandLine) -> None:
    Path("branch.hlo").write_text(IN_A_BRANCH)
    for name, is_conditional in (("unknown.hlo", False), ("branch.hlo", True)):
        (needed,) = cli.record("info", name)["unsupported"]
        assert (needed["name"], needed["is_conditional"]) == ("nobody", is_conditional)


def test_elements_that_json_has_no_numbers_for_keep_their_values(cli: CommandLine) -> None:
    first, second = cli.record("compare a.npz b.npz", code=1)["leaves"]
    assert {element["actual"] for element in first["measured"]["first"]} == {"nan", "inf"}
    assert [element["expected"] for element in second["measured"]["first"]] == [["nan", "-inf"]]
    assert first["measured"]["nans"] == {"both": 0, "actual_only": 1, "expected_only": 0}


@pytest.mark.parametrize(
    ("line", "code", "kind", "message", "place"),
    [
        ("run broken.hlo", 2, "parse", "expected an operand", ["broken.hlo", 4, 1]),
        ("run unlike.hlo", 2, "verification", "instruction 'root'", ["unlike.hlo", 7, 3]),
        ("run faults.hlo", 2, "verification", "has 2 faults", ["faults.hlo", 6, 3]),
        ("run missing.hlo", 2, "input", "cannot read missing.hlo", [None] * 3),
        ("run unknown.hlo", 1, "unsupported", "--unknown zeros", [None] * 3),
        ("nan unknown.hlo", 2, "unsupported", "--unknown zeros", [None] * 3),
        ("run add.hlo --memory-limit 1", 1, "resource", "B", [None] * 3),
        ("run add.hlo --seed x", 2, "usage", "'--seed'", [None] * 3),
        ("compare a.npz", 2, "usage", "Missing argument", [None] * 3),
        ("nonsense", 2, "usage", "No such command", [None] * 3),
        ("golden check nowhere", 2, "input", "nowhere", [None] * 3),
    ],
)
def test_errors_are_records_with_their_places(
    line: str, code: int, kind: str, message: str, place: list[Any], cli: CommandLine
) -> None:
    out, err = cli.ended(line, "--json", code=code)
    record = read_record(out)
    assert record["schema"] == "hloexec.error" and record["error"]["kind"] == kind
    assert message in record["error"]["message"] and record["error"]["message"].splitlines()[0] in err
    assert [record["error"][key] for key in ("file", "line", "column")] == place
    assert cli(line, code=code) == ""


def test_a_file_of_that_name_asks_for_no_json(cli: CommandLine) -> None:
    assert cli("run -- --json", code=2) == ""


def test_a_result_that_cannot_be_saved_is_an_error_alone(monkeypatch: pytest.MonkeyPatch, cli: CommandLine) -> None:
    from hloexec import InputError
    from hloexec.language import literals

    def fail(*_: object) -> None:
        raise InputError("the disk is full")

    monkeypatch.setattr(literals, "save", fail)
    assert cli.record("run add.hlo --save r.npz", code=2)["error"]["message"] == "the disk is full"


def test_warnings_are_in_the_record_and_on_standard_error(cli: CommandLine) -> None:
    out, err = cli.ended("run elided.hlo --json")
    (warning,) = read_record(out)["warnings"]
    assert warning.endswith("taken as zeros: c") and f"warning: {warning}\n" == err
    assert cli.record("run add.hlo")["warnings"] == []


def test_schemas_are_printed(cli: CommandLine) -> None:
    names = cli("schema").split()
    assert names == list(printed_records())
    for name in names:
        schema = json.loads(cli("schema", f"hloexec.{name}"))
        assert schema["title"] == f"hloexec.{name}" and not schema["additionalProperties"]
        parts = set(re.findall(r'"#/\$defs/([\w.]+)"', json.dumps(schema)))
        assert parts <= schema["$defs"].keys()
    assert "there is no record 'nonsense'; there are run, " in cli.complaint("schema nonsense")


def test_every_key_says_what_it_means() -> None:
    for name in printed_records():
        printed_once = [key.name for cls in classes_of(name) for key in keys_of(cls)]
        assert len(printed_once) == len({*printed_once}), name
        for cls in (*classes_of(name), *parts_of(printed_keys(name)).values()):
            for key in keys_of(cls):
                assert re.fullmatch(r"[A-Z0-9`].*\.", key.meaning), (cls, key.name)
