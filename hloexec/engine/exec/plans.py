"""`plan_of`: the plan of a module under options.

Plans are cached for the lifetime of their module, so a second run of the same module object starts at once.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import attrs

from hloexec.core.arguments import named_computation, require_module
from hloexec.core.ir import Module
from hloexec.core.lifetimes import remembered
from hloexec.core.places import spell_name, split_name
from hloexec.core.structs import define
from hloexec.engine.options import DEFAULTS, Options
from hloexec.engine.plan.planner import build
from hloexec.engine.plan.steps import Plan
from hloexec.errors import InputError
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import find_custom_call


@define(eq=False)
class _Known:
    """What is known of a module."""

    is_verified: bool = False
    plans: dict[Any, Plan] = attrs.field(factory=dict)
    """By what of the options they depend on."""


_NEAR = 0.8
"""How similar names must be for one to be suggested for the other: `dot.3` and `dot.4`, or one letter of seven."""


@remembered
def _known_of(module: Module) -> _Known:
    return _Known()


def plan_of(module: Module, options: Options = DEFAULTS, **more: Any) -> Plan:
    """The plan of a module or of one of its computations; made once per module object and set of options.

    `more` are options that change or add to these. `planner=False` leaves out all optimizations, `last_pass` those
    behind the one that it names.
    """
    if more:
        options = attrs.evolve(options, **more)
    if options.numerics.rounding_seed is not None:
        options = attrs.evolve(options, numerics=options.numerics.for_any_seed)
    if not isinstance(module, Module):
        require_module(module)
    known, key = _known_of(module), options.plan_key
    plan = known.plans.get(key)
    if plan is not None and _is_current(plan) and (known.is_verified or not options.verify):
        return plan
    name, policy = options.computation, options.numerics
    entry = module.entry if name is None else named_computation(module, name)
    if policy.overrides:
        require_policy_names(module, policy)
    if options.verify and not known.is_verified:
        # Imported late: a verified module never needs it again.
        from hloexec.language.verifier import verify

        verify(module)
        known.is_verified = True
    with explained_unless_verified(module, options.verify):
        plan = build(module, entry, options)
    if key is not None:
        known.plans[key] = plan
    return plan


def explained_unless_verified(module: Module, verify: bool) -> AbstractContextManager[None]:
    """Work on a module; where that fails and `verify=False`, VerificationError says what is wrong with the module."""
    if verify:
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
        home, own = split_name(name)
        if name not in homes and home not in homes.get(own, []):
            from difflib import get_close_matches

            # The names of computations count for nothing here: those that share a long one are not near.
            close = next(iter(get_close_matches(own, homes, 1, _NEAR)), None)
            if close is not None and home:
                close = spell_name(home if home in homes[close] else homes[close][0], close)
            hint = "" if close is None else f"; did you mean {close!r}?"
            raise InputError(f"numerics has a policy for {name!r}, but {module.name} has no such instruction{hint}")


def _is_current(plan: Plan) -> bool:
    """Whether the library calls that a plan was made of are still the ones there are."""
    calls = plan.library_calls
    return not calls or all(find_custom_call(target) is call for target, call in calls.items())
