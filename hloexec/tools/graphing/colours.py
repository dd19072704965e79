"""Colours of instructions: a number for each, and a scale of steps that says which numbers have which colour.

The scale of quantities is logarithmic, since errors, times and sizes differ by powers of ten. Its colours go from light
to dark, so that they can be told apart without seeing hues; those of verdicts differ in lightness, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import attrs

from hloexec.core.structs import frozen
from hloexec.tools.graphing.flow import Place

_RAMP = ("#fff3bf", "#ffdb7a", "#fbb257", "#ef7d3f", "#c93a31", "#a62440", "#671746")
_DARK, _LIGHT = "#1b1f24", "#ffffff"


@frozen
class Step:
    """A step of a scale: numbers up to `most`, and beyond the step before."""

    most: float
    colour: str
    """As `#rrggbb`."""
    label: str


@frozen(eq=False)
class Colours:
    """What instructions are coloured by."""

    title: str
    values: Mapping[Place, float]
    """The numbers, of those instructions that have one; 0 gives no colour, unless a step ends there."""
    steps: tuple[Step, ...]
    """From the lowest to the highest."""
    texts: Mapping[Place, str]
    """What is written on an instruction, in a few words."""
    marked: frozenset[Place] = frozenset()
    """The instructions that matter most."""
    meaning: str = ""
    """What is said of those that are marked."""
    notes: Mapping[Place, str] = attrs.field(factory=dict)
    """What else there is to say of an instruction."""

    def step(self, place: Place) -> Step | None:
        """The step of an instruction; None if it has no number, or none that is on the scale."""
        value = self.values.get(place)
        if value is None or not self.steps:
            return None
        if value == 0 and self.steps[0].most > 0:
            return None
        # What is no number is at least as bad as the largest one.
        return next((step for step in self.steps if value <= step.most), self.steps[-1])


VERDICTS = (Step(0.0, "#b7e0cf", "as before"), Step(1.0, "#f6a04d", "wrong"), Step(2.0, "#a3203c", "to blame"))
"""The steps of verdicts: 0, 1 and 2."""


def quantity(
    title: str,
    values: Mapping[Place, float],
    text: Callable[[float], str],
    *,
    texts: Mapping[Place, str] | None = None,
    marked: Iterable[Place] = (),
    meaning: str = "",
    notes: Mapping[Place, str] | None = None,
    span: float = 1.0,
) -> Colours:
    """Colours of a quantity that is not negative, on a logarithmic scale from its least positive value to its largest,
    or to `span` times the least if that is more; `text` writes a value of it."""
    written = {place: text(value) for place, value in values.items() if value} if texts is None else texts
    steps = _steps([value for value in values.values() if 0 < value < math.inf], span, text)
    if not steps and any(not value <= 0 for value in values.values()):
        steps = (Step(math.inf, _RAMP[-1], "not finite"),)
    return Colours(title, values, steps, written, frozenset(marked), meaning, notes or {})


def _steps(values: list[float], span: float, text: Callable[[float], str]) -> tuple[Step, ...]:
    if not values:
        return ()
    least = min(values)
    most = max(*values, span * least)
    count = len(_RAMP) if most / least > 2 else 1
    bounds = [least * (most / least) ** (number / count) for number in range(1, count)]
    labels = [f"≤ {text(bound)}" for bound in bounds]
    return tuple(map(Step, (*bounds, most), _RAMP[-count:], (*labels, f"≤ {text(most)}")))


def ink(colour: str) -> str:
    """The colour of text on a colour: the one of black and white that stands out more (WCAG 2, relative luminance)."""
    luminance = _luminance(colour)
    on_dark = (luminance + 0.05) / (_luminance(_DARK) + 0.05)
    return _DARK if on_dark > (1.05 / (luminance + 0.05)) else _LIGHT


def _luminance(colour: str) -> float:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
