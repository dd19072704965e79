"""What holds for all modules of a triage: how they run, what they are compared with, and what each may take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from hloexec.core.structs import frozen
from hloexec.engine.options import Options
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy, numerics_policy
from hloexec.tools.minifying.oracles import XLA

_SEARCH_SHARE = 1 / 3
"""A search for what is to blame, or for a policy, takes so much of the time at most."""


@frozen
class Settings:
    """The options that results depend on."""

    against: str | None
    """`xla-cpu`, or the name of a numerics policy; None where each module has something else to be compared with."""
    numerics: str
    seed: int
    elided: str
    unknown: str
    timeout: float
    """Seconds that a module may take."""
    memory: int
    """Bytes that a module may take."""
    distribution: str = "normal"
    """What random inputs are like."""

    @property
    def is_against_xla(self) -> bool:
        return self.against == XLA

    @property
    def policy(self) -> NumericsPolicy | None:
        """The policy that modules are compared with."""
        named = self.against is not None and not self.is_against_xla
        return numerics_policy(str(self.against).removeprefix("policy:")) if named else None

    @property
    def search_seconds(self) -> float:
        """What one of the searches may take."""
        return self.timeout * _SEARCH_SHARE

    @property
    def options(self) -> Options:
        """How modules run."""
        policy = numerics_policy(self.numerics)
        return Options(
            numerics=policy, seed=self.seed, elided=self.elided, unknown=self.unknown, memory_limit=self.memory
        )

    @property
    def trial_options(self) -> Options:
        """The same, but for the policy, for what tries policies."""
        return attrs.evolve(self.options, numerics=REFERENCE)

    @property
    def identity(self) -> dict[str, Any]:
        """All but the limits, which decide how far a search gets, but not what is right."""
        return {name: value for name, value in attrs.asdict(self).items() if name not in ("timeout", "memory")}

    def differing(self, record: Mapping[str, Any]) -> list[str]:
        """What is otherwise in the record of other settings, in words."""
        return [
            f"{name} was {record.get(name)!r}" for name, value in self.identity.items() if record.get(name) != value
        ]
