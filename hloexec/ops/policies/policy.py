"""Numerics policies: how a run rounds.

`reference` rounds as the HLO text says; `exact` computes the same with as little rounding as the result types allow,
and gives the same bits on any processor, with any BLAS and number of threads. `random-rounding:SEED` shows with a few
runs what rounding can do to a result. The others reproduce what some backends do instead, so that a difference between
two backends can be explained by trying them.

A policy is written `tf32`; several at once `tf32+ftz`; and instructions that have others of their own
`reference,dot.3=tf32,body/add.7=excess`. Whoever computes an instruction asks `NumericsPolicy.of` for its policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any

import attrs

from hloexec.core.arguments import wrong
from hloexec.core.places import split_name
from hloexec.core.structs import frozen
from hloexec.core.wording import natural_number, quoted, suggestion
from hloexec.errors import InputError, UnsupportedError


@frozen(slots=False, cache_hash=True)
class NumericsPolicy:
    """One way of rounding."""

    name: str
    contraction_operand_mantissa_bits: int | None = None
    """Where set, f32 operands of default-precision contractions keep only so many bits of the significand."""
    cuts_operands: bool = False
    """Whether these operands are rounded towards zero, not to nearest."""
    is_exact: bool = False
    """Whether results are the same bits on every machine and within 0.5 + 2⁻²⁰ ULP: see `policies.exact`."""
    flushes_denormals: bool = False
    """Whether denormal numbers count as zeros: see `ops.policies.backends`."""
    fuses_multiply_add: bool = False
    """Whether a sum of a product is rounded once: see `plan.passes.products`."""
    has_xla_cpu_functions: bool = False
    """Whether functions of f32 are XLA:CPU's own approximations: see `ops.policies.backends`."""
    ignores_algorithms: bool = False
    """Whether a dot multiplies as its types say, whatever its `algorithm`, as XLA:CPU does."""
    rounding_seed: int | None = None
    """If set, results are rounded up or down at random: see `ops.policies.random_rounding`. Kernels and plans
    only look at whether it is set: `for_any_seed`."""
    contraction_passes: int = 1
    """How many products of parts of their operands the contractions add up that `contraction_operand_mantissa_bits`
    is about: 1, 3 or 6, as XLA's dot algorithms x3 and x6 do; see `ops.contraction.dot`."""
    keeps_excess: bool = False
    """Whether elementwise instructions read the results of others before these are rounded to bf16 or f16: see
    `ops.policies.backends`."""
    narrows_sums: bool = False
    """Whether sums of types narrower than f32 are rounded to them at each step: see
    `ops.policies.backends`."""
    has_fast_functions: bool = False
    """Whether functions of f32 are made of powers and logarithms to base 2, and of reciprocals: see
    `ops.policies.backends`."""
    keeps_formats: bool = False
    """Whether a run that rounds at random does so only in the types that results are computed in, and rounds to the
    formats that the text and the policy name as they say: what is left is what implementations of it may differ by."""
    overrides: tuple[tuple[str, NumericsPolicy], ...] = ()
    """Other policies, by names of instructions: `dot.3`, or `body/dot.3` for that of one computation."""

    @property
    def replaces_formulas(self) -> bool:
        """Whether kernels compute otherwise than under `reference`, so that nothing may be chosen in their place."""
        return (
            self.is_exact
            or self.has_xla_cpu_functions
            or self.has_fast_functions
            or self.narrows_sums
            or self.rounding_seed is not None
        )

    @property
    def changes_results(self) -> bool:
        """Whether results of kernels are changed, so that no kernel may combine several instructions."""
        return self.flushes_denormals or self.rounding_seed is not None

    @property
    def computes_by_rows(self) -> bool:
        """Whether instructions may be computed a block of rows at a time; randomly rounded sums depend on whole
        rows."""
        return not any(
            part.is_exact
            or part.flushes_denormals
            or part.has_xla_cpu_functions
            or part.has_fast_functions
            or part.narrows_sums
            or part.keeps_excess
            or part.keeps_formats
            for part in self.parts
        )

    @property
    def coarsest_operand_bits(self) -> int | None:
        """How many bits the operands of the coarsest contractions keep, all their terms together; None for all."""
        bit_counts = [
            _TERMS[part.contraction_passes] * (part.contraction_operand_mantissa_bits + 1) - 1 - part.cuts_operands
            for part in self.parts
            if part.contraction_operand_mantissa_bits is not None
        ]
        least = min(bit_counts, default=_F32_BITS)
        return least if least < _F32_BITS else None

    @property
    def parts(self) -> Iterator[NumericsPolicy]:
        """The policies that some instruction may have: this one, and those of `overrides`."""
        yield self
        for _, policy in self.overrides:
            yield policy

    @property
    def is_mode(self) -> bool:
        """Whether it holds for whole runs, as flushed denormals do, rather than for instructions that a compiler
        chooses."""
        return self.is_exact or self.flushes_denormals or self.has_xla_cpu_functions or self.rounding_seed is not None

    @property
    def plain_parts(self) -> tuple[NumericsPolicy, ...]:
        """The policies that hold at once where instructions have none of their own; none of them is `reference`."""
        names = self.name.partition(",")[0].split("+")
        if all(name in POLICIES for name in names):
            return tuple(POLICIES[name] for name in names if name != REFERENCE.name)
        return (attrs.evolve(self, name="+".join(names), overrides=()),)

    @property
    def chosen_parts(self) -> tuple[NumericsPolicy, ...]:
        """The policies that some instructions have and that are chosen for each."""
        policies = dict.fromkeys(plain for part in self.parts for plain in part.plain_parts if not plain.is_mode)
        return tuple(policies)

    def without_default(self, part: NumericsPolicy) -> NumericsPolicy:
        """The policy with one of its parts taken from all instructions that have none of their own."""
        return _with_overrides(_joined(self, part), self.overrides)

    @property
    def rounds_every_value(self) -> bool:
        """Whether instructions read the values of others only as they are shown: none is fused or kept wide."""
        return not any(part.fuses_multiply_add or part.keeps_excess for part in self.parts)

    @cached_property
    def may_keep_excess(self) -> bool:
        """Whether some instruction may read values that are not rounded yet."""
        return any(part.keeps_excess for part in self.parts)

    @cached_property
    def _by_name(self) -> dict[str, NumericsPolicy]:
        return dict(self.overrides)

    @property
    def for_any_seed(self) -> NumericsPolicy:
        """What plans are made for where policies round at random: the same with different seeds. A run gives the seed
        (`policies.chance.seeded`)."""
        return self.changed(name=RANDOM_ROUNDING, rounding_seed=0)

    def of(self, computation: str, instruction: str) -> NumericsPolicy:
        """The policy of an instruction."""
        if not self.overrides:
            return self
        override = self._by_name.get(f"{computation}/{instruction}") or self._by_name.get(instruction)
        return override or self

    def of_name(self, name: str) -> NumericsPolicy:
        """The policy of an instruction, named as `body/dot.3`."""
        return self.of(*split_name(name))

    @property
    def without_operand_rounding(self) -> NumericsPolicy:
        """What is the same of policies that round operands of contractions differently, and nothing else."""
        plain = self.changed(name="", contraction_operand_mantissa_bits=None, contraction_passes=1, cuts_operands=False)
        overrides = tuple(
            (name, policy) for name, policy in plain.overrides if policy != attrs.evolve(plain, overrides=())
        )
        return attrs.evolve(plain, overrides=overrides)

    def changed(self, **fields: Any) -> NumericsPolicy:
        """This policy with other fields, those of instructions that have their own changed, too."""
        overrides = tuple((name, attrs.evolve(policy, **fields)) for name, policy in self.overrides)
        return attrs.evolve(self, overrides=overrides, **fields)


_TERMS = {1: 1, 3: 2, 6: 3}
"""Of the operands, by the number of passes."""
_F32_BITS = 23
REFERENCE = NumericsPolicy("reference")
RANDOM_ROUNDING = "random-rounding"
"""What names of policies that round at random begin with; a colon and the seed follow."""
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
        NumericsPolicy("tf32-cut", contraction_operand_mantissa_bits=10, cuts_operands=True),
        NumericsPolicy("tf32x3", contraction_operand_mantissa_bits=10, contraction_passes=3),
        NumericsPolicy("bf16", contraction_operand_mantissa_bits=7),
        NumericsPolicy("bf16x3", contraction_operand_mantissa_bits=7, contraction_passes=3),
        NumericsPolicy("bf16x6", contraction_operand_mantissa_bits=7, contraction_passes=6),
        NumericsPolicy("excess", keeps_excess=True),
        NumericsPolicy("narrow-sums", narrows_sums=True),
        NumericsPolicy("fast-functions", has_fast_functions=True),
    )
}


def numerics_policy(name: object) -> NumericsPolicy:
    """The policy of a name, or what is one already; UnsupportedError names the ones there are.

    Several joined by `+` hold at once. Names of instructions with policies of their own follow, `,dot.3=tf32`; instead,
    a mapping has the policy of all others under `""`. InputError where it is neither, or does not make sense.
    """
    if isinstance(name, NumericsPolicy):
        return name
    if not isinstance(name, str):
        if isinstance(name, Mapping):
            return _of_mapping(name)
        raise wrong(
            "numerics",
            "the name of a policy, such as 'reference' or 'exact', a NumericsPolicy, or a mapping from the names of "
            "instructions to these",
            name,
        )
    if "," not in name:
        return _combined(name)
    first, *others = name.split(",")
    default = _combined(first)
    pairs = []
    for other in others:
        instruction, equals, policy = other.partition("=")
        if not equals or not instruction.strip():
            raise UnsupportedError(
                f"numerics policy {quoted(name)}: {quoted(other)} should be INSTRUCTION=POLICY, as in "
                "reference,dot.3=tf32"
            )
        pairs.append((instruction.strip().removeprefix("%"), _combined(policy)))
    return _with_overrides(default, pairs)


def _with_overrides(default: NumericsPolicy, overrides: Iterable[tuple[str, NumericsPolicy]]) -> NumericsPolicy:
    """A policy with others for some instructions; its name is read back as the same."""
    policies_by_name = {**dict(default.overrides), **dict(overrides)}
    plain = attrs.evolve(default, overrides=(), name=default.name.partition(",")[0])
    if not policies_by_name:
        return plain
    for name, policy in policies_by_name.items():
        if policy.overrides or policy.rounding_seed is not None or default.rounding_seed is not None:
            raise InputError(f"numerics: the policy of %{name} must be a plain one, and so must that of all others")
    names = ",".join(f"{name}={policy.name}" for name, policy in policies_by_name.items())
    return attrs.evolve(plain, name=f"{plain.name},{names}", overrides=tuple(policies_by_name.items()))


def _of_mapping(given: Mapping[object, object]) -> NumericsPolicy:
    if not given:
        raise wrong("numerics", "a mapping that has a policy for some instruction, or for all others under ''", given)
    for name in given:
        if not isinstance(name, str):
            raise wrong("numerics", "a mapping from the names of instructions to policies", name)
    pairs = [(str(name).removeprefix("%"), numerics_policy(policy)) for name, policy in given.items()]
    default = next((policy for name, policy in pairs if not name), REFERENCE)
    return _with_overrides(default, [pair for pair in pairs if pair[0]])


def mixed(base: NumericsPolicy, policy: NumericsPolicy, names: Iterable[str]) -> NumericsPolicy | None:
    """A policy for some instructions, on top of those that they have under another; None where these contradict it."""
    overrides, changes = dict(base.overrides), []
    default = _with_overrides(attrs.evolve(base, overrides=()), ())
    for name in names:
        combination = combined(overrides.get(name, default), policy)
        if combination is None:
            return None
        changes.append((name, combination))
    return _with_overrides(base, changes)


def without(base: NumericsPolicy, part: NumericsPolicy, names: Iterable[str]) -> NumericsPolicy:
    """A policy with one of its parts taken from some instructions, named as `body/dot.3`."""
    default = _with_overrides(attrs.evolve(base, overrides=()), ())
    found = {**dict(base.overrides), **{name: _joined(base.of_name(name), part) for name in names}}
    return _with_overrides(default, [(name, policy) for name, policy in found.items() if policy != default])


def _joined(policy: NumericsPolicy, left_out: NumericsPolicy) -> NumericsPolicy:
    """What holds where instructions have no policies of their own, without one of its parts."""
    remainder = REFERENCE
    for part in policy.plain_parts:
        if part != left_out:
            both = combined(remainder, part)
            assert both is not None
            remainder = both
    return remainder


def combined(first: NumericsPolicy, second: NumericsPolicy) -> NumericsPolicy | None:
    """Both of two policies at once, also where instructions have others of their own; None where they contradict one
    another."""
    if first in (REFERENCE, second):
        return second
    if second == REFERENCE:
        return first
    rounds = [
        (part.contraction_operand_mantissa_bits, part.contraction_passes, part.cuts_operands)
        for part in (first, second)
    ]
    if None not in (rounds[0][0], rounds[1][0]) and rounds[0] != rounds[1]:
        return None
    if (first.has_xla_cpu_functions or second.has_xla_cpu_functions) and (
        first.has_fast_functions or second.has_fast_functions
    ):
        return None
    changes: dict[str, Any] = {}
    for field in attrs.fields(NumericsPolicy):
        ours, theirs = getattr(first, field.name), getattr(second, field.name)
        if field.name in ("name", "overrides") or theirs == field.default:
            continue
        if ours not in (field.default, theirs):
            return None
        changes[field.name] = theirs
    plain = first.name.partition(",")[0]
    default = attrs.evolve(first, overrides=(), name=f"{plain}+{second.name}", **changes)
    overrides = [(name, combined(policy, second)) for name, policy in first.overrides]
    if any(policy is None for _, policy in overrides):
        return None
    return _with_overrides(default, [(name, policy) for name, policy in overrides if policy is not None])


@lru_cache(256)
def _combined(text: str) -> NumericsPolicy:
    """The policy of names joined by `+`; UnsupportedError where two of them want different things."""
    first, *others = (_plain(name.strip()) for name in text.strip().split("+"))
    for other in others:
        both = combined(first, other)
        if both is None:
            raise UnsupportedError(
                f"numerics policy {quoted(text)}: {first.name} and {other.name} contradict one another; give one of "
                "them"
            )
        first = both
    return first


def _plain(name: str) -> NumericsPolicy:
    prefix, _, text = name.partition(":")
    seed = natural_number(text) if prefix == RANDOM_ROUNDING else None
    if seed is not None:
        return NumericsPolicy(f"{RANDOM_ROUNDING}:{seed}", rounding_seed=seed)
    policy = POLICIES.get(name)
    if policy is None:
        policy_names = ", ".join((*POLICIES, f"{RANDOM_ROUNDING}:SEED"))
        near = suggestion(name, POLICIES)
        raise UnsupportedError(f"unknown numerics policy {quoted(name)}; the policies are {policy_names}{near}")
    return policy
