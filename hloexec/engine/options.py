"""The options of a run as one object, which all that takes place behind the public functions is given.

Each option's default is said here, its value checked, and what stands for another (the name of a policy, a size in
words) resolved, once, where it enters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from hloexec.core.arguments import (
    byte_count,
    require_flags,
    require_integer,
    require_number,
    require_seed,
    require_text,
    wrong,
)
from hloexec.core.structs import frozen
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy, numerics_policy

if TYPE_CHECKING:
    from hloexec.engine.devices.topology import Topology


def _checked(default: Any, require: Callable[..., None], *arguments: object) -> Any:
    """A field whose values `require` checks; the default needs no check."""

    def validate(_: Options, field: attrs.Attribute[Any], value: object) -> None:
        if value is not default:
            require(field.name, value, *arguments)

    return attrs.field(default=default, validator=validate)


def _seed(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        require_seed(value)
    return int(value)


def _bytes(value: object) -> int | None:
    return None if value is None else byte_count("memory_limit", value)


def _is_one_of(argument: object, *words: str) -> bool:
    return isinstance(argument, str) and argument in words


def require_elided(name: str, value: object) -> None:
    """InputError unless it says what elided constants are."""
    is_by_name = isinstance(value, Mapping) and all(isinstance(each, str) for each in value)
    if not is_by_name and not _is_one_of(value, "zeros", "random", "error"):
        raise wrong(name, "one of zeros, random, error, or a mapping from names to arrays", value)


def _require_unknown(name: str, value: object) -> None:
    if not _is_one_of(value, "error", "zeros", "random"):
        raise wrong(name, "one of error, zeros, random", value)


def _require_flag(name: str, value: object) -> None:
    require_flags(**{name: value})


@frozen(slots=False)
class Options:
    """The options of a run, checked and resolved; `**options` gives them to a public function.

    How many devices there are, and what is filled in and exchanged with the host, is checked where the module runs.
    """

    computation: str | None = _checked(None, require_text, "the name of a computation")
    numerics: NumericsPolicy = attrs.field(default=REFERENCE, converter=numerics_policy)
    seed: int = attrs.field(default=0, converter=_seed)
    elided: str | Mapping[str, Any] = _checked("zeros", require_elided)
    unknown: str = _checked("error", _require_unknown)
    memory_limit: int | None = attrs.field(default=None, converter=_bytes)
    max_iterations: int | None = _checked(None, require_integer, 1)
    timeout: float | None = _checked(None, require_number)
    verify: bool = _checked(True, _require_flag)
    planner: bool = _checked(True, _require_flag)
    check: bool = _checked(False, _require_flag)
    statistics: Any = None
    infeed: Any = None
    outfeed: Any = None
    host_transfers: Any = None
    replicas: int | None = None
    partitions: int | None = None
    is_observed: bool = False
    """Whether plans keep a step for each instruction that only renames values, so that observers see them all."""
    is_controlled: bool = False
    """Whether what only renames values has slots of its own, so that an observer can replace a value for its users."""
    last_pass: str | None = None
    """The pass after which to stop, one of PASS_NAMES; None: the last."""

    def keys(self) -> Iterator[str]:
        """The options that callers may give and that differ from their defaults."""
        for name, default in vars(DEFAULTS).items():
            value = getattr(self, name)
            if value is not default and (default is None or value != default):
                yield name

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    @property
    def plan_key(self) -> tuple[object, ...] | None:
        """What plans of a module differ by; None where they are not kept."""
        if not isinstance(self.elided, str):
            return None
        choices = self.computation, self.numerics, self.elided, self.unknown, self.planner
        return *choices, self.is_observed, self.is_controlled, self.last_pass

    def on(self, topology: Topology) -> Options:
        """The same on so many devices."""
        return attrs.evolve(self, replicas=topology.replicas, partitions=topology.partitions)

    @property
    def of_parts(self) -> Options:
        """What holds for parts of the module, too, which may not have the constants that values are given for."""
        elided = self.elided if isinstance(self.elided, str) else "zeros"
        kept = {name: self[name] for name in ("numerics", "seed", "unknown", "memory_limit")}
        return Options(elided=elided, **kept)


DEFAULTS = Options()
