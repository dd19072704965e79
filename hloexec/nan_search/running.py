"""`find_nan`: run a module until the instruction is known that made its numbers bad."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hloexec.errors import InputError
from hloexec.exec.running import run_devices
from hloexec.ir import Module
from hloexec.nan_search.findings import NanSearch
from hloexec.nan_search.observer import Found, NanObserver
from hloexec.nan_search.symptoms import CHECKS

__all__ = ["find_nan"]


def find_nan(
    module: Module,
    inputs_per_device: Sequence[Sequence[Any]],
    *,
    first: bool = False,
    also: Sequence[str] = (),
    share: float = 0.0,
    elements: int = 10,
    observers: Sequence[Any] = (),
    **options: Any,
) -> NanSearch:
    """Run a module, and find the first instruction that makes NaN or infinities out of finite numbers.

    An instruction is to blame for an element where no operand's element at its place is NaN or infinite, or where it
    makes NaN out of infinities (`hloexec.nan_search.symptoms` has the definitions). Programs make such numbers and
    throw them away, in branches of a select above all; so the run goes on until one has reached the result, or the next
    iteration of a loop, and the first of those that it comes from is the finding. With `first` the run stops at the
    very first one, whatever becomes of it.

    `also` names what else counts, and stops the run where it is met: `overflow` (converts that saturate), `underflow`
    (results that are zero and should not be), `cancellation` (sums of which no digit is significant); each where at
    least `share` of an instruction's elements, from 0 to 1, are concerned. `elements` is how many elements the finding
    lists.

    `inputs_per_device` and `options` are those of `run_devices`. Besides the run's own memory it takes a few numbers
    per instruction. Raises InputError for wrong options, and what `run_devices` raises.
    """
    for name in also:
        if name not in CHECKS:
            raise InputError(f"also must name some of {', '.join(CHECKS)}, but has {name!r}")
    if not 0 <= share <= 1:
        raise InputError(f"share must lie between 0 and 1, but is {share}")
    if elements < 0:
        raise InputError(f"elements must not be negative, but is {elements}")
    hunter = NanObserver(module, options.get("computation"), first, tuple(also), share, elements)
    with suppress(Found):
        run_devices(module, inputs_per_device, observers=[hunter, *observers], **options)
    return hunter.search()
