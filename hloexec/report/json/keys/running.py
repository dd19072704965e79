"""Keys of what commands print that run a module: runs, traces, steps and goldens."""

from __future__ import annotations

from collections.abc import Mapping

RUNNING: Mapping[str, tuple[str, str]] = {
    # Runs and steps.
    "printed": ("[literal]", "What --print asks for."),
    "stops": ("[stop]", "Where the run stopped, in order."),
    "stop_values": ("[leaf]", "The arrays of what the instruction gave; none where it has failed."),
    "failure_text": ("text", "The error of an instruction that has failed."),
    "run_state": ("ended|failed|left", "Whether the run came to its end, has failed, or was left where it stopped."),
    "printed_lines": ("[text]", "The commands, each behind a prompt, and what they printed."),
    "literal": ("text", "The value, as a literal of HLO."),
    "warm_seconds": ("timing", "How long the runs of --iterations took."),
    "iteration_count": ("integer", "How many runs there were."),
    "shortest": ("number", "The shortest time in seconds."),
    "median": ("number", "The median time in seconds."),
    "longest": ("number", "The longest time in seconds."),
    "peak_bytes": ("integer", "The most that a run holds at once, beyond its inputs."),
    "device_peak_bytes": ("integer", "The most that one device holds at once, beyond its inputs."),
    "functions": ("[text]", "The plan, as functions of Python."),
    # Traces.
    "select": ("[text]", "The patterns of --select."),
    "statistics_only": ("flag", "Whether the values themselves are left out."),
    "is_complete": ("flag", "Whether the run came to its end."),
    "value_bytes": ("integer", "The size of the values on disk."),
    # Goldens.
    "module_hash": ("text", "SHA-256 of the module's text."),
    "disagreement": ("text", "How the given result differs from the module's own; null where it does not."),
    "advice": ("[text]", "If another module fails: what is to blame, and the command that shows it."),
    "checks": ("[golden_check]", "What came of each golden."),
    "outcome": ("passed|not_decided|failed|broken", "What came of it; `broken`: it could not be checked."),
    "message": ("text", "The same in words."),
    "golden": ("golden", "What its golden.json says."),
    "inputs_per_device": ("integer", "One, or as many as there are devices."),
    "inputs_source": ("text", "Where the inputs come from."),
    "expected_source": ("text", "Where the result comes from."),
    "elided": ("text", "What stands for constants that the text leaves out."),
    "unknown": ("text", "What unknown library calls give."),
    "versions": ("{text}", "What it was recorded with."),
}  # fmt: skip
