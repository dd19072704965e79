"""Numerics policies: how a run rounds.

`reference` rounds as the HLO text says; `exact` computes the same with as little rounding as the result types allow,
and gives the same bits on any processor, with any BLAS and number of threads. `random-rounding:SEED` shows with a few
runs what rounding can do to a result. The others reproduce what some backends do instead, so that a difference between
two backends can be explained by trying them.
"""

from __future__ import annotations

import attrs

from hloexec.arguments import wrong
from hloexec.errors import UnsupportedError

__all__ = ["POLICIES", "REFERENCE", "NumericsPolicy", "numerics_policy"]


@attrs.frozen
class NumericsPolicy:
    """One way of rounding."""

    name: str
    contraction_operand_mantissa_bits: int | None = None
    """Where set, f32 operands of default-precision contractions keep only so many bits of the significand."""
    is_exact: bool = False
    """Whether results are the same bits on every machine and within 0.5 + 2⁻²⁰ ULP: see `policies.exact`."""
    flushes_denormals: bool = False
    """Whether denormal numbers count as zeros: see `hloexec.ops.policies.flushing`."""
    fuses_multiply_add: bool = False
    """Whether a sum of a product is rounded once: see `hloexec.plan.passes.fma`."""
    has_xla_cpu_functions: bool = False
    """Whether functions of f32 are XLA:CPU's own approximations: see `hloexec.ops.policies.xla_cpu`."""
    ignores_algorithms: bool = False
    """Whether a dot multiplies as its types say, whatever its `algorithm`, as XLA:CPU does."""
    rounding_seed: int | None = None
    """If set, results are rounded up or down at random: see `hloexec.ops.policies.random_rounding`."""

    @property
    def replaces_formulas(self) -> bool:
        """Whether kernels compute otherwise than under `reference`, so that nothing may be chosen in their place."""
        return self.is_exact or self.has_xla_cpu_functions or self.rounding_seed is not None

    @property
    def changes_results(self) -> bool:
        """Whether results of kernels are changed, so that no kernel may combine several instructions."""
        return self.flushes_denormals or self.rounding_seed is not None

    @property
    def computes_by_rows(self) -> bool:
        """Whether instructions may be computed a block of rows at a time; randomly rounded sums depend on whole
        rows."""
        return not (self.is_exact or self.flushes_denormals or self.has_xla_cpu_functions)


REFERENCE = NumericsPolicy("reference")
RANDOM_ROUNDING = "random-rounding"
"""What names of policies that round at random begin with; a colon and the seed follow."""
_MOST_DIGITS = 19
"""Of a seed; Python takes no numbers of thousands of digits."""
POLICIES = {
    policy.name: policy
    for policy in (
        REFERENCE,
        NumericsPolicy("exact", is_exact=True),
        NumericsPolicy("ftz", flushes_denormals=True),
        NumericsPolicy(
            "xla-cpu",
            flushes_denormals=True,
            fuses_multiply_add=True,
            has_xla_cpu_functions=True,
            ignores_algorithms=True,
        ),
        NumericsPolicy("tf32", contraction_operand_mantissa_bits=10),
        NumericsPolicy("bf16", contraction_operand_mantissa_bits=7),
    )
}


def numerics_policy(name: object) -> NumericsPolicy:
    """The policy of a name, or what is one already; UnsupportedError names the ones there are.

    InputError where it is neither.
    """
    if isinstance(name, NumericsPolicy):
        return name
    if not isinstance(name, str):
        raise wrong("numerics", "the name of a policy, such as 'reference' or 'exact', or a NumericsPolicy", name)
    prefix, colon, seed = name.partition(":")
    if prefix == RANDOM_ROUNDING and colon and seed.isdecimal() and seed.isascii() and len(seed) <= _MOST_DIGITS:
        return NumericsPolicy(f"{RANDOM_ROUNDING}:{int(seed)}", rounding_seed=int(seed))
    found = POLICIES.get(name)
    if found is None:
        known = ", ".join((*POLICIES, f"{RANDOM_ROUNDING}:SEED"))
        raise UnsupportedError(f"unknown numerics policy {name!r}; the policies are {known}")
    return found
