"""Narrowing: which instructions of a module may compute in a narrower type, found by running what results.

`candidates` says what can be narrowed, `rewriting` does it, `measuring` runs modules, over several steps where the
module is a training step, and says how far their outputs lie from those of the original, and `search` looks for as much
as the tolerance allows. `running` has the function that users call.
"""

from hloexec.tools.narrowing.findings import (
    Carried,
    Deviation,
    Handed,
    InstructionVerdict,
    Narrowing,
    OutputDeviation,
    Standing,
)
from hloexec.tools.narrowing.running import narrow

__all__ = ["Carried", "Deviation", "Handed", "InstructionVerdict", "Narrowing", "OutputDeviation", "Standing", "narrow"]
