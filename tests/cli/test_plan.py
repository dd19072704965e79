"""`hloexec plan` prints the plan, and docs/execution.md shows what it prints."""

from pathlib import Path

import pytest

from tests.command_line import CommandLine

ROOT = Path(__file__).resolve().parents[2]
CHAIN = ROOT / "examples" / "markov_chain.hlo"


def test_the_page_on_execution_shows_its_example_and_its_plan(cli: CommandLine) -> None:
    page = (ROOT / "docs" / "execution.md").read_text(encoding="utf-8")
    shown = page.split("```python\n")[1].split("```")[0]
    first, rest = cli("plan", CHAIN).split("\n\n", 1)
    assert first.startswith("# main: 2 functions, at most ")
    assert rest == shown
    module = page.split("```hlo\nHloModule")[1].split("```")[0]
    assert f"HloModule{module}" == CHAIN.read_text(encoding="utf-8")


def test_plans_of_programs_for_many_devices_are_shown_too(cli: CommandLine) -> None:
    out = cli("plan", ROOT / "examples" / "data_parallel_step.hlo")
    assert "gradient_sum = all_reduce(gradient)  # f32[8,16]\n" in out


def test_plans_as_json(cli: CommandLine) -> None:
    record = cli.record("plan", CHAIN, "--computation", "is_going_on")
    assert record["computation"] == "is_going_on"
    assert record["peak_bytes"] >= 1
    (function,) = record["functions"]
    assert function.startswith("def is_going_on(arguments):\n")
    compile(function, "function", "exec")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing.hlo"], 2, "missing.hlo"),
        ([str(CHAIN), "--computation", "nowhere"], 2, "has no computation nowhere"),
        ([str(CHAIN), "--numerics", "sloppy"], 2, "--numerics"),
        ([str(CHAIN), "--after", "fusion"], 2, "inline, fma, share, unroll, hoist, accumulate, fuse"),
        ([], 2, "Missing argument"),
    ],
)
def test_wrong_usage(arguments: list[str], code: int, message: str, cli: CommandLine) -> None:
    assert message in cli.complaint("plan", *arguments, code=code)


def test_broken_text_is_named_with_its_place(tmp_path: Path, cli: CommandLine) -> None:
    path = tmp_path / "broken.hlo"
    path.write_text("HloModule m\nENTRY e { x = f32[4] parameter(0)\n ROOT y = f32[4] add(x) }\n")
    assert "broken.hlo:3" in cli.complaint("plan", path)
