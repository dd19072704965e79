"""Programs that XLA partitions: nothing but rounding between both modules. `python -m evaluation partitioned` plants
faults."""

from pathlib import Path

import pytest

import hloexec
from evaluation.partitioned.programs import PROGRAMS, arguments_of, module_of, write_programs

_WITH_OWN_STEPS = frozenset({"reshard", "convolution", "embedding"})
"""What XLA partitions in many steps that the whole module lacks: padding, borders, masks, exchanges piece by piece."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("jax")
    found = tmp_path_factory.mktemp("partitioned")
    write_programs(found)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("before", "after"),
        pytest.param("lowered", "after", marks=pytest.mark.slow),
        pytest.param("before", "optimized", marks=pytest.mark.slow),
    ],
)
def test_nothing_but_rounding_differs(name: str, first: str, second: str, folder: Path) -> None:
    before, after = (module_of(folder, name, stage) for stage in (first, second))
    found = hloexec.diff(before, after, arguments_of(folder, name))
    print(f"{name}, {first} and {second}: {found}")
    assert found.verdict in ("agree", "rounding only"), [str(finding) for finding in found.findings]
    assert found.matched_share >= (0.6 if name in _WITH_OWN_STEPS else 0.95)


@pytest.mark.slow
def test_a_dump_is_compared_through_the_partitioner(folder: Path, tmp_path: Path) -> None:
    stages = {
        "before": "before_optimizations",
        "after": "0001.spmd.after_spmd-partitioning",
        "optimized": "cpu_after_optimizations",
    }
    for stage, name in stages.items():
        (tmp_path / f"module_0000.jit_recurrence.{name}.txt").write_text(
            (folder / f"recurrence.{stage}.hlo").read_text()
        )
    (module,) = hloexec.diff_folders(tmp_path).modules
    assert len(module.steps) == 2 and {step.outcome for step in module.steps} <= {"agree", "rounding only"}
