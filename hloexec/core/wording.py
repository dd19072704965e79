"""How messages and reports word sizes, counts, devices and what was given, and how numbers are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

_MOST_DIGITS = 19
"""Those of every number below 2**63."""


def _of_python(name: str, value: object, text: str | None) -> str:
    return text or (name if value is None else f"{name}={value}")


Spelling = Callable[[str, object, str | None], str]
_spelling: Spelling = _of_python


def argument(name: str, value: object = None, text: str | None = None) -> str:
    """An argument, perhaps with a value, as whoever gave it or may give it spells it: `seed` and `seed=3` in Python
    (or else `text`), `--seed` and `--seed 3` on the command line. Errors and warnings speak of arguments so."""
    return _spelling(name, value, text)


@contextmanager
def arguments_spelled(spelling: Spelling) -> Iterator[None]:
    """A context in which messages spell arguments otherwise."""
    global _spelling
    before, _spelling = _spelling, spelling
    try:
        yield
    finally:
        _spelling = before


def braced(items: Iterable[object]) -> str:
    """Numbers as attributes of HLO have them: `{0,2}`."""
    return f"{{{','.join(map(str, items))}}}"


def byte_text(size: int) -> str:
    """A number of bytes, e.g. `1.5 GB`."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} EB" if value < 1000 else f"{value:.1e} EB"


def counted(count: int, noun: str, text: Callable[[int], str] = str) -> str:
    """`1 instruction`, `2 instructions`; `text` writes the number."""
    return f"{text(count)} {noun}{'' if count == 1 else 's'}"


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


def listing(items: Iterable[object], most: int) -> str:
    """`dot.3, add.1, …`: the first `most`, and whether there are more."""
    texts = [str(item) for item in islice(items, most + 1)]
    return ", ".join(texts[:most]) + (", …" if len(texts) > most else "")


def natural_number(text: str) -> int | None:
    """The number that a text of up to 19 decimal digits stands for; None for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def number_runs(numbers: Iterable[int], most: int = 8) -> str:
    """`3`, `0–3, 8`: the first `most` runs, and whether there are more."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return listing((str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs), most)


def first_line(message: str) -> str:
    """The first line of a message, with the first item of a list that it announces."""
    line, _, rest = message.partition("\n")
    return f"{line} {rest.partition(chr(10))[0].strip()}" if line.endswith(":") and rest else line


def on_devices(devices: Sequence[int]) -> str:
    """` on device 2`, ` on devices 0–3, 8`; nothing where there are none."""
    return f" on device{'s' if len(devices) > 1 else ''} {number_runs(devices)}" if devices else ""


def truncated(text: str, most: int = 80) -> str:
    """The text, or its beginning and `…` where it has more characters than `most`."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def quoted(value: object, most: int = 80) -> str:
    """A value as Python writes it: `'dot.3'`; of one that is long, the beginning: `'broadcast_multiply_fus…'`."""
    return repr(truncated(value, most)) if isinstance(value, str) else truncated(repr(value), most)


def suggestion(name: str, known_names: Iterable[str], most: int = 1, text: Callable[[str], str] = str) -> str:
    """The end of a sentence about a wrong name: `; did you mean dot.3?`; nothing where none of the known comes near or
    begins with it."""
    from difflib import get_close_matches

    names = list(known_names)
    close = (
        get_close_matches(name, names, most)
        or [candidate for candidate in names if name and candidate.startswith(name)][:most]
    )
    return f"; did you mean {' or '.join(map(text, close))}?" if close else ""
