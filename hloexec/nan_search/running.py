"""`find_nan`: run a module until the instruction is known that made its numbers bad."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Unpack

from hloexec.arguments import listed, require_flags, require_integer, require_module, require_number, texts
from hloexec.errors import InputError
from hloexec.exec.observers import Observer
from hloexec.exec.options import RunOptions, require_run_options
from hloexec.exec.running import run_devices
from hloexec.ir import Module
from hloexec.nan_search.findings import NanSearch
from hloexec.nan_search.observer import Found, NanObserver
from hloexec.nan_search.symptoms import CHECKS
from hloexec.values import Inputs

__all__ = ["find_nan"]


def find_nan(
    module: Module,
    inputs: Inputs | None,
    *,
    first: bool = False,
    also: Sequence[str] = (),
    share: float = 0.0,
    elements: int = 10,
    observers: Sequence[Observer] = (),
    **options: Unpack[RunOptions],
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

    `inputs`, `observers` and `options` are those of `run_devices` (`hloexec.Inputs`, `hloexec.RunOptions`). Besides
    the run's own memory it takes a few numbers per instruction. Raises InputError for wrong options, and what
    `run_devices` raises.
    """
    require_module(module)
    require_flags(first=first)
    require_number("share", share, 1)
    require_integer("elements", elements, 0)
    require_run_options("find_nan", options)
    also = texts("also", also)
    for name in also:
        if name not in CHECKS:
            raise InputError(f"also must name some of {', '.join(CHECKS)}, but has {name!r}")
    watchers = listed("observers", observers, "observers")
    observer = NanObserver(module, options.get("computation"), first, also, share, elements)
    with suppress(Found):
        run_devices(module, inputs, observers=[observer, *watchers], **options)
    return observer.search()
