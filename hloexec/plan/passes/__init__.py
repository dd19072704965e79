"""Passes: functions from plan to plan, one to a file; `hloexec.plan.pipeline` has their order.

A pass returns the plan that it was given, or another; it changes no step of it in place, as plans share steps. It may
rely on what `hloexec.plan.verifier` lists, and keeps it. None changes a bit of any value.
"""
