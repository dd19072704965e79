"""One module over the ranks of MPI: the bits, reports and errors of one process, and an end of all ranks where one ends."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
pytestmark = [
    pytest.mark.skipif(MPIEXEC is None or find_spec("mpi4py") is None, reason="there is no MPI (hloexec[mpi])"),
    pytest.mark.timeout(600),
]
ROOT = Path(__file__).resolve().parents[2]
HLOEXEC = [sys.executable, "-m", "hloexec"]
QUICK = ("deadlocks", "roots", "collectives", "tokens_in_collectives", "random_control_flow")
ALL = (
    *QUICK,
    *("divergence", "each_element_type", "reductions_across_devices", "places_of_communication", "device_inputs"),
    *("alone_and_together", "exec/test_per_class", "exec/test_unverified"),
)
OF_JAX = ("sharded_programs", "manual_regions", "manual_region_boundaries")
ENDLESS = """HloModule endless, replica_count=4
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}
body {
  s = (pred[], f32[99]) parameter(0)
  more = pred[] get-tuple-element(s), index=0
  x = f32[99] get-tuple-element(s), index=1
  sum = f32[99] all-reduce(x), replica_groups={{0,1,2,3}}, to_apply=add
  ROOT t = (pred[], f32[99]) tuple(more, sum)
}
condition {
  s = (pred[], f32[99]) parameter(0)
  ROOT more = pred[] get-tuple-element(s), index=0
}
ENTRY main {
  x = f32[99] parameter(0)
  more = pred[] constant(true)
  s = (pred[], f32[99]) tuple(more, x)
  w = (pred[], f32[99]) while(s), condition=condition, body=body
  ROOT r = f32[99] get-tuple-element(w), index=1
}
"""
SUMS = """HloModule sums, replica_count=4
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}
ENTRY main {
  x = f32[70000] parameter(0)
  sum = f32[70000] all-reduce(x), replica_groups={{0,1,2,3}}, to_apply=add
  all = f32[280000] all-gather(x), replica_groups={{0,2,1,3}}, dimensions={0}
  n = f32[70000] negate(x)
  part = f32[17500] reduce-scatter(x), replica_groups={{3,0,2,1}}, dimensions={0}, to_apply=add
  moved = f32[70000] all-to-all(x), replica_groups={{3,0,2,1}}, dimensions={0}
  cast = f32[70000] collective-broadcast(x), replica_groups={{2,1,0,3}}
  turned = f32[70000] collective-permute(x), source_target_pairs={{0,3},{3,0},{1,2}}
  ROOT t = (f32[70000], f32[280000], f32[70000], f32[17500], f32[70000], f32[70000], f32[70000]) tuple(sum, all, n, part,
    moved, cast, turned)
}
"""


def started(ranks: int, command: Sequence[str], folder: Path = ROOT, **settings: str) -> subprocess.Popen[str]:
    assert MPIEXEC is not None
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "100", **settings}
    return subprocess.Popen(
        [MPIEXEC, "-n", str(ranks), *command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str], seconds: float = 500) -> tuple[int, str, str]:
    try:
        output, errors = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, output, errors


def alone(*words: str, folder: Path = ROOT) -> str:
    environment = {**os.environ, "COLUMNS": "100", "PYTHONPATH": str(ROOT)}
    run = subprocess.run([*HLOEXEC, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return run.stdout + run.stderr


def without_cost(text: str) -> str:
    return re.sub(r"^ran in .*", "", text, flags=re.MULTILINE)


def assert_spread(ranks: int, names: Sequence[str], **settings: str) -> None:
    """The tests of these files hold on all ranks, with the bits and errors of one process."""
    files = [f"tests/{name}.py" if "/" in name else f"tests/devices/test_{name}.py" for name in names]
    options = ["-q", "-m", "not slow", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "tests.cluster.spreading"]
    code, output, errors = ended(started(ranks, [sys.executable, "-m", "pytest", *options, *files], **settings))
    assert code == 0, output + errors
    counts = re.search(rf"spread over {ranks} ranks: ([0-9]+) runs, [0-9]+ of them errors, ([0-9]+) watched", output)
    assert counts is not None and int(counts[1]) > 20, output
    assert int(counts[2]) == (int(counts[1]) if "HLOEXEC_WATCH" in settings else 0)


def test_runs_on_three_ranks_have_the_bits_and_errors_of_one_process() -> None:
    assert_spread(3, QUICK, HLOEXEC_SHARE_ALL="1")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_observers_are_shown_what_one_process_shows(ranks: int) -> None:
    names = ("random_control_flow", "deadlocks", "collectives", "tokens_in_collectives", "divergence")
    assert_spread(ranks, names, HLOEXEC_SHARE_ALL="1", HLOEXEC_WATCH="1")


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "share"), [(2, "1"), (4, "")])
def test_all_runs_have_the_bits_and_errors_of_one_process(ranks: int, share: str) -> None:
    assert_spread(ranks, ALL, **({"HLOEXEC_SHARE_ALL": share} if share else {}))


@pytest.mark.slow
def test_programs_of_jax_have_the_bits_of_one_process() -> None:
    assert_spread(3, OF_JAX)


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["random-rounding:1"])
def test_all_policies_have_the_bits_of_one_process(numerics: str) -> None:
    names = ("collectives", "each_element_type", "divergence")
    assert_spread(3, names, HLOEXEC_NUMERICS=numerics, HLOEXEC_SHARE_ALL="1")


@pytest.mark.parametrize("options", [[], ["--different-inputs"], ["--different-inputs", "--print"]])
def test_rank_0_says_and_saves_what_one_process_does(tmp_path: Path, options: list[str]) -> None:
    module = tmp_path / "sums.hlo"
    module.write_text(SUMS)
    files = [tmp_path / "one.npz", tmp_path / "three.npz"]
    expected = alone("run", str(module), *options, "--save", str(files[0]))
    code, output, errors = ended(started(3, [*HLOEXEC, "run", str(module), *options, "--save", str(files[1])]))
    assert (code, without_cost(output + errors)) == (0, without_cost(expected))
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 4])
def test_examples_give_what_one_process_gives(ranks: int) -> None:
    for example in ("data_parallel_step.hlo", "mlp_train_step.hlo"):
        words = ["run", f"examples/{example}", "--different-inputs"]
        code, output, errors = ended(started(ranks, [*HLOEXEC, *words]))
        assert (code, without_cost(output + errors)) == (0, without_cost(alone(*words)))


def test_ranks_that_differ_are_refused(tmp_path: Path) -> None:
    module, other = tmp_path / "one.hlo", tmp_path / "other.hlo"
    module.write_text(SUMS)
    other.write_text(SUMS.replace("negate", "abs"))
    for words, subject in (["run", str(other)], "the module"), (["run", str(module), "--numerics", "bf16"], "numerics"):
        command = [*HLOEXEC, "run", str(module), ":", "-n", "1", *HLOEXEC, *words]
        code, _, errors = ended(started(1, command), 60)
        assert code == 2 and errors.count("\n") == 1, errors
        assert errors.startswith(f"error: ranks must run the same, but {subject} differs"), errors


DOT = """HloModule product, replica_count=2
ENTRY main {
  x = f32[40,60] parameter(0)
  y = f32[60,40] parameter(1)
  d = f32[40,40] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT z = f32[80,40] all-gather(d), replica_groups={{0,1}}, dimensions={0}
}
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the kernels are those of x86")
def test_ranks_that_round_otherwise_are_refused_unless_policies_do_not_depend_on_it(tmp_path: Path) -> None:
    module = tmp_path / "product.hlo"
    module.write_text(DOT)
    command = [*HLOEXEC, "run", str(module), "--different-inputs"]
    # Stands for another processor: which of them round otherwise depends on the one that the tests run on.
    other = "from hloexec.engine.exec.lockstep import gathering as g; g.rounding = lambda: 'another'; "
    pretending = [sys.executable, "-c", other + "from runpy import run_module as r; r('hloexec', run_name='__main__')"]
    code, _, errors = ended(started(1, [*command, ":", "-n", "1", *pretending, *command[len(HLOEXEC) :]]), 60)
    assert code == 2 and errors.count("\n") == 1, errors
    assert errors.startswith("error: rank 1 rounds products or functions otherwise than rank 0, as other "), errors
    command += ["--numerics", "exact"]
    rank_1 = [":", "-n", "1", "env", "OPENBLAS_CORETYPE=Nehalem", *command]
    code, output, errors = ended(started(1, [*command, *rank_1]), 60)
    assert (code, without_cost(output + errors)) == (0, without_cost(alone(*command[len(HLOEXEC) :])))


def test_other_commands_are_refused() -> None:
    code, _, errors = ended(started(2, [*HLOEXEC, "shadow", "examples/data_parallel_step.hlo"]), 60)
    commands = "run, golden, trace, nan, compare, diff"
    expected = f"error: hloexec shadow works in one process; under mpiexec there are hloexec {commands}\n"
    assert (code, errors) == (2, expected)


def rank_of(process: subprocess.Popen[str], rank: int) -> int:
    """The process of a rank, once all ranks compute: inputs are shown when all of them have theirs."""
    assert process.stdout is not None
    while "0 x on device 3" not in process.stdout.readline():
        assert process.poll() is None
    for folder in Path("/proc").glob("[0-9]*"):
        is_rank = f"PMI_RANK={rank}\0".encode() in content(folder / "environ")
        if is_rank and ENDLESS_NAME.encode() in content(folder / "cmdline"):
            return int(folder.name)
    raise AssertionError("there is no such rank")


ENDLESS_NAME = f"endless-{os.getpid()}.hlo"


@pytest.mark.parametrize(
    ("number", "rank"), [(signal.SIGKILL, 1), (signal.SIGINT, 2), (signal.SIGTERM, 1), (signal.SIGINT, 0)]
)
def test_a_rank_that_is_ended_ends_all(tmp_path: Path, number: signal.Signals, rank: int) -> None:
    module = tmp_path / ENDLESS_NAME
    module.write_text(ENDLESS)
    process = started(3, [*HLOEXEC, "run", str(module), "--different-inputs"])
    victim = rank_of(process, rank)
    time.sleep(3)
    start = time.monotonic()
    os.kill(victim, number)
    code, output, errors = ended(process, 20)
    assert time.monotonic() - start < 10
    assert code != 0
    said = {
        signal.SIGKILL: ["Killed (signal 9)"],
        signal.SIGINT: ["interrupted"],
        signal.SIGTERM: ["a rank was ended by a signal"],
    }
    for text in said[number]:
        assert (output + errors).count(text) == 1, output + errors
    time.sleep(0.2)
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if ENDLESS_NAME.encode() in content(path)]


LEAVING = """import sys, time
import numpy as np
from hloexec.cli.ranks import Ranks
ranks = Ranks()
comm = ranks.comm
if comm.rank:
    class Slow:
        rank, size = comm.rank, comm.size
        def Abort(self, code):
            time.sleep(1)
            comm.Abort(code)
    ranks.comm = Slow()
    print("interrupted", file=sys.stderr)
    ranks.leave(130)
comm.Barrier()
"""


def test_ranks_that_all_are_interrupted_say_so_once(tmp_path: Path) -> None:
    # Rank 0 is in a call of MPI's, in which Ctrl-C is not noticed; ending it takes a while.
    script = tmp_path / "leaving.py"
    script.write_text(LEAVING)
    code, output, errors = ended(started(4, [sys.executable, str(script)]), 60)
    assert code != 0 and errors.count("interrupted") == 1, output + errors


def content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


CALLS = """HloModule calls, replica_count=3
ENTRY main {
  x = f32[4] parameter(0)
  y = f32[4] custom-call(x), custom_call_target="mine"
  ROOT z = f32[12] all-gather(y), replica_groups={{0,1,2}}, dimensions={0}
}
"""
RAISING = """import os
def call(x):
    if os.environ["PMI_RANK"] == "1":
        raise ValueError("no more")
    return x
"""


def test_an_error_of_one_rank_is_told_once(tmp_path: Path) -> None:
    module = tmp_path / "calls.hlo"
    module.write_text(CALLS)
    (tmp_path / "raising.py").write_text(RAISING)
    settings = {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    command = [*HLOEXEC, "run", str(module), "--custom-call", "mine=raising:call"]
    code, _, errors = ended(started(3, command, **settings), 60)
    assert code == 1 and errors.count(" failed on device 1: ValueError: no more") == 1, errors
    assert errors.count("error:") == 1, errors


def test_a_rank_that_cannot_start_ends_all(tmp_path: Path) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("raise RuntimeError('cannot load\\nMPI')")
    command = [*HLOEXEC, "run", "examples/data_parallel_step.hlo"]
    code, _, errors = ended(
        started(2, [*command, ":", "-n", "1", "env", f"PYTHONPATH={tmp_path}:{ROOT}", *command]), 60
    )
    expected = "error: a rank cannot start MPI, which needs hloexec[mpi] and memory: RuntimeError: cannot load MPI\n"
    assert code != 0 and errors == expected, errors


ENDING = """import os, runpy, sys
class Ending:
    def find_spec(name, *others):
        if name == "numpy":
            print("OpenBLAS error: planted", file=sys.stderr, flush=True)
            os._exit(1)
sys.meta_path.insert(0, Ending)
runpy.run_module("hloexec", run_name="__main__")
"""


def test_a_rank_that_numpy_ends_for_want_of_memory_ends_all() -> None:
    # At which limit of memory MPI has room and NumPy's BLAS, which ends the process, has none, depends on the machine.
    words = ["run", "examples/data_parallel_step.hlo"]
    ending = [sys.executable, "-c", ENDING, *words]
    code, _, errors = ended(started(2, [*HLOEXEC, *words, ":", "-n", "1", *ending]), 60)
    said = [line for line in errors.splitlines() if line.startswith(("error:", "OpenBLAS error:"))]
    assert code not in (0, -signal.SIGKILL) and said == ["OpenBLAS error: planted"], errors


def test_a_full_disk_ends_all(tmp_path: Path) -> None:
    module, target = tmp_path / "sums.hlo", tmp_path / "full.npz"
    module.write_text(SUMS)
    target.symlink_to("/dev/full")
    start = time.monotonic()
    code, _, errors = ended(started(3, [*HLOEXEC, "run", str(module), "--different-inputs", "--save", str(target)]), 60)
    assert time.monotonic() - start < 30
    assert code == 2 and errors == f"error: cannot write {str(target)!r}: No space left on device\n", errors


FALLING_BACK = """import sys, warnings
import numpy as np
from mpi4py import MPI
import hloexec
from hloexec.engine.exec import plan_of
rank = MPI.COMM_WORLD.rank
module = hloexec.parse(open(sys.argv[1]).read())
def fail(*operands, **more):
    raise RuntimeError("planted")
for step in plan_of(module).steps:
    if rank == 1 and step.instruction.opcode == "negate":
        step.function = fail
inputs = [[np.full(70000, device, np.float32)] for device in range(4)]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    results = hloexec.run_devices(module, inputs, comm=MPI.COMM_WORLD)
assert [entry.category for entry in caught] == [hloexec.errors.OptimizationWarning], caught
devices = hloexec.devices_of_rank(rank, 2, 4)
assert [result[2][0] for result in results] == [-device for device in devices]
assert all((result[0] == 6).all() for result in results)
"""


def test_a_fault_in_an_optimization_of_one_rank_lets_all_go_on_without(tmp_path: Path) -> None:
    module, script = tmp_path / "sums.hlo", tmp_path / "falling_back.py"
    module.write_text(SUMS)
    script.write_text(FALLING_BACK)
    code, output, errors = ended(started(2, [sys.executable, str(script), str(module)]), 60)
    assert code == 0, output + errors


STUCK = """HloModule stuck, replica_count=4
meet {
  x = f32[70000] parameter(0)
  ROOT y = f32[280000] all-gather(x), replica_groups={{0,1,2,3}}, dimensions={0}
}
skip {
  x = f32[70000] parameter(0)
  zero = f32[] constant(0)
  ROOT y = f32[280000] broadcast(zero), dimensions={}
}
ENTRY main {
  x = f32[70000] parameter(0)
  id = u32[] replica-id()
  three = u32[] constant(3)
  is_last = pred[] compare(id, three), direction=EQ
  ROOT y = f32[280000] conditional(is_last, x, x), true_computation=skip, false_computation=meet
}
"""
FAILING = """import sys
import numpy as np
from mpi4py import MPI
import hloexec
from hloexec.engine.exec import machine, running
from hloexec.engine.exec.lockstep import ranks
comm = MPI.COMM_WORLD
sums, stuck = (hloexec.parse(open(path).read()) for path in sys.argv[1:])
def fails(module, home, name, at, kind=MemoryError):
    function = getattr(home, name)
    calls = []
    def failing(*arguments, **settings):
        calls.append(arguments)
        if len(calls) == at:
            raise kind("planted")
        return function(*arguments, **settings)
    if comm.rank == 1:
        setattr(home, name, failing)
    try:
        hloexec.run_devices(module, [np.ones(70000, np.float32)], comm=comm)
    except (MemoryError, hloexec.errors.EvaluationError, hloexec.errors.ResourceError) as error:
        is_told = comm.rank != 1 and not isinstance(error, hloexec.errors.ResourceError)
        assert str(error).splitlines()[0].endswith("rank 1 failed: MemoryError: planted" if is_told else "planted")
    except hloexec.errors.DeadlockError:
        return False
    else:
        return False
    finally:
        setattr(home, name, function)
    return True
assert fails(sums, running, "device_arguments", 1)
assert fails(sums, running, "device_results", 1, hloexec.errors.ResourceError)
assert fails(stuck, machine.Scheduler, "_unblock", 1)
# Of ranks that gather, one fails before it takes part, and while it waits.
for module, count in (sums, 3), (stuck, 4):
    for at in range(1, count + 1):
        assert fails(module, ranks.RankTransport, "gathered", at), at
    for at in range(1, count):
        assert fails(module, ranks, "wait_until", at), at
for at in range(1, 6):
    assert fails(sums, ranks.RankTransport, "offer", at), at
results = hloexec.run_devices(sums, [np.ones(70000, np.float32)], comm=comm)
assert all((result[0] == 4).all() for result in results)
"""


@pytest.mark.parametrize("ranks", [2, 5])
def test_what_fails_on_a_rank_before_in_and_after_a_run_is_told_to_all(tmp_path: Path, ranks: int) -> None:
    paths = [tmp_path / name for name in ("failing.py", "sums.hlo", "stuck.hlo")]
    for path, text in zip(paths, (FAILING, SUMS, STUCK), strict=True):
        path.write_text(text)
    code, output, errors = ended(started(ranks, [sys.executable, *map(str, paths)]), 120)
    assert code == 0, output + errors
