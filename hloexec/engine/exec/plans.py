"""`plan_of`: the plan of a module under options.

Plans are cached for the lifetime of their module, so a second run of the same module object starts at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import attrs

from hloexec.core.arguments import byte_count, named_computation, require_flags, require_module, wrong
from hloexec.core.ir import Computation, Module
from hloexec.core.lifetimes import remembered
from hloexec.core.structs import define
from hloexec.engine.plan.pipeline import Options
from hloexec.engine.plan.planner import build
from hloexec.engine.plan.steps import Plan
from hloexec.errors import InputError
from hloexec.ops.policies.policy import NumericsPolicy, numerics_policy
from hloexec.ops.registry import find_custom_call


@define(eq=False)
class _Known:
    """What is known of a module."""

    is_verified: bool = False
    plans: dict[Any, Plan] = attrs.field(factory=dict)
    """By options."""
    usual: dict[Any, Plan] = attrs.field(factory=dict)
    """The same for what most runs are given, by that as it is given."""


_NEAR = 0.8
"""How similar names must be for one to be suggested for the other: `dot.3` and `dot.4`, or one letter of seven."""


@remembered
def _known_of(module: Module) -> _Known:
    return _Known()


def plan_of(
    module: Module,
    *,
    numerics: str | NumericsPolicy = "reference",
    computation: str | None = None,
    elided: str | Mapping[str, Any] = "zeros",
    unknown: str = "error",
    memory_limit: int | str | None = None,
    verify: bool = True,
    planner: bool = True,
    is_observed: bool = False,
    is_controlled: bool = False,
    last_pass: str | None = None,
) -> Plan:
    """The plan of a module or of one of its computations; made once per module object and set of options.

    `planner=False` leaves out all optimizations, `last_pass` those behind the one that it names.
    """
    is_usual = verify is True and planner is True and computation is memory_limit is last_pass is None
    is_usual = is_usual and type(numerics) is type(elided) is type(unknown) is str
    usual = numerics, elided, unknown, is_observed, is_controlled
    if is_usual:
        plan = _known_of(module).usual.get(usual) if isinstance(module, Module) else None
        if plan is not None and _is_current(plan):
            return plan
    if not isinstance(module, Module):
        require_module(module)
    if verify is not True or planner is not True:
        require_flags(verify=verify, planner=planner)
    entry = module.entry if computation is None else named_computation(module, computation)
    policy = numerics_policy(numerics)
    require_elided(elided)
    if not _is_one_of(unknown, "error", "zeros", "random"):
        raise wrong("unknown", "one of error, zeros, random", unknown)
    if policy.overrides:
        require_policy_names(module, policy)
    limit = None if memory_limit is None else byte_count("memory_limit", memory_limit)
    options = Options(policy, elided, unknown, planner, is_observed, is_controlled, last_pass)
    known = _known_of(module)
    if verify and not known.is_verified:
        # Imported late: a verified module never needs it again.
        from hloexec.language.verifier import verify as verify_module

        verify_module(module)
        known.is_verified = True
    with explained_unless_verified(module, bool(verify)):
        plan = _kept_plan(known, module, entry, options, limit)
    if is_usual:
        known.usual[usual] = plan
    return plan


def require_elided(elided: object) -> None:
    """InputError unless it says what elided constants are."""
    if not _is_one_of(elided, "zeros", "random", "error") and not _are_values_by_name(elided):
        raise wrong("elided", "one of zeros, random, error, or a mapping from names to arrays", elided)


def plan_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options of a run that `plan_of` takes."""
    names = ("numerics", "computation", "elided", "unknown", "memory_limit", "verify", "planner")
    return {name: options[name] for name in names if name in options}


def explained_unless_verified(module: Module, verify: bool) -> AbstractContextManager[None]:
    """Work on a module; where that fails and `verify=False`, VerificationError says what is wrong with the module."""
    if verify is not False:
        return nullcontext()
    from hloexec.language.verifier import explained

    return explained(module)


def require_policy_names(module: Module, policy: NumericsPolicy) -> None:
    """InputError where a policy is for an instruction that is not there."""
    homes: dict[str, list[str]] = {}
    for computation in module:
        for instruction in computation:
            homes.setdefault(instruction.name, []).append(computation.name)
    for name, _ in policy.overrides:
        home, _, own = name.rpartition("/")
        if name not in homes and home not in homes.get(own, []):
            from difflib import get_close_matches

            # The names of computations count for nothing here: those that share a long one are not near.
            close = next(iter(get_close_matches(own, homes, 1, _NEAR)), None)
            if close is not None and home:
                close = f"{home if home in homes[close] else homes[close][0]}/{close}"
            hint = "" if close is None else f"; did you mean {close!r}?"
            raise InputError(f"numerics has a policy for {name!r}, but {module.name} has no such instruction{hint}")


def _kept_plan(known: _Known, module: Module, entry: Computation, options: Options, limit: int | None) -> Plan:
    """The plan that was made before, as long as nothing that it was made of has changed; else a new one."""
    if options.numerics.rounding_seed is not None:
        options = attrs.evolve(options, numerics=options.numerics.for_any_seed)
    if not isinstance(options.elided, str):
        return build(module, entry, options, limit)
    key = entry.name, options
    plan = known.plans.get(key)
    if plan is None or not _is_current(plan):
        plan = known.plans[key] = build(module, entry, options, limit)
    return plan


def _is_current(plan: Plan) -> bool:
    """Whether the library calls that a plan was made of are still the ones there are."""
    calls = plan.library_calls
    return not calls or all(find_custom_call(target) is call for target, call in calls.items())


def _is_one_of(given: object, *words: str) -> bool:
    return isinstance(given, str) and given in words


def _are_values_by_name(given: object) -> bool:
    return isinstance(given, Mapping) and all(isinstance(name, str) for name in given)
