"""The options that every function that runs a module accepts and passes to `run_devices`.

`run` lists them with their defaults, and explains them; here are their types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from hloexec.core.arguments import require_seed, require_text
from hloexec.core.wording import suggestion
from hloexec.engine.exec.host import Sink, Source
from hloexec.engine.exec.statistics import Statistics
from hloexec.ops.policies.policy import NumericsPolicy


class RunOptions(TypedDict, total=False):
    """Options of `run_devices`, as keyword arguments; `help(hloexec.run)` explains them."""

    replicas: int | None
    partitions: int | None
    computation: str | None
    numerics: str | NumericsPolicy
    seed: int
    elided: str | Mapping[str, Any]
    unknown: str
    memory_limit: int | str | None
    max_iterations: int | None
    timeout: float | None
    verify: bool
    planner: bool
    check: bool
    statistics: Statistics | None
    infeed: Sequence[Source] | None
    outfeed: Sequence[Sink] | None
    host_transfers: Sequence[Mapping[int, Source | Sink]] | None


def require_run_options(function: str, options: Mapping[str, object]) -> None:
    """TypeError, as Python has it for functions that list their keywords, where there is no option of a name.

    What functions look at before they run the module is of the right type, too, else InputError.
    """
    if options.get("computation") is not None:
        require_text("computation", options["computation"], "the name of a computation")
    require_seed(options.get("seed", 0))
    for name in options:
        if name not in RunOptions.__annotations__:
            hint = suggestion(name, RunOptions.__annotations__) or "; help(hloexec.run) lists the options of runs"
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")
