"""Random numbers."""

from __future__ import annotations

import attrs

from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.registry import opcode

__all__ = ["RngAttributes", "RngBitGeneratorAttributes", "RngGetAndUpdateStateAttributes"]


@attrs.frozen
class RngAttributes:
    distribution: str = attribute(Grammar.ENUM, choices=("rng_uniform", "rng_normal", "rng_invalid"))


@attrs.frozen
class RngBitGeneratorAttributes:
    algorithm: str = attribute(Grammar.ENUM, choices=("rng_default", "rng_three_fry", "rng_philox"))


@attrs.frozen
class RngGetAndUpdateStateAttributes:
    delta: int = attribute(Grammar.INT)


@opcode("rng", operands=2, attributes=RngAttributes)
class Rng:
    """Samples of a uniform or normal distribution (XLA: RngUniform, RngNormal)."""


@opcode("rng-bit-generator", operands=1, attributes=RngBitGeneratorAttributes)
class RngBitGenerator:
    """(new state, bits): uniformly distributed bits out of a state (XLA: RngBitGenerator)."""


@opcode("rng-get-and-update-state", operands=0, attributes=RngGetAndUpdateStateAttributes)
class RngGetAndUpdateState:
    """The state of the run's generator, which then advances by `delta`."""
