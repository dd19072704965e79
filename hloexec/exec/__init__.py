"""Execution: the machine that runs plans, observers, and what a run needs."""

from hloexec.exec.observers import Event, InstructionObserver, Observer, PathEntry, Progress, ProgressObserver
from hloexec.exec.running import plan_of, run, run_devices
from hloexec.plan.program import Requirement, unsupported

__all__ = [
    "Event",
    "InstructionObserver",
    "Observer",
    "PathEntry",
    "Progress",
    "ProgressObserver",
    "Requirement",
    "plan_of",
    "run",
    "run_devices",
    "unsupported",
]
