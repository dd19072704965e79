"""Shadows: beside each value of a run the number that it would be without rounding, and where the difference comes
from."""

from hloexec.shadowing.digits import SampledDigits
from hloexec.shadowing.findings import Decision, Loss, ShadowRun, Untold
from hloexec.shadowing.outputs import LeafError
from hloexec.shadowing.running import shadow

__all__ = ["Decision", "LeafError", "Loss", "SampledDigits", "ShadowRun", "Untold", "shadow"]
