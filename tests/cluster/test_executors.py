"""Executors: the same report from all of them, whatever dies on the way."""

import json
import shlex
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest

import hloexec
from evaluation.executing.running import HLOEXEC, PATIENCE, Cluster, plain, start
from hloexec.errors import HloError
from hloexec.tools.executing import running, tasks
from hloexec.tools.executing.engines import Engine
from hloexec.tools.executing.running import run_tasks
from hloexec.tools.executing.tasks import Reply, Task
from tests.cluster.conftest import TRIAGE
from tests.command_line import CommandLine


@pytest.mark.parametrize("executor", ["processes:3", "pools:two"])
def test_other_processes_give_the_same_report(
    executor: str, farm: Path, expected: tuple[str, Any], cli: CommandLine
) -> None:
    Path("pools.py").write_text(POOLS)
    assert plain(cli.record(f"{TRIAGE} --executor {executor}", code=1)) == expected[1]


POOLS = """from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

def two():
    return ProcessPoolExecutor(2, get_context("spawn"))
"""


@pytest.mark.parametrize("shared", ["", " --shared"])
def test_dask_gives_the_same_report(
    shared: str, dask_cluster: Cluster, farm: Path, expected: tuple[str, Any], cli: CommandLine
) -> None:
    line = f"{TRIAGE} --executor dask:{dask_cluster.address}{shared}"
    if shared:
        assert cli(line, code=1) == expected[0]
    else:
        assert plain(cli.record(line, code=1)) == expected[1]


def test_ranks_of_mpi_give_the_same_report(
    mpiexec: Sequence[str], farm: Path, environment: dict[str, str], expected: tuple[str, Any]
) -> None:
    words = [*mpiexec, *HLOEXEC, *TRIAGE.split(), "--executor", "mpi"]
    report, complaint = start(words, environment, farm).communicate(timeout=PATIENCE)
    assert (report, complaint) == (expected[0], "")


# What dies


@attrs.define(eq=False)
class Script(Executor):
    """Carries out what is handed out in this thread, the second time that anything is, as a function says."""

    act: Callable[[int, Sequence[int]], BaseException | None]
    """Takes the number of a task, and of all that are out with it; what comes of it, None for its answer."""
    waiting: list[tuple[int, Future[Any]]] = attrs.Factory(list)
    log: list[list[int]] = attrs.Factory(list)

    def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        future = Future[Any]()
        self.waiting.append((_number(arguments[0]), future))
        return future

    def work(self) -> None:
        """Let something come of all that is out."""
        numbers = [number for number, _ in self.waiting]
        self.log.append(numbers)
        waiting, self.waiting = self.waiting, []
        for number, future in waiting:
            failure = self.act(number, numbers)
            if failure is None:
                future.set_result(_answer(number))
            else:
                future.set_exception(failure)


def _number(data: bytes) -> int:
    import io
    import zipfile

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return int(json.loads(archive.read("task.json"))["request"]["number"])


def _answer(number: int) -> bytes:
    record: dict[str, Any] = {"refused": "", "code": 0, "output": "", "seconds": 0.0, "warnings": []}
    record |= {"answer": {"number": number}, "is_partial": False, "working_seconds": 0.0}
    return tasks._packed_answer(record, Path("nowhere"))


class Scripted(Engine):
    """An engine of a script, which may be renewed so often."""

    workers = 2  # type: ignore[assignment]

    def __init__(self, script: Script, renewals: int = 0) -> None:
        super().__init__("script", script, "here")
        self.script, self.renewals = script, renewals

    def renew(self) -> bool:
        self.renewals -= 1
        return self.renewals >= 0


@pytest.fixture
def carry_out(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """What comes of six tasks, in the order of their numbers: an answer's number, how it ended, or an error."""

    def carry_out(engine: Scripted) -> list[Any]:
        wait = running.wait

        def worked(out: Any, *more: Any) -> Any:
            engine.script.work()
            return wait(out, *more)

        monkeypatch.setattr(running, "wait", worked)
        come: dict[int, Any] = {}
        for number, reply in run_tasks(range(6), lambda number: Task("m:f", {"number": number}, (), 1, 1), engine):
            assert number not in come
            come[number] = _come(reply)
        return [come[number] for number in range(6)]

    return carry_out


def _come(reply: Reply | HloError) -> Any:
    assert isinstance(reply, Reply)
    return reply.answer["number"] if reply.answer else reply.ended.output


def test_a_task_whose_worker_dies_is_tried_once_more(carry_out: Callable[..., list[Any]]) -> None:
    deaths = dict.fromkeys(range(6), 0)

    def act(number: int, _: Sequence[int]) -> BaseException | None:
        deaths[number] += 1
        return OSError("no space left") if number == 4 or (number == 1 and deaths[1] == 1) else None

    assert carry_out(Scripted(Script(act))) == [0, 1, 2, 3, "OSError: no space left", 5]
    assert deaths == {0: 1, 1: 2, 2: 1, 3: 1, 4: 2, 5: 1}


def test_a_task_that_breaks_its_pool_is_found_and_costs_others_nothing(carry_out: Callable[..., list[Any]]) -> None:
    script = Script(lambda _, out: BrokenExecutor("a process ended") if 2 in out else None)
    assert carry_out(Scripted(script, renewals=2)) == [0, 1, "each worker that it was given to has died", 3, 4, 5]
    assert [out for out in script.log if 2 in out][1:] == [[2]]


def test_a_pool_that_always_breaks_is_lost_in_a_sentence(carry_out: Callable[..., list[Any]]) -> None:
    script = Script(lambda *_: BrokenExecutor("a process ended\nand more"))
    with pytest.raises(hloexec.ResourceError, match=r"^executor script is lost: BrokenExecutor: a process ended$"):
        carry_out(Scripted(script))


def test_workers_without_hloexec_are_refused(carry_out: Callable[..., list[Any]]) -> None:
    script = Script(lambda *_: ModuleNotFoundError("No module named 'hloexec'"))
    with pytest.raises(hloexec.UnsupportedError, match=r"cannot carry out tasks of this hloexec: .*No module named"):
        carry_out(Scripted(script))


def test_an_engine_that_says_why_nothing_comes_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_CHECK_SECONDS", 0.01)
    engine = Scripted(Script(lambda *_: None))
    monkeypatch.setattr(engine, "problem", lambda: "its scheduler no longer answers")
    with pytest.raises(hloexec.ResourceError, match="script is lost: its scheduler no longer answers"):
        list(run_tasks(range(6), lambda number: Task("m:f", {"number": number}, (), 1, 1), engine))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hloexec", "has hloexec [^ ]*, and this process 0: install the same on both"),
        ("NumPy", "has NumPy [^ ]*, and this process 0: install the same on both"),
        ("rounding", "rounds products or functions otherwise than this process"),
    ],
)
def test_workers_that_are_otherwise_are_refused(
    name: str, message: str, farm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = {**tasks.identity(), name: "0"}
    monkeypatch.setattr(tasks, "identity", lambda: ours)
    refusal = pytest.raises(hloexec.UnsupportedError, match=f"^executor: a worker on [^ ]* {message}")
    with ThreadPoolExecutor(1) as pool, refusal:
        hloexec.triage(farm / "farm", executor=pool)


# Wrong uses


MINE = """
def fails(): raise RuntimeError("no queue\\nand more")
def leaves(): raise SystemExit(3)
def nothing(): return None
def takes(x): return x
class Pool: pass
number = 3
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nowhere", "'nowhere' is none of processes:N, dask:ADDRESS, mpi or MODULE:FUNCTION"),
        ("''", "'' is none of processes:N"),
        (":pool", "':pool' is none of processes:N"),
        ("mine:", "'mine:' is none of processes:N"),
        ("processes", "processes:N has 1 to 256 processes, not ''"),
        ("processes:0", "processes:N has 1 to 256 processes, not '0'"),
        ("processes:many", "processes:N has 1 to 256 processes, not 'many'"),
        ("processes:1000", "processes:N has 1 to 256 processes, not '1000'"),
        ("slurm:here", "slurm:here cannot be imported: No module named 'slurm'"),
        ("mine:absent", "mine:absent cannot be imported"),
        ("broken:pool", "broken:pool cannot be imported: "),
        ("../mine:fails", "../mine:fails cannot be imported: "),
        ("mine:number", "'mine:number' is no function that makes an executor"),
        ("mine:fails", "'mine:fails' failed: RuntimeError: no queue"),
        ("mine:leaves", "'mine:leaves' failed: SystemExit: 3"),
        ("mine:takes", "'mine:takes' failed: TypeError: takes() missing 1 required positional argument"),
        ("mine:nothing", "'mine:nothing' gives NoneType, which has no submit and shutdown"),
        ("mine:Pool", "'mine:Pool' gives Pool, which has no submit and shutdown"),
        ("processes:2 --jobs 2", "--jobs are processes of this machine; leave it out, as the executor has workers"),
    ],
)
def test_a_wrong_executor_is_one_clear_line(words: str, message: str, farm: Path, cli: CommandLine) -> None:
    Path("mine.py").write_text(MINE)
    Path("broken.py").write_text("def x(:\n")
    complaint = cli.complaint("triage farm --executor", *shlex.split(words))
    assert message in complaint and complaint.startswith("error: ") and complaint.count("\n") == 1


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("", "dask:ADDRESS lacks the scheduler's address"),
        ("nothing", "no Dask scheduler answers at nothing: missing port number"),
        ("ftp://x:1", "unknown address scheme 'ftp'"),
        ("tcp://127.0.0.1:port", "no Dask scheduler answers at tcp://127.0.0.1:port: invalid literal"),
        ("127.0.0.1:9", "no Dask scheduler answers at 127.0.0.1:9"),
    ],
)
def test_a_wrong_address_of_dask_is_one_clear_line(
    address: str, message: str, farm: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed", exc_type=ImportError)
    monkeypatch.setattr("hloexec.tools.executing.engines._ANSWER_SECONDS", 1.0)
    complaint = cli.complaint("triage farm --executor", f"dask:{address}")
    assert message in complaint and complaint.startswith("error: ") and complaint.count("\n") == 1


def test_one_rank_alone_has_no_workers(mpiexec: Sequence[str], farm: Path, environment: dict[str, str]) -> None:
    words = [*HLOEXEC, "triage", "farm", "--executor", "mpi"]
    report, complaint = start(words, environment, farm).communicate(timeout=PATIENCE)
    assert report == "" and "mpi needs two ranks at least" in complaint and complaint.count("\n") == 1


def test_ranks_say_once_what_is_wrong(mpiexec: Sequence[str], farm: Path, environment: dict[str, str]) -> None:
    for more, message in ("--shard 4/3", "--shard must be I/N"), ("--nope", "No such option"):
        words = [*mpiexec, *HLOEXEC, "triage", "farm", "--executor", "mpi", *more.split()]
        report, complaint = start(words, environment, farm).communicate(timeout=PATIENCE)
        assert report == "" and complaint.count(message) == 1


def test_what_is_no_executor_is_refused(farm: Path) -> None:
    for value in (3, object(), Executor):
        with pytest.raises(hloexec.InputError, match=r"executor must be a concurrent.futures.Executor, or one of"):
            hloexec.triage(farm / "farm", executor=value)  # type: ignore[arg-type]
