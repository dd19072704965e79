"""The passes, in order: how a lowered computation becomes a plan that runs.

Inlining and (under `xla-cpu`) fused multiply-adds belong to every plan. The others are optimizations, and change no bit
of any value. A fault in one of them does not make a run fail: the plan stays as it was before, with a warning. A pass
is imported only if a plan has something that it could work on, so that small programs do not wait for all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hloexec.core.structs import frozen
from hloexec.engine.plan.memory import with_lifetimes
from hloexec.engine.plan.optimization_errors import warn_of_failure
from hloexec.engine.plan.regions import LEAST_BYTES
from hloexec.engine.plan.steps import Invocation, Plan, While
from hloexec.ops.policies.policy import NumericsPolicy


@frozen
class Options:
    """What of a run's options a plan depends on; the values are checked where a run begins."""

    numerics: NumericsPolicy
    elided: Any = "zeros"
    """`zeros`, `random`, `error`, or a mapping from instruction names to arrays."""
    unknown: str = "error"
    """What library calls without an implementation give: `error`, `zeros` or `random`."""
    is_optimized: bool = True
    """Whether passes reorganise the steps; else every instruction runs by itself, as it is written."""
    is_observed: bool = False
    """Whether plans keep a step for each instruction that only renames values, so that observers see them all."""
    is_controlled: bool = False
    """Whether what only renames values has slots of its own, so that an observer can replace a value for its users."""
    last_pass: str | None = None
    """The pass after which to stop, one of PASS_NAMES; None: the last."""


def _has_loops(plan: Plan) -> bool:
    return any(isinstance(step.flow, While) for step in plan.steps)


def _has_large_values(plan: Plan) -> bool:
    return any(shape.byte_size >= LEAST_BYTES for shape in plan.slot_shapes)


def _has_products(plan: Plan) -> bool:
    return any(isinstance(step.flow, While) or (step.kernel and step.kernel.may_multiply) for step in plan.steps)


def _has_constants(plan: Plan) -> bool:
    return any(plan.constants.keys() >= {*step.operands} for step in plan.steps if step.kernel is not None)


def _has_several(plan: Plan) -> bool:
    return len(plan.steps) > 1


def _has_movements(plan: Plan) -> bool:
    # A small broadcast is a copy, though its opcode mostly gives views.
    return any(getattr(getattr(step.kernel, "entry", None), "may_be_view", False) for step in plan.steps)


@frozen
class _Pass:
    """An optimization."""

    name: str
    run: Callable[[Plan, Options], Plan]
    concerns: Callable[[Plan], bool]
    """Whether there is anything in a plan that it could work on."""


def _share_copies(plan: Plan, options: Options) -> Plan:
    from hloexec.engine.plan.passes.share import with_copies_shared

    # Observers want each value as it is written.
    return plan if options.is_observed or options.numerics.overrides else with_copies_shared(plan)


def _unroll(plan: Plan, options: Options) -> Plan:
    from hloexec.engine.plan.passes.unroll import unrolled

    return unrolled(plan, is_observed=options.is_observed)


def _hoist(plan: Plan, options: Options) -> Plan:
    from hloexec.engine.plan.passes.hoist import with_invariants_hoisted

    return with_invariants_hoisted(plan, is_observed=options.is_observed)


def _accumulate(plan: Plan, _: Options) -> Plan:
    from hloexec.engine.plan.passes.accumulate import with_products_accumulated

    return with_products_accumulated(plan)


def _crop(plan: Plan, options: Options) -> Plan:
    from hloexec.engine.plan.passes.crop import with_values_cropped

    # Observers want each value whole.
    return plan if options.is_observed else with_values_cropped(plan)


def _fuse(plan: Plan, options: Options) -> Plan:
    from hloexec.engine.plan.passes.fuse import with_regions

    return with_regions(plan, options.numerics, may_share=not (options.is_observed or options.numerics.overrides))


def _fold(plan: Plan, options: Options) -> Plan:
    from hloexec.engine.plan.passes.fold import with_constants_folded

    return plan if options.is_observed or options.numerics.rounding_seed is not None else with_constants_folded(plan)


def _share(plan: Plan, options: Options) -> Plan:
    from hloexec.engine.plan.passes.cse import with_values_shared

    return plan if options.is_observed or options.numerics.overrides else with_values_shared(plan)


def _compose_views(plan: Plan, options: Options) -> Plan:
    from hloexec.engine.plan.passes.views import with_views_composed

    # Observers want each value as it is written.
    return plan if options.is_observed else with_views_composed(plan)


def _count(plan: Plan, _: Options) -> Plan:
    from hloexec.engine.plan.passes.induction import with_counters

    return with_counters(plan)


def _allocate_buffers(plan: Plan, _: Options) -> Plan:
    from hloexec.engine.plan.passes.buffers import with_buffers

    return with_buffers(plan)


def _watch_for_cycles(plan: Plan, _: Options) -> Plan:
    from hloexec.engine.plan.passes.cycles import with_cycles_watched

    return with_cycles_watched(plan)


_PASSES = (
    _Pass("share", _share_copies, _has_several),
    _Pass("unroll", _unroll, _has_loops),
    _Pass("hoist", _hoist, _has_loops),
    _Pass("accumulate", _accumulate, lambda plan: _has_products(plan) and _has_large_values(plan)),
    _Pass("crop", _crop, lambda plan: _has_large_values(plan) and _has_movements(plan)),
    _Pass("fuse", _fuse, _has_large_values),
    _Pass("fold", _fold, _has_constants),
    _Pass("views", _compose_views, _has_movements),
    _Pass("cse", _share, _has_several),
    _Pass("induction", _count, _has_loops),
    _Pass("buffers", _allocate_buffers, _has_loops),
    _Pass("cycles", _watch_for_cycles, _has_loops),
)

_FIRST = ("inline", "fma")
PASS_NAMES = (*_FIRST, *(entry.name for entry in _PASSES))
"""In the order in which they run."""


def run_passes(plan: Plan, options: Options, *, is_scheduled: bool) -> Plan:
    """The finished plan of a lowered one; `is_scheduled` says whether the module has been optimized before."""
    if any(isinstance(step.flow, Invocation) for step in plan.program):
        from hloexec.engine.plan.passes.inline import inlined

        plan = inlined(plan, is_observed=options.is_observed, is_controlled=options.is_controlled)
    if any(part.fuses_multiply_add for part in options.numerics.parts) and options.last_pass != "inline":
        from hloexec.engine.plan.passes.fma import with_fused_multiply_adds

        plan = with_fused_multiply_adds(plan, options.numerics, is_scheduled=is_scheduled)
    if options.is_optimized and options.last_pass not in _FIRST:
        for entry in _PASSES:
            if entry.concerns(plan):
                plan = _guarded(entry, plan, options)
            if entry.name == options.last_pass:
                break
    plan = with_lifetimes(plan, may_reuse=options.is_optimized)
    if not options.is_optimized:
        # Walked, never written as Python.
        plan.depth = None
        plan.is_plain = True
    return plan


def _guarded(entry: _Pass, plan: Plan, options: Options) -> Plan:
    """The plan after a pass, or as it was where the pass fails."""
    try:
        found = entry.run(plan, options)
        if os.environ.get("HLOEXEC_CHECK_PLANS"):
            from hloexec.engine.plan.verifier import verify_plan

            verify_plan(found, plan)
    except Exception as error:
        warn_of_failure(f"the pass {entry.name!r} on computation {plan.computation.name}", error)
        return plan
    return found
