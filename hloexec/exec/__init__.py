"""Execution: planning, the single-device machine, memory limits, observers."""

from hloexec.exec.memory import Statistics
from hloexec.exec.observers import Event, InstructionObserver, Observer, PathEntry, Progress, ProgressObserver
from hloexec.exec.requirements import Requirement, unsupported
from hloexec.exec.running import plan_of, run

__all__ = [
    "Event",
    "InstructionObserver",
    "Observer",
    "PathEntry",
    "Progress",
    "ProgressObserver",
    "Requirement",
    "Statistics",
    "plan_of",
    "run",
    "unsupported",
]
