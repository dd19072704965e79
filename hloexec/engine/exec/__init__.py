"""Execution: the interpreter of plans, observers, and the environment of a run."""

from hloexec.core.places import PathEntry
from hloexec.engine.exec.observers import (
    Controller,
    Event,
    Failure,
    InstructionObserver,
    Observer,
    Progress,
    ProgressObserver,
)
from hloexec.engine.exec.running import plan_of, run, run_devices
from hloexec.engine.plan.program import Requirement, unsupported

__all__ = [
    "Controller",
    "Event",
    "Failure",
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
