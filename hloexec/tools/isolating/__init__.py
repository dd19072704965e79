"""Isolation: each fusion, instruction or computation of a module as a module of its own, on a counterpart, with the
operands that it has in a run.

`units` makes the modules, `running` collects their operands in the run, `judging` compares, explains and keeps what
differs; `elements` has those few that it takes bounds for. The results are in `findings`.
"""

from hloexec.tools.isolating.findings import IsolatedUnit, Isolation
from hloexec.tools.isolating.running import isolate

__all__ = ["IsolatedUnit", "Isolation", "isolate"]
