"""Stepping through a run: breakpoints, the values where it stands still, and other values in their place.

It is a controller of the one execution (`exec.observers.Controller`), which runs in a thread of its own and
waits there.
"""

from hloexec.tools.stepping.breakpoints import Breakpoint
from hloexec.tools.stepping.conditions import Condition, condition
from hloexec.tools.stepping.controlling import Level, Stop
from hloexec.tools.stepping.stepper import Stepper, step

__all__ = ["Breakpoint", "Condition", "Level", "Stepper", "Stop", "condition", "step"]
