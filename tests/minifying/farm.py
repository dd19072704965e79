"""Measure `hloexec.minify`: `python -m tests.minifying.farm --help`.

Planted faults are pairs of the bug farm; crashes are modules of its programs, minified by a command that aborts where
it sees a pattern (`crashing`). Half of the programs are held back: `--half held` measures them. Each case runs in a
process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import hloexec
from hloexec.ir import Module
from hloexec.minifying.case import counted
from tests.bug_farm.cases import FAULTY
from tests.bug_farm.drawing import Pair, draw
from tests.bug_farm.lowering import ENVIRONMENT, lowered
from tests.bug_farm.models import model
from tests.bug_farm.programs import HELD, LATER, PROGRAMS
from tests.bug_farm.programs.program import Program
from tests.minifying.crashing import has_pattern
from tests.minifying.deep_programs import DEEP

__all__ = ["names"]

_SECONDS = 600
"""What a case may take, with the time to draw it."""
_ROUNDS = 3
"""Pairs of a program, for the faults: there are some that nothing can be planted in."""
Record = dict[str, Any]
_MANY = "tensor_parallel ring_attention data_parallel_step".split()
"""Models of the bug farm for four devices."""


def _half(program: str) -> str:
    return "held" if program in HELD or program in DEEP[1::2] else "seen"


def names(half: str) -> list[str]:
    """The cases of a half: 30 faults, 6 or so of them on four devices, and 10 crashes."""
    programs = [name for name in PROGRAMS if name not in LATER and _half(name) == half]
    single = [name for name in programs if PROGRAMS[name].devices == 1]
    eight = [name for name in programs if PROGRAMS[name].devices > 1]
    four = [case for case in FAULTY if case.model in _MANY][0 if half == "seen" else 1 :: 2]
    faults = [f"fault {name}/{number:02d}" for number in range(_ROUNDS) for name in (*eight, *single)]
    several = [f"devices {FAULTY.index(case)}" for case in four]
    crashes = [f"crash {name} {number}" for number in range(2) for name in single]
    Random(half).shuffle(crashes)
    deep = [name for name in DEEP if _half(name) == half]
    many = [f"crash @{name} {number}" for number, name in enumerate(_MANY[half == "held" :: 2])]
    count = 10 - len(deep) - len(many)
    return [*faults[: 30 - len(several)], *several, *many, *crashes[:count], *(f"crash {name} 0" for name in deep)]


def _pattern(module: Module, random: Random) -> str:
    """A chain of two or three instructions that a module has."""
    chains = []
    for computation in module:
        for user in computation:
            for operand in computation.operands_of(user):
                if not {"parameter", "constant", "tuple", "get-tuple-element"} & {user.opcode, operand.opcode}:
                    element_type = str(operand.shape).partition("[")[0].lstrip("(")
                    chains.append(f"{user.opcode}<-{operand.opcode}:{element_type}")
                    chains += [
                        f"{user.opcode}<-{operand.opcode}<-{further.opcode}"
                        for further in computation.operands_of(operand)
                        if further.opcode not in ("parameter", "constant", "tuple", "get-tuple-element")
                    ]
    rare = sorted(set(chains), key=lambda chain: (chains.count(chain), chain))
    return random.choice(rare[: max(1, len(rare) // 2)])


def _register_deep() -> None:
    from tests.minifying.deep_programs import made

    for name in DEEP:
        PROGRAMS.setdefault(name, Program(name, lambda jax, name=name: made(jax, name)))  # type: ignore[misc]


def measured(name: str) -> Record:
    """What minifying a case gives."""
    kind, _, rest = name.partition(" ")
    _register_deep()
    record: Record = {"name": name, "kind": kind}
    start = time.perf_counter()
    inputs: Any
    if kind == "crash":
        program, _, number = rest.partition(" ")
        if program.startswith("@"):
            module, inputs = model(program[1:]).module, model(program[1:]).inputs_per_device
        else:
            module = lowered(program).before if int(number) % 2 == 0 else lowered(program).optimized
            inputs = lowered(program).inputs_per_device
        pattern = _pattern(module, Random(name))
        script = Path(__file__).with_name("crashing.py")
        command = shlex.join([sys.executable, "-I", "-S", str(script), pattern])
        arguments: Record = {"command": command, "outcome": "crash", "jobs": 2}
        record |= {"pattern": pattern}
    else:
        if kind == "fault":
            try:
                drawn = draw(Pair.of(rest))
            except LookupError as reason:
                return record | {"not_drawn": str(reason)}
            module, inputs, other, planted = drawn.after.module, drawn.inputs_per_device, drawn.before, drawn.planted
            record |= {"fault": drawn.kind}
        else:
            case = FAULTY[int(rest)]
            module, inputs, other = case.after.module, case.inputs_per_device, case.before
            planted = frozenset(new for new, old in case.after.origins.items() if old in case.blamed)
            record |= {"fault": f"{case.name} in {case.model}"}
        arguments = {"differs_from": other}
    record |= {"drawing_seconds": time.perf_counter() - start, "devices_before": _devices(module)}
    record |= {"instructions_before": counted(module), "all_instructions_before": module.instruction_count}
    spent = time.process_time()
    found = hloexec.minify(module, inputs, **arguments)
    record |= {"own_cpu_seconds": time.process_time() - spent}
    small = hloexec.parse(hloexec.format(found.module))
    if kind == "crash":
        fails = has_pattern(hloexec.format(small), record["pattern"])
    else:
        fails = _differ(small, hloexec.parse(hloexec.format(found.other)), found.inputs)
        left = {each.name for computation in small for each in computation}
        record |= {"has_planted": bool(planted & left)}
    return record | {
        "fails": fails,
        "instructions": found.instruction_count,
        "largest_dimension": found.largest_dimension,
        "trials": found.trial_count,
        "seconds": found.seconds,
        "is_complete": found.is_complete,
        "is_confirmed": found.is_confirmed,
        "devices": _devices(small),
        "text": hloexec.format(small),
        "other": None if found.other is None else hloexec.format(found.other),
    }


def _devices(module: Module) -> int:
    return module.replica_count * module.num_partitions


def _differ(module: Module, other: Module, inputs: Any) -> bool:
    """Whether two modules differ beyond rounding."""
    ours, theirs = hloexec.run_devices(module, inputs), hloexec.run_devices(other, inputs)
    if len(ours) == 1:
        return not hloexec.compare(ours[0], theirs[0], module=other, inputs=inputs).agrees
    return not hloexec.compare(tuple(ours), tuple(theirs), module=other, inputs=inputs).agrees


def _in_a_process(name: str) -> Record:
    command = [sys.executable, "-m", "tests.minifying.farm", "--one", name]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"name": name, "kind": name.partition(" ")[0], "failure": f"more than {_SECONDS} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        reason = done.stderr.strip().splitlines()[-1:]
        return {"name": name, "kind": name.partition(" ")[0], "failure": "".join(reason)}
    record: Record = json.loads(lines[-1])
    return record


def _line(record: Record) -> str:
    if "failure" in record or "not_drawn" in record:
        return f"{record['name']:28} {record.get('failure') or record['not_drawn']}"
    what = record.get("pattern") or f"{record['fault']}{'' if record['has_planted'] else ' (ANOTHER INSTRUCTION)'}"
    state = "fails" if record["fails"] else "DOES NOT FAIL"
    return (
        f"{record['name']:28} {state}: {record['instructions']:3} of {record['instructions_before']:4} instructions, "
        f"dimensions ≤ {record['largest_dimension']:3}, devices {record['devices']} of {record['devices_before']}, "
        f"{record['trials']:4} trials, {record['seconds']:6.1f} s ({record['own_cpu_seconds']:.1f} s of its own): {what}"
    )


def _summary(records: list[Record]) -> Iterator[str]:
    done = [record for record in records if "fails" in record]
    yield f"{len(done)} cases, {sum('not_drawn' in each for each in records)} not drawn, "
    yield f"{sum('failure' in each for each in records)} failed"
    for kind in ("fault", "devices", "crash", ""):
        of_kind = [each for each in done if kind in ("", each["kind"])]
        if of_kind:
            fails, counts = sum(each["fails"] for each in of_kind), [each["instructions"] for each in of_kind]
            sizes, seconds = [each["largest_dimension"] for each in of_kind], [each["seconds"] for each in of_kind]
            yield (
                f"{kind or 'all':8} {fails} of {len(of_kind)} still fail; instructions: median {median(counts)}, at most "
                f"{max(counts)}; largest dimension: median {median(sizes)}, at most {max(sizes)}; seconds: median "
                f"{median(seconds):.1f}, at most {max(seconds):.1f}"
            )
    planted = [each["has_planted"] for each in done if "has_planted" in each]
    yield f"the planted instruction is there in {sum(planted)} of {len(planted)}"
    large = [each["instructions_before"] for each in done]
    if large:
        yield f"before: median {median(large)} instructions, at most {max(large)}"


def main() -> None:
    """Measure what the arguments ask for."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(prog="python -m tests.minifying.farm", description=__doc__)
    parser.add_argument("--half", choices=("seen", "held"), default="seen", help="which half of the programs")
    parser.add_argument("--only", default="", help="cases whose name contains it")
    parser.add_argument("--limit", type=int, help="at most so many, spread evenly")
    parser.add_argument("--json", type=Path, help="write a line of JSON for each case")
    parser.add_argument("--list", action="store_true", help="list the cases only")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options.one)))
        return
    chosen = [name for name in names(options.half) if options.only in name]
    if options.limit:
        chosen = chosen[:: max(1, len(chosen) // options.limit)]
    if options.list:
        print("\n".join(chosen))
        return
    records = []
    for name in chosen:
        records.append(_in_a_process(name))
        print(_line(records[-1]), flush=True)
        if options.json:
            options.json.write_text("".join(f"{json.dumps(each)}\n" for each in records))
    print("\n" + "\n".join(_summary(records)))


if __name__ == "__main__":
    main()
