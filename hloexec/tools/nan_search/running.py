"""`find_nan`: run a module until the instruction that produced its first relevant NaN or infinity is known."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Unpack

from hloexec.core.arguments import listed, require_flags, require_integer, require_module, require_number, texts
from hloexec.core.ir import Module
from hloexec.core.values import Inputs
from hloexec.engine.exec.observers import Observer
from hloexec.engine.exec.options import RunOptions, resolve_options
from hloexec.engine.exec.running import run_with
from hloexec.errors import InputError
from hloexec.tools.nan_search.findings import NanSearch
from hloexec.tools.nan_search.observer import Found, NanObserver
from hloexec.tools.nan_search.symptoms import CHECKS


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
    """Run a module, and find the first instruction that turns finite numbers into NaN or infinities.

    An instruction is to blame for an element if that element is NaN or infinite and no operand's element at its
    position is, or if it turns infinities into NaN (`nan_search.symptoms` has the definitions). Programs also
    produce such numbers and discard them, mostly in branches of a select. The run therefore continues until one has
    reached the result or the next iteration of a loop, and the first of the instructions that it comes from is the
    finding. Of several results, the one with NaN that the fewest instructions made decides, which is a loss rather than
    its gradients. With `first`, the run stops at the very first one, whether or not it is used.

    `also` names further symptoms that stop the run: `overflow` (converts that saturate), `underflow` (results that are
    zero and should not be) and `cancellation` (sums without a significant digit), if at least a fraction `share` (0 to
    1) of an instruction's elements is affected. `elements` is the number of elements that the finding lists.

    `inputs`, `observers` and `options` are those of `run_devices` (`hloexec.Inputs`, `hloexec.RunOptions`). In addition
    to the memory of the run, the search needs a few numbers per instruction. Raises InputError for invalid options, and
    whatever `run_devices` raises.
    """
    require_module(module)
    require_flags(first=first)
    require_number("share", share, 1)
    require_integer("elements", elements, 0)
    resolved = resolve_options("find_nan", options)
    also = texts("also", also)
    for name in also:
        if name not in CHECKS:
            raise InputError(f"also must name some of {', '.join(CHECKS)}, but has {name!r}")
    watchers = listed("observers", observers, "observers")
    observer = NanObserver(module, resolved.computation, first, also, share, elements)
    with suppress(Found):
        run_with(module, inputs, resolved, [observer, *watchers])
    return observer.search()
