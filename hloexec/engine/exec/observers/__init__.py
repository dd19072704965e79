"""Observers: the single interface for watching a run.

An observer is an object with either of two methods. `on_instruction(event)` is called after each instruction of the
program, including those that only forward values and those inside fusions and loops. `on_progress(progress)` is called
from time to time, for progress bars. What does more than run a module, such as `hloexec.diff`, calls `on_stage(stage)`
of those that have it. Without observers a run has no overhead for them, and no observer can change a
result: the arrays that it sees are read-only. Only a controller may, which is an observer with a method
`on_value(event)`: what it returns takes the value's place. Under it, instructions run one by one.
"""

from hloexec.core.places import PathEntry
from hloexec.engine.exec.observers.attached import UNOBSERVED, UNREPLACEABLE, Attached, Stages, attach
from hloexec.engine.exec.observers.events import (
    Activation,
    Event,
    Failure,
    LoopState,
    PathMemo,
    Place,
    Progress,
    Stage,
    call_path,
    path_entry,
    path_of,
)
from hloexec.engine.exec.observers.protocols import (
    Controller,
    InstructionObserver,
    LoopObserver,
    Observer,
    ProgressObserver,
    StageObserver,
)

__all__ = [
    "UNOBSERVED",
    "UNREPLACEABLE",
    "Activation",
    "Attached",
    "Controller",
    "Event",
    "Failure",
    "InstructionObserver",
    "LoopObserver",
    "LoopState",
    "Observer",
    "PathEntry",
    "PathMemo",
    "Place",
    "Progress",
    "ProgressObserver",
    "Stage",
    "StageObserver",
    "Stages",
    "attach",
    "call_path",
    "path_entry",
    "path_of",
]
