"""Shadows: beside each value of a run the number that it would be without rounding, and where the difference comes
from."""

from hloexec.tools.shadowing.outputs import LeafError
from hloexec.tools.shadowing.running import Decision, InstructionError, Loss, SampledDigits, ShadowRun, Untold, shadow

__all__ = ["Decision", "InstructionError", "LeafError", "Loss", "SampledDigits", "ShadowRun", "Untold", "shadow"]
