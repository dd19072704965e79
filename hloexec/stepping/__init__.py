"""Stepping through a run: breakpoints, the values where it stands still, and other values in their place.

It is a controller of the one execution (`hloexec.exec.observers.Controller`), which runs in a thread of its own and
waits there.
"""

from hloexec.stepping.breakpoints import Breakpoint
from hloexec.stepping.conditions import Condition, condition
from hloexec.stepping.stepper import Stepper, step
from hloexec.stepping.stops import Level, Stop

__all__ = ["Breakpoint", "Condition", "Level", "Stepper", "Stop", "condition", "step"]
