"""Passes: functions from plan to plan, those of a kind in one file; `plan.planner` has their order.

A pass returns the plan that it was given, or another; it modifies no step in place, because plans share steps. It may
rely on the invariants that `tests/plan/invariants.py` lists, and preserves them. No pass changes a bit of any value.
"""
