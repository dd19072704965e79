"""Shadows: beside each value of a run the number that it would be without rounding, and where the difference comes
from."""

from hloexec.tools.shadowing.digits import SampledDigits
from hloexec.tools.shadowing.findings import Decision, Loss, ShadowRun, Untold
from hloexec.tools.shadowing.outputs import LeafError
from hloexec.tools.shadowing.running import shadow

__all__ = ["Decision", "LeafError", "Loss", "SampledDigits", "ShadowRun", "Untold", "shadow"]
