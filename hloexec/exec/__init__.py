"""Execution: planning, the machine, memory limits, observers."""

from hloexec.exec.counting import Statistics
from hloexec.exec.observers import Event, InstructionObserver, Observer, PathEntry, Progress, ProgressObserver
from hloexec.exec.requirements import Requirement, unsupported
from hloexec.exec.running import plan_of, run, run_devices
from hloexec.exec.sharding import shard_inputs, unshard_outputs

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
    "run_devices",
    "shard_inputs",
    "unshard_outputs",
    "unsupported",
]
