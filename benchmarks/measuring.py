"""The protocol: cold starts in turns, each in a fresh process, then warm runs in turns, then memory and results."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.agreement import agreement, relative_roundings
from benchmarks.arrays import read_arrays
from benchmarks.driving import Contestant, ContestantError
from benchmarks.subjects import Subject, subject

__all__ = ["against_interpreter", "against_xla"]

_PATIENCE = 20.0
"""Seconds of warm runs after which no further turn starts, once there were three."""


def against_xla(name: str, *, scale: float = 1.0, turns: int = 7, cold_turns: int = 3) -> dict[str, Any]:
    """Everything about one module on hloexec and on XLA:CPU, as the JSON holds it; times in seconds, sizes in bytes.

    Raises ContestantError where one of them cannot do it.
    """
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        files = subject(name, folder, scale)
        modules = {"hloexec": files.hlo, "xla": files.peer}
        found: dict[str, dict[str, Any]] = {side: {"cold": [], "stages": []} for side in modules}
        alive: dict[str, Contestant] = {}
        try:
            for _ in range(cold_turns):
                _close(alive.values())
                for side, module in modules.items():
                    alive[side] = Contestant(side, module, files.inputs, files.devices)
                    found[side]["cold"].append(alive[side].cold_seconds)
                    found[side]["stages"].append(alive[side].first["stages"])
                    found[side]["resident_bytes"] = alive[side].first["grown"]
            for side, seconds in _warm(alive, turns).items():
                found[side]["warm"] = seconds
            for side, contestant in alive.items():
                memory = contestant.ask("memory")
                found[side]["assigned_bytes"] = memory["bytes"]
                if side == "hloexec":
                    roundings = relative_roundings(files.unit, memory["instructions"], files.elements)
            agreed = _agreement(files, roundings, folder, alive)
        finally:
            _close(alive.values())
    for side in found.values():
        side["stages"] = {stage: _median([turn[stage] for turn in side["stages"]]) for stage in side["stages"][0]}
    return {"scale": scale, **found, "agreement": agreed}


def against_interpreter(name: str, *, scale: float = 0.1, turns: int = 3, timeout: float = 300.0) -> dict[str, Any]:
    """Warm runs on hloexec and the StableHLO interpreter; what the latter cannot do is said under `refused`."""
    with tempfile.TemporaryDirectory() as folder:
        files = subject(name, Path(folder), scale)
        with Contestant("hloexec", files.hlo, files.inputs, files.devices) as ours:
            try:
                with Contestant("stablehlo", files.peer, files.inputs, timeout=timeout) as theirs:
                    seconds = _warm({"hloexec": ours, "stablehlo": theirs}, turns)
            except ContestantError as error:
                return {"scale": scale, "refused": str(error)}
    return {"scale": scale, **seconds}


def _warm(contestants: dict[str, Contestant], turns: int) -> dict[str, list[float]]:
    """Seconds of a run, turn by turn; the first turn is not counted unless it takes all the patience there is."""
    seconds: dict[str, list[float]] = {side: [] for side in contestants}
    for turn in range(1 + turns):
        for side, contestant in contestants.items():
            seconds[side].append(contestant.ask("run")["seconds"])
        spent = sum(map(sum, seconds.values()))
        if spent > _PATIENCE and turn in (0, *range(3, turns)):
            break
    return {side: taken[1:] or taken for side, taken in seconds.items()}


def _agreement(files: Subject, roundings: float, folder: Path, alive: dict[str, Contestant]) -> dict[str, Any]:
    saved = {side: folder / f"{side}.results" for side in (*alive, "stirred")}
    for side, contestant in alive.items():
        contestant.ask("save", path=str(saved[side]))
    alive["xla"].ask("take", path=str(files.stirred_inputs))
    alive["xla"].ask("save", path=str(saved["stirred"]))
    actual, expected, moved = (read_arrays(saved[side]) for side in ("hloexec", "xla", "stirred"))
    found = agreement(actual, expected, moved, files.unit, roundings)
    return {"error": found.error, "bound": found.bound, "holds": found.holds}


def _close(contestants: Iterable[Contestant]) -> None:
    for contestant in contestants:
        contestant.close()


def _median(values: list[float]) -> float:
    return statistics.median(values)
