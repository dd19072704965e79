"""The JSON of a measurement: its comparison with another, its page, its plot."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import results
from benchmarks.__main__ import main
from benchmarks.page import markdown_table, page

_SIDE = {"resident_bytes": 3_000_000, "assigned_bytes": 2_000_000}
_MINE = {"cold": [1.0, 1.0, 1.0], "warm": [0.5, 0.75, 1.0], "stages": dict.fromkeys(("import", "parse", "plan"), 0.1)}
_ITS = {"cold": [2.0, 2.0, 4.0], "warm": [0.25, 0.25, 0.25], "stages": dict.fromkeys(("import", "compile"), 0.1)}
_MINE["stages"]["first run"] = _ITS["stages"]["first run"] = 0.3  # type: ignore[index]
MODULE = {
    "scale": 1.0,
    "hloexec": _MINE | _SIDE,
    "xla": _ITS | _SIDE,
    "agreement": {"error": 1e-7, "bound": 1e-5, "holds": True},
}
MACHINE = {
    "cpu": "a processor",
    "processors": 2,
    "memory_bytes": 1 << 34,
    "system": "Linux",
    "python": "3.11",
    "packages": {"numpy": "2"},
    "commit": "abc",
}


def measurement(**modules: Any) -> dict[str, Any]:
    return {"schema": results.SCHEMA, "machine": MACHINE, "modules": modules, "failures": {}}


def with_warm(*seconds: float) -> dict[str, Any]:
    module = copy.deepcopy(MODULE)
    module["hloexec"]["warm"] = list(seconds)  # type: ignore[index]
    return module


def test_a_ratio_is_the_median_of_the_turns_with_its_extremes() -> None:
    assert results.warm_ratio(MODULE) == results.Spread(3.0, 2.0, 4.0)
    assert results.cold_ratio(MODULE) == results.Spread(0.5, 0.25, 0.5)


def test_the_geometric_mean_of_a_ratio_and_its_inverse_is_one() -> None:
    assert results.geometric_mean([4.0, 0.25]) == pytest.approx(1.0, rel=1e-15)


@pytest.mark.parametrize(
    ("seconds", "change", "verdict"),
    [((0.25,) * 3, "-67 %", "faster"), ((1.5,) * 3, "+100 %", "slower"), ((0.25, 0.75, 1.5), "+0 %", "within")],
)
def test_a_comparison_says_whether_the_spreads_are_apart(seconds: tuple[float, ...], change: str, verdict: str) -> None:
    (row,) = results.compared(measurement(a=MODULE), measurement(a=with_warm(*seconds)))
    assert row["warm change"].startswith(change) and verdict in row["warm change"]
    assert row["cold change"] == "+0 % within the spread"


def test_a_comparison_leaves_out_what_only_one_has_or_has_at_another_scale() -> None:
    old = measurement(a=MODULE, b=MODULE, c=MODULE)
    new = measurement(b=MODULE | {"scale": 0.1}, c=MODULE, d=MODULE)
    assert [row["module"] for row in results.compared(old, new)] == ["c"]


def test_the_command_compares_two_files(tmp_path: Path) -> None:
    for name, module in (("old", MODULE), ("new", with_warm(0.25, 0.25, 0.25))):
        (tmp_path / name).write_text(json.dumps(measurement(newton=module)))
    done = CliRunner().invoke(main, ["compare", str(tmp_path / "old"), str(tmp_path / "new")])
    assert done.exit_code == 0, done.output
    assert "| newton | 3.00 | 1.00 | -67 % faster |" in done.output


def test_the_page_shows_ratios_means_memory_refusals_and_failures() -> None:
    content = measurement(newton=MODULE) | {
        "interpreter": {
            "newton": {"scale": 0.1, "hloexec": [0.1], "stablehlo": [20.0]},
            "fft": {"scale": 0.1, "refused": "no complex numbers"},
        },
        "tables": {"Start-up": [{"program": "python", "seconds": "0.1"}]},
        "failures": {"dump-001": "xla ended"},
    }
    text = page(content)
    assert "warm 3.00" in text and "first output 0.50" in text
    assert "| newton | 500 | 250 | 3.00 (2.00 to 4.00) | 1.00 | 2.00 |" in text
    assert "**200 times**" in text
    for line in ("- fft: no complex numbers", "- dump-001: xla ended", "| python | 0.1 |"):
        assert line in text


def test_a_measured_disagreement_stands_out() -> None:
    module = MODULE | {"agreement": {"error": 1.0, "bound": 1e-5, "holds": False}}
    assert "**beyond**" in page(measurement(newton=module))


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    assert markdown_table([{"a": "x|y"}]).splitlines()[-1].count("|") == 2


def test_the_plot_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.plot import draw

    draw(measurement(newton=MODULE, lstm=with_warm(0.3, 0.3, 0.3)), tmp_path / "plot.svg")
    assert "newton" in (tmp_path / "plot.svg").read_text()
