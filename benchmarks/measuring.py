"""The protocol: cold starts in turns, each in a fresh process, then warm runs in turns, then memory and results.

hloexec takes part twice: as its command line runs it, beside XLA:CPU in a process of its own, and through its API in a
process that has imported JAX, in which XLA:CPU runs, too. For its first output, the API also has a process without JAX.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.agreement import agreement, relative_roundings
from benchmarks.arrays import read_arrays
from benchmarks.driving import Contestant, ContestantError
from benchmarks.subjects import Subject, subject

_PATIENCE = 20.0
"""Seconds of warm runs after which no further turn starts, once there were three."""


def against_xla(name: str, *, scale: float = 1.0, turns: int = 7, cold_turns: int = 3) -> dict[str, Any]:
    """Everything about one module on hloexec and on XLA:CPU, as the JSON holds it; times in seconds, sizes in bytes.

    Raises ContestantError where one of them cannot do it.
    """
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        files = subject(name, folder, scale)
        modules = {"hloexec": files.hlo, "api": files.hlo, "xla": files.peer}
        found: dict[str, dict[str, Any]] = {side: {"cold": [], "stages": []} for side in modules}
        alive: dict[str, Contestant] = {}
        try:
            for _ in range(cold_turns):
                _close(alive.values())
                for side, module in modules.items():
                    alive[side] = Contestant(side, module, files.inputs, files.devices)
                    _note_start(found[side], alive[side])
                with Contestant("api_alone", files.hlo, files.inputs, files.devices) as alone:
                    found["api"].setdefault("cold_alone", []).append(alone.cold_seconds)
            ours, theirs = _warm([(alive["hloexec"], "run"), (alive["xla"], "run")], turns)
            found["hloexec"]["warm"], found["xla"]["warm"] = ours, theirs
            alive["api"].ask("compile xla", path=str(files.peer))
            ours, theirs = _warm([(alive["api"], "run"), (alive["api"], "run xla")], turns)
            found["api"]["warm"], found["xla"]["warm_beside_api"] = ours, theirs
            for side, contestant in alive.items():
                memory = contestant.ask("memory")
                found[side]["assigned_bytes"] = memory["bytes"]
                if side == "hloexec":
                    roundings = relative_roundings(files.unit, memory["instructions"], files.elements)
            work = alive["hloexec"].ask("work")
            agreed = _agreement(files, roundings, folder, alive)
        finally:
            _close(alive.values())
    for side in found.values():
        side["stages"] = {stage: _median([turn[stage] for turn in side["stages"]]) for stage in side["stages"][0]}
    return {"scale": scale, **found, "work": work, "agreement": agreed}


def one_after_the_other(name: str, *, scale: float = 1.0, turns: int = 1) -> dict[str, dict[str, Any]]:
    """First output, warm runs and growth of hloexec, as its command line runs it, and of XLA:CPU, whose process starts
    once hloexec's has ended: for modules that do not fit into memory twice. Results are not compared.

    Raises ContestantError where one of them cannot do it.
    """
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = subject(name, Path(folder), scale)
        for side, module in {"hloexec": files.hlo, "xla": files.peer}.items():
            entry = found[side] = {"cold": [], "stages": []}
            with Contestant(side, module, files.inputs, files.devices) as contestant:
                _note_start(entry, contestant)
                entry["warm"] = [contestant.ask("run")["seconds"] for _ in range(turns)]
    return found


def against_interpreter(name: str, *, scale: float = 0.1, turns: int = 3, timeout: float = 300.0) -> dict[str, Any]:
    """Warm runs on hloexec and the StableHLO interpreter; what the latter cannot do is said under `refused`."""
    with tempfile.TemporaryDirectory() as folder:
        files = subject(name, Path(folder), scale)
        with Contestant("hloexec", files.hlo, files.inputs, files.devices) as ours:
            try:
                with Contestant("stablehlo", files.peer, files.inputs, timeout=timeout) as theirs:
                    our_seconds, their_seconds = _warm([(ours, "run"), (theirs, "run")], turns)
            except ContestantError as error:
                return {"scale": scale, "refused": str(error)}
    return {"scale": scale, "hloexec": our_seconds, "stablehlo": their_seconds}


def _note_start(side: dict[str, Any], contestant: Contestant) -> None:
    """Add what a contestant took from the start of its process to its first output, and without JAX's own start."""
    stages = contestant.first["stages"]
    side["cold"].append(contestant.cold_seconds)
    side["stages"].append(stages)
    if "jax" in stages:
        side.setdefault("cold_beyond_jax", []).append(contestant.cold_seconds - stages["jax"])
    side["resident_bytes"] = contestant.first["grown"]


def _warm(runs: Sequence[tuple[Contestant, str]], turns: int) -> list[list[float]]:
    """Seconds of what contestants are asked to run, turn by turn; the first turn is not counted unless it takes all the
    patience there is.
    """
    seconds: list[list[float]] = [[] for _ in runs]
    for turn in range(1 + turns):
        for taken, (contestant, request) in zip(seconds, runs, strict=True):
            taken.append(contestant.ask(request)["seconds"])
        spent = sum(map(sum, seconds))
        if spent > _PATIENCE and turn in (0, *range(3, turns)):
            break
    return [taken[1:] or taken for taken in seconds]


def _agreement(files: Subject, roundings: float, folder: Path, alive: dict[str, Contestant]) -> dict[str, Any]:
    """Of whichever of hloexec's two results is nearer to its bound, or beyond it."""
    saved = {side: folder / f"{side}.results" for side in (*alive, "stirred")}
    for side, contestant in alive.items():
        contestant.ask("save", path=str(saved[side]))
    alive["xla"].ask("take", path=str(files.stirred_inputs))
    alive["xla"].ask("save", path=str(saved["stirred"]))
    expected, moved = read_arrays(saved["xla"]), read_arrays(saved["stirred"])
    found = [agreement(read_arrays(saved[side]), expected, moved, files.unit, roundings) for side in ("hloexec", "api")]
    worst = max(found, key=lambda each: each.nearness)
    return {"error": worst.error, "bound": worst.bound, "holds": worst.holds}


def _close(contestants: Iterable[Contestant]) -> None:
    for contestant in contestants:
        contestant.close()


def _median(values: list[float]) -> float:
    return statistics.median(values)
