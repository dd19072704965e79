"""Formatting seconds and operations."""

from __future__ import annotations


def flop_text(count: float) -> str:
    """A number of floating-point operations, e.g. `23.1 TFLOP`."""
    for unit in ("", "k", "M", "G", "T", "P", "E"):
        if count < 999.95 or unit == "E":
            return f"{count:.0f} FLOP" if not unit else f"{count:.1f} {unit}FLOP"
        count /= 1000
    raise AssertionError("the last unit takes any number")


def seconds_text(seconds: float) -> str:
    """A duration with three digits, e.g. `1.23 ms`, `4.56 s`, `2 min 3 s`."""
    if seconds >= 60:
        whole = round(seconds)
        hours, minutes = divmod(whole // 60, 60)
        return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s"
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        scaled = seconds * factor
        if scaled >= 0.9995 or unit == "µs":
            decimals = 0 if unit == "µs" or scaled >= 99.95 else 1 if scaled >= 9.995 else 2
            return f"{scaled:.{decimals}f} {unit}"
    raise AssertionError("the last unit takes any number")
