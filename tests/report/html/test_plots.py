"""What plots of pages say: how large an error is beside the values, and where an axis ends."""

import math
import re

import numpy as np
import pytest

from hloexec.tools.watching.recording import relative_error
from tests.report.needs import require_report_packages


def _relative(values: list[float], differences: list[float]) -> float:
    wide, apart = np.array(values), np.array(differences)
    return relative_error(float(np.vdot(apart, apart)), wide, lambda: apart)


@pytest.mark.parametrize(
    ("values", "differences", "expected"),
    [
        ([3.0, 4.0], [0.0, 0.5], 0.1),
        ([3.0, 4.0], [0.0, 0.0], 0.0),
        ([0.0, 0.0], [0.0, 0.5], math.inf),
        # Half of the elements are a mask's, which is right: of the others, all are off by a tenth.
        ([1.0, 1.0, -1e9, -1e9], [0.1, 0.1, 0.0, 0.0], 0.1 / math.sqrt(2)),
        ([1.0, -1e9, -1e9, -1e9], [0.1, 0.0, 0.0, 0.0], 0.05),
        # A mask whose own rounding is 32, which is 3.2e-8 of it.
        ([1.0, 1.0, 1.0, -1e9], [0.0, 0.0, 0.0, 32.0], 1.6e-8),
        ([1.0, 1.0, -math.inf], [0.1, 0.1, 0.0], 0.1),
    ],
)
def test_errors_are_relative_to_their_own_values(
    values: list[float], differences: list[float], expected: float
) -> None:
    assert _relative(values, differences) == pytest.approx(expected, rel=1e-12)


def test_an_axis_of_percent_ends_at_100() -> None:
    require_report_packages()
    from hloexec.report.html.plots import bars

    figure = bars("Shares", [("a", 99.2, "99.2 %"), ("b", 0.8, "0.8 %")], "share in %", is_percent=True)
    assert figure is not None
    ticks = [float(text) for text in re.findall(r">\s*(\d+)\s*</text>", figure.svg)]
    assert max(ticks) == 100
