"""The processes that are measured: they start, take orders, and say what went wrong."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.arrays import read_arrays, write_arrays
from benchmarks.driving import Contestant, ContestantError

pytest.importorskip("jax")
pytest.importorskip("flax")

from benchmarks.measuring import against_interpreter, against_xla
from benchmarks.results import WAYS, cold_ratio, interpreter_ratio, warm_ratio

_DOUBLED = "HloModule m\n\nENTRY e {\n  a = f32[3] parameter(0)\n  ROOT r = f32[3] add(a, a)\n}\n"


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    write_arrays(tmp_path / "inputs", [np.array([1, 2, 3], np.float32)])
    return tmp_path / "inputs"


def test_a_contestant_gives_a_first_result_and_takes_orders(tmp_path: Path, inputs: Path) -> None:
    (tmp_path / "m.hlo").write_text(_DOUBLED)
    with Contestant("hloexec", tmp_path / "m.hlo", inputs) as contestant:
        assert 0 < sum(contestant.first["stages"].values()) <= contestant.cold_seconds
        assert contestant.ask("run")["seconds"] > 0
        assert contestant.ask("memory")["instructions"] == 1
        contestant.ask("save", path=str(tmp_path / "results"))
        with pytest.raises(ContestantError, match="KeyError"):
            contestant.ask("dance")
    (result,) = read_arrays(tmp_path / "results")
    assert result.tolist() == [2, 4, 6]


@pytest.mark.slow
def test_the_api_runs_beside_xla_in_a_process_that_has_imported_jax(tmp_path: Path, inputs: Path) -> None:
    (tmp_path / "m.hlo").write_text(_DOUBLED)
    with Contestant("api", tmp_path / "m.hlo", inputs) as contestant:
        assert next(iter(contestant.first["stages"])) == "jax"
        with pytest.raises(ContestantError, match="run xla"):
            contestant.ask("run xla")
        contestant.ask("compile xla", path=str(tmp_path / "m.hlo"))
        assert contestant.ask("run")["seconds"] > 0 and contestant.ask("run xla")["seconds"] > 0
        # An input is read, and a result written; each of the three elements is added once.
        assert contestant.ask("work") == {"bytes": 24, "plan_bytes": 24, "flops": 3}


def test_a_contestant_that_fails_says_why(tmp_path: Path, inputs: Path) -> None:
    (tmp_path / "m.hlo").write_text(_DOUBLED.replace("add", "frobnicate"))
    with pytest.raises(ContestantError, match="frobnicate"):
        Contestant("hloexec", tmp_path / "m.hlo", inputs)


def test_a_contestant_that_does_not_answer_is_ended(tmp_path: Path, inputs: Path) -> None:
    (tmp_path / "m.hlo").write_text(_DOUBLED)
    with pytest.raises(ContestantError, match="did not answer within"):
        Contestant("hloexec", tmp_path / "m.hlo", inputs, timeout=0.001)


@pytest.mark.slow
def test_a_measurement_has_every_figure() -> None:
    found = against_xla("newton", scale=0.01, turns=2, cold_turns=1)
    assert found["agreement"]["holds"]
    assert (
        len(found["api"]["cold_alone"]) == len(found["api"]["cold_beyond_jax"]) == 1
        and len(found["xla"]["warm_beside_api"]) == 2
    )
    for side in ("hloexec", "api", "xla"):
        assert len(found[side]["warm"]) == 2 and len(found[side]["cold"]) == 1
        assert found[side]["assigned_bytes"] > 0 and found[side]["resident_bytes"] >= 0
        assert sum(found[side]["stages"].values()) <= found[side]["cold"][0]
    for way in WAYS:
        assert warm_ratio(found, way).median > 0 and cold_ratio(found, way).median > 0


@pytest.mark.slow
def test_the_interpreter_takes_part() -> None:
    assert interpreter_ratio(against_interpreter("newton", scale=0.01, turns=1)).median > 0


@pytest.mark.slow
def test_what_the_interpreter_refuses_is_said() -> None:
    assert "refused" in against_interpreter("fft", scale=0.01, turns=1)
