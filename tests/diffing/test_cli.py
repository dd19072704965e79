"""`hloexec diff` on the command line: what it prints, what it returns, and what it refuses."""

import shlex
from pathlib import Path

import pytest

from hloexec.cli import main
from tests.command_line import CommandLine
from tests.records import read_record
from tests.report.needs import require_report_packages

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
_MODULE = """HloModule small

ENTRY main {
  x = f32[4,6] parameter(0)
  y = f32[4,6] parameter(1)
  difference = f32[4,6] subtract(x, y)
  product = f32[4,6] multiply(difference, x)
  ROOT both = (f32[4,6], f32[4,6]) tuple(product, difference)
}
"""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A module, and others by what is wrong with them."""
    texts = {
        "right": _MODULE,
        "wrong": _MODULE.replace("subtract(x, y)", "subtract(y, x)"),
        "nested": _MODULE.replace("(f32[4,6], f32[4,6]) tuple", "((f32[4,6], f32[4,6])) tuple")
        .replace("tuple(product, difference)", "tuple(inner)")
        .replace("  ROOT", "  inner = (f32[4,6], f32[4,6]) tuple(product, difference)\n  ROOT"),
        "fewer results": _MODULE.replace(
            "(f32[4,6], f32[4,6]) tuple(product, difference)", "(f32[4,6]) tuple(product)"
        ),
        "other parameters": _MODULE.replace("[4,6]", "[4,8]"),
        "other type": _MODULE.replace("f32", "f64"),
        "more devices": _MODULE.replace("HloModule small", "HloModule small, replica_count=2"),
        "broken": _MODULE.replace("subtract(x, y)", "subtract(x, "),
    }
    found = {}
    for name, text in texts.items():
        path = tmp_path / f"{name.replace(' ', '_')}.hlo"
        path.write_text(text)
        found[name] = str(path)
    return found


def test_the_verdict_comes_first_and_the_next_command_last(files: dict[str, str], cli: CommandLine) -> None:
    lines = cli("diff", files["right"], files["wrong"], "--seed", "3", code=1).splitlines()
    assert lines[0].startswith("%difference is to blame: 24 of 24 elements off")
    assert lines[-1] == (
        f"  hloexec extract {shlex.quote(files['wrong'])} --instruction difference --in main -o difference.slice --seed 3"
    )


@pytest.mark.parametrize(
    ("after", "line"),
    [
        # Of 4 · 2, 1 · 1 and 4 − 2, 1 − 1, the second is 2.5 in place of 2.
        ("y = f32[2] add(d, c)\n  ROOT t = (f32[2], f32[2]) tuple(p, y)", "results: 1 of 2 off; output 1 by up to"),
        ("ROOT t = (f32[2], f32[2]) tuple(p, d)", ""),
    ],
)
@pytest.mark.parametrize("has_page", [False, True])
def test_the_first_lines_say_by_how_much_the_results_differ(
    has_page: bool, after: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if has_page:
        require_report_packages()
    text = """HloModule m
ENTRY main {
  x = f32[2] constant({4, 1})
  z = f32[2] constant({2, 1})
  c = f32[2] constant({0.5, 0})
  d = f32[2] subtract(x, z)
  p = f32[2] multiply(x, z)
  BODY
}
"""
    (tmp_path / "a.hlo").write_text(text.replace("BODY", "ROOT t = (f32[2], f32[2]) tuple(p, d)"))
    (tmp_path / "b.hlo").write_text(text.replace("BODY", after))
    paths = [str(tmp_path / "a.hlo"), str(tmp_path / "b.hlo")]
    page = tmp_path / "page.html"
    assert main(["diff", *paths, *(["--html", str(page)] if has_page else [])]) == bool(line)
    lines = capsys.readouterr().out.splitlines()
    shown = page.read_text() if has_page else ""
    main(["diff", *paths, "--json"])
    largest = read_record(capsys.readouterr().out)["largest_difference"]
    if not line:
        assert largest is None and lines[1] == "" and "results:" not in shown
        return
    # 2.5 in place of 2: a quarter of it, 2²¹ steps of 2⁻²².
    expected = f"{line} 0.25 relative, 0.5 absolute, 2.1e+06 ULP of f32: 1 of 2 elements not bit for bit"
    assert lines[1].startswith(expected) and (expected in shown or not has_page)
    assert [largest[key] for key in "label max_relative_error max_absolute_error max_ulps".split()] == [
        "1",
        0.25,
        0.5,
        2.0**21,
    ]


def test_modules_that_agree_exit_with_0(files: dict[str, str], cli: CommandLine) -> None:
    assert cli("diff", files["right"], files["right"]).startswith(
        "agree: 2 of 2 results bit for bit, 2 of 2 values found"
    )


def test_tuples_that_nest_otherwise_are_paired_and_mentioned(files: dict[str, str], cli: CommandLine) -> None:
    assert "the results nest otherwise; they are paired array by array" in cli("diff", files["right"], files["nested"])


def test_json_holds_the_findings_and_what_matches(files: dict[str, str], cli: CommandLine) -> None:
    record = cli.record("diff", files["right"], files["wrong"], code=1)
    assert record["verdict"] == "differ"
    (finding,) = record["findings"]
    assert finding["after_text"]["hlo"].startswith("%difference = f32[4,6] subtract(%y, %x)")
    assert finding["before_text"]["hlo"].startswith("%difference = f32[4,6] subtract(%x, %y)")
    assert finding["is_certain"]
    assert [leaf["measured"]["mismatches"] for leaf in record["outputs"]["leaves"]] == [24, 24]


@pytest.mark.parametrize(
    ("other", "arguments", "message"),
    [
        ("fewer results", "", "small has 2 results (f32[4,6], f32[4,6]), small 1 result (f32[4,6])"),
        ("other parameters", "", "parameter 0 (counting arrays) is f32[4,6] in small, f32[4,8] in small"),
        ("other type", "", "parameter 0 (counting arrays) is f32[4,6] in small, f64[4,6] in small"),
        ("more devices", "", "for different numbers of devices"),
        ("broken", "", "broken.hlo:"),
        ("right", "--numerics-after f16", "'--numerics-after'"),
        ("right", "--numerics f16", "'--numerics'"),
        ("right", "--top 0", "'--top'"),
        ("right", "--inputs missing.npz", "missing.npz"),
        ("right", "--module x", "--module selects modules of folders"),
        ("right", "--memory-limit 100", "100 B"),
        ("missing", "", "missing.hlo"),
    ],
)
def test_wrong_uses_exit_with_2_and_say_why(
    files: dict[str, str], other: str, arguments: str, message: str, cli: CommandLine
) -> None:
    assert message in cli.complaint("diff", files["right"], files.get(other, "missing.hlo"), *arguments.split())


def test_a_module_alone_is_a_wrong_use(files: dict[str, str], cli: CommandLine) -> None:
    assert "give the module to compare it with" in cli.complaint("diff", files["right"])


_LARGEST = """HloModule largest

pick {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] maximum(a, b)
}

ENTRY main {
  x = f32[4,6] parameter(0)
  zero = f32[] constant(0)
  ROOT r = f32[4] reduce(x, zero), dimensions={1}, to_apply=pick
}
"""


def test_a_reducer_that_computes_something_else_is_shown(tmp_path: Path, cli: CommandLine) -> None:
    before, after, renamed = (str(tmp_path / name) for name in ("before.hlo", "after.hlo", "renamed.hlo"))
    Path(before).write_text(_LARGEST)
    Path(after).write_text(_LARGEST.replace("maximum(", "minimum("))
    Path(renamed).write_text(_LARGEST.replace("pick", "other").replace("c = ", "d = ").replace("={1}", "={0}"))
    lines = [line.strip() for line in cli("diff", before, after, code=1).splitlines()]
    assert "where %pick computes %c = f32[] minimum(%a, %b)" in lines
    assert "where %pick computes %c = f32[] maximum(%a, %b)" in lines
    Path(before).write_text(_LARGEST.replace("[4,6]", "[4,4]"))
    Path(renamed).write_text(Path(renamed).read_text().replace("[4,6]", "[4,4]"))
    assert " computes " not in cli("diff", before, renamed, code=1)


_GATHERED = """HloModule gathered, num_partitions=4

ENTRY main.1_spmd {
  x = f32[2,6] parameter(0)
  ROOT r = f32[2,6] collective-permute(x), channel_id=1, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
}
"""


def test_equal_inputs_of_all_devices_are_said_to_prove_little(tmp_path: Path, cli: CommandLine) -> None:
    before, after = (str(tmp_path / name) for name in ("before.hlo", "after.hlo"))
    Path(before).write_text(_GATHERED)
    Path(after).write_text(_GATHERED.replace("{0,1},{1,2},{2,3},{3,0}", "{0,3},{1,0},{2,1},{3,2}"))
    assert "all 4 devices had the same inputs" in (said := " ".join(cli("diff", before, after).split()))
    assert "--different-inputs" in said
    assert "had the same inputs" not in cli("diff", before, after, "--different-inputs", code=1)
    assert "had the same inputs" not in cli("diff", before, before, "--different-inputs")


def test_random_numbers_of_a_generator_that_is_open_are_not_decided(tmp_path: Path, cli: CommandLine) -> None:
    """As a pass that expands `rng` does: the numbers are others, and no instruction is to blame."""
    common = "x = f32[4] parameter(0)\n zero = f32[] constant(0)\n one = f32[] constant(1)\n"
    before = f"HloModule a\nENTRY e {{ {common} u = f32[4] rng(zero, one), distribution=rng_uniform\n"
    drawn = "r = f32[4] constant({0.5, 0.25, 0.125, 0.75})\n u = f32[4] multiply(r, r)\n"
    after = f"HloModule a\nENTRY e {{ {common} {drawn}"
    (tmp_path / "a.hlo").write_text(f"{before} ROOT s = f32[4] add(x, u) }}")
    (tmp_path / "b.hlo").write_text(f"{after} ROOT s = f32[4] add(x, u) }}")
    out = cli("diff", tmp_path / "a.hlo", tmp_path / "b.hlo", code=3)
    assert out.startswith("not decided: 0 of 1 result bit for bit") and "is to blame" not in out
    assert "value: no element is decided, since %u has random numbers of a generator that each backend chooses" in out
    two = " y = f32[4] {}(x, x)\n s = f32[4] add(x, u)\n ROOT t = (f32[4], f32[4]) tuple(s, y) }}"
    (tmp_path / "a.hlo").write_text(before + two.format("add"))
    (tmp_path / "b.hlo").write_text(after + two.format("multiply"))
    cli("diff", tmp_path / "a.hlo", tmp_path / "b.hlo", code=1)


def test_a_sharding_of_a_parameter_does_not_hide_that_devices_had_equal_inputs(
    tmp_path: Path, cli: CommandLine
) -> None:
    before, after = (str(tmp_path / name) for name in ("before.hlo", "after.hlo"))
    text = _GATHERED.replace("main.1_spmd", "main").replace(
        "parameter(0)", "parameter(0), sharding={devices=[4,1]<=[4]}"
    )
    Path(before).write_text(text)
    Path(after).write_text(text.replace("{0,1},{1,2},{2,3},{3,0}", "{0,3},{1,0},{2,1},{3,2}"))
    assert "all 4 devices had the same inputs" in " ".join(cli("diff", before, after).split())
