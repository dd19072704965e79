"""The options that every function that runs a module accepts as keyword arguments.

`run` lists them with their defaults, and explains them; here are their types, for type checkers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from hloexec.core.wording import suggestion
from hloexec.engine.exec.host import Sink, Source
from hloexec.engine.exec.statistics import Statistics
from hloexec.engine.options import DEFAULTS, Options
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


def resolve_options(function: str, settings: Mapping[str, Any]) -> Options:
    """The options that a public function is given.

    TypeError, as Python has it for functions that list their keywords, where there is no option of a name; InputError
    where a value is wrong.
    """
    for name in settings:
        if name not in RunOptions.__annotations__:
            hint = suggestion(name, RunOptions.__annotations__) or "; help(hloexec.run) lists the options of runs"
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")
    return Options(**settings) if settings else DEFAULTS
