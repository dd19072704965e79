"""Formatting bytes, seconds, operations and counts."""

from __future__ import annotations

from hloexec.core.wording import counted


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


def number_text(number: float | int | None, digits: int = 4) -> str:
    """A number with at least so many significant digits, small integers whole; `–` where there is none."""
    if number is None:
        return "–"
    if isinstance(number, int) and abs(number) < 10**9:
        return str(number)
    if number == 0:
        return "0"
    if 10**digits <= abs(number) < 999_999.5:
        return f"{number:.0f}"
    return f"{number:.{digits}g}" if 1e-3 <= abs(number) < 10**digits else f"{number:.{digits - 1}e}"


def count_text(count: int) -> str:
    """A count with thin groups of thousands: `9 917`."""
    return f"{count:,}".replace(",", " ")


def plural(count: int, noun: str) -> str:
    """`1 instruction`, `2 000 instructions`."""
    return counted(count, noun, count_text)
