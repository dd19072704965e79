"""Execution: the interpreter of plans, observers, and the environment of a run."""

from hloexec.exec.observers import (
    Controller,
    Event,
    Failure,
    InstructionObserver,
    Observer,
    PathEntry,
    Progress,
    ProgressObserver,
)
from hloexec.exec.plans import plan_of
from hloexec.exec.running import run, run_devices
from hloexec.plan.program import Requirement, unsupported

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
