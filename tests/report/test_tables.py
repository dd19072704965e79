"""Tables at the widths of terminals, with everything that may stand in them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hloexec.analysis.numerics.leaves import LeafStatistics, statistics
from hloexec.report.layout import next_steps, plain_table, show
from hloexec.report.tables import values_table


def printed(rows: list[tuple[str, LeafStatistics]], width: int) -> list[str]:
    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(values_table("inputs", rows))
    return capture.get().splitlines()


NAMES = st.text("abc.", min_size=1, max_size=30)
FIGURES = st.integers(0, 10**9).map("{:d}".format)


@given(st.lists(st.tuples(NAMES, NAMES, FIGURES, FIGURES, NAMES), min_size=1, max_size=4), st.integers(35, 150))
def test_tables_lose_nothing_however_narrow_the_console(rows: list[tuple[str, ...]], width: int) -> None:
    table = plain_table("folded", names=("name",), figures=("first", "second"), remarks=("remark",))
    for row in rows:
        table.add_row(*row)
    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(table)
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    for row in rows:
        assert {row[2], row[3]} <= set(words)
    letters = sorted("".join(cell for row in rows for cell in (row[0], row[1], row[4])))
    headers = [word for word in words if word.isdigit() or word in "folded name first second remark".split()]
    assert sorted("".join(words)) == sorted([*letters, *"".join(headers)])


def test_a_narrow_console_shows_a_paragraph_for_each_row() -> None:
    table = plain_table("shape", names=("",), figures=("least", "largest"))
    table.add_row("x", "f32[16,32]", "-1.5", "")
    table.add_row("y", "f32[3]", "-2.25", "7")
    console = Console(width=24, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(table)
    assert [line.rstrip() for line in capture.get().splitlines()] == [
        "x",
        "  shape f32[16,32]",
        "  least -1.5",
        "y",
        "  shape f32[3]",
        "  least -2.25  largest 7",
    ]


def test_a_name_is_not_folded_into_a_narrow_column() -> None:
    table = plain_table("share", "instruction", "source")
    name, path = "broadcast_multiply_fusion_of_the_decoder", "models/decoder/attention/output_projection.py:123"
    table.add_row("96.1%", name, path)
    console = Console(width=50, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(table)
    assert [line.strip() for line in capture.get().splitlines()] == ["share 96.1%", "instruction", name, "source", path]


@pytest.mark.parametrize("width", [80, 120])
def test_rows_fit_the_terminal_with_numbers_and_hash_whole(width: int) -> None:
    array = np.random.default_rng(0).normal(size=(2, 43, 16, 8, 12)).astype(np.float32)
    (leaf,) = statistics(-array * 1e-9)
    lines = printed([("16 a_parameter_with_a_long_name.283.0", leaf)], width)
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert {leaf.hash[:8], f"{leaf.mean:.2e}", f"{leaf.minimum:.3e}", f"{leaf.standard_deviation:.3e}"} <= {*words}
    assert "a_parameter_with_a_long_name.283.0" in words and "f32[2,43,16,8,12]" in words


def test_nan_and_inf_columns_are_there_when_they_are_needed() -> None:
    (usual,) = statistics(np.ones(3, np.float32))
    (strange,) = statistics(np.array([np.nan, np.inf, 1], np.float32))
    assert "nan" not in "\n".join(printed([("0", usual)], 80))
    lines = printed([("0", usual), ("1", strange)], 80)
    assert "nan" in lines[2] and lines[4].split()[-3:-1] == ["1", "1"]


def test_names_with_brackets_are_no_markup() -> None:
    (leaf,) = statistics(np.ones(3, np.float32))
    assert "[bold]x[/bold]" in "\n".join(printed([("0 [bold]x[/bold]", leaf)], 80))


def test_long_lists_are_cut_with_the_number_that_is_left() -> None:
    (leaf,) = statistics(np.ones(1, np.float32))
    lines = printed([(str(n), leaf) for n in range(130)], 80)
    assert lines[1].startswith("inputs  130 arrays") and "… and 30 more" in lines[-1]


def test_no_values_are_said_to_be_none() -> None:
    assert printed([], 80)[-1].strip() == "none"


def test_commands_are_never_broken_into_lines(capsys: pytest.CaptureFixture[str]) -> None:
    long = f"hloexec run {'folder/' * 60}module.hlo"
    show(next_steps(long, "hloexec info a.hlo"))
    assert capsys.readouterr().out.splitlines() == ["", "next:", f"  {long}", "  hloexec info a.hlo"]
