"""The cases: what is done to the numerics of each program whose operations have numbers, or which fault it has."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs
import numpy as np

from evaluation.explaining.operations.halves import HALVES, PROGRAMS, half_of
from evaluation.explaining.operations.lowered import Lowered, by_xla, lowered
from hloexec.core.ir import Module

_COARSE, _FINE = ("tf32", "bf16"), ("tf32x3", "bf16x3", "bf16x6")
_OF_ALL = {
    **dict.fromkeys((*_COARSE, *_FINE), "product"),
    "fast-functions": "function",
    "narrow-sums": "sum",
    "excess": "elementwise",
}
"""Policies of a whole module, by the operations that they are about."""
_OWN = ("reference", "exact", "xla-cpu", "ftz")
"""Those under which no operation is written otherwise."""

How = dict[int | str, str]


@attrs.frozen(eq=False)
class Made:
    """A module, its inputs, what the other side gave, and what is right."""

    module: Module
    inputs: list[Any]
    expected: list[Any]
    right: list[Any]
    """The leaves without a fault, and with nothing done to the numerics."""
    policy: str | None
    simpler: list[list[Any]]
    """What the other side gives if one of several operations is as it was."""
    note: str = ""


def kinds_of(name: str) -> list[str]:
    """What is done to a program."""
    found, half = lowered(name), half_of(name)
    assert half is not None
    random, number = Random(f"{half}/{name}"), list(HALVES[half]).index(name)
    products, sums, steps = (found.numbers(kind) for kind in ("product", "sum", "elementwise"))
    kinds = ["reference"] if (products or sums or steps) and number % 2 == 0 else []
    if PROGRAMS[name].is_tiny:
        kinds.append("ftz")
    elif not products and not sums and not steps:
        kinds.append("xla-cpu")
    if products:
        kinds.append(random.choice(_COARSE))
        kinds += [] if _convolves(found) else [random.choice(_FINE)]
    kinds += ["exact"] if PROGRAMS[name].is_covered else []
    others = ("narrow-sums", "excess") if PROGRAMS[name].is_tiny else ("fast-functions", "narrow-sums", "excess")
    kinds += [policy for policy in others if found.numbers(_OF_ALL[policy])]
    units = [] if PROGRAMS[name].is_tiny else [each for each in found.sites if _policies(found, each)]
    if len(units) > 1:
        only = random.choice(units)
        kinds.append(f"one {only}={random.choice(_policies(found, only))}")
    if len(products) > 2:
        policy = random.choice(_COARSE)
        chosen = sorted(random.sample(products, len(products) // 2 + 1))
        kinds.append("some " + " ".join(f"{each}={policy}" for each in chosen))
    for _ in range((len(units) > 1) + (len(units) > 3)):
        kinds.append(_pair(found, units, random))
    faults = random.sample(PROGRAMS[name].faults, 2 if number % 3 else 1)
    under = f" under {random.choice(_COARSE)}" if products else ""
    kinds += [f"fault {faults[0]}", *(f"fault {each}{under}" for each in faults[1:])]
    return [kind for kind in dict.fromkeys(kinds) if kind]


def _convolves(found: Lowered) -> bool:
    return any("conv" in site.rpartition("/")[2] for kind, site in found.sites.values() if kind == "product")


def _policies(found: Lowered, number: int) -> tuple[str, ...]:
    """The policies that an operation alone may be given: those whose effect is far above rounding."""
    kind = found.sites[number][0]
    products = _COARSE if _convolves(found) else (*_COARSE, "bf16x3")
    return {"product": products, "function": ("fast-functions",), "sum": ("narrow-sums",), "elementwise": ()}[kind]


def _pair(found: Lowered, units: list[int], random: Random) -> str:
    """Two operations in different policies; an empty string where there are none."""
    for _ in range(50):
        first, second = sorted(random.sample(units, 2))
        policies = random.choice(_policies(found, first)), random.choice(_policies(found, second))
        if policies[0] != policies[1]:
            return f"pair {first}={policies[0]} {second}={policies[1]}"
    return ""


def ways(kind: str) -> list[How]:
    """The policies of operations in a case without a fault; with one of several as it was; and with none."""
    first, _, rest = kind.partition(" ")
    if first in _OWN:
        return [{}, {}]
    if first in _OF_ALL:
        return [{_OF_ALL[first]: first}, {}]
    single: How = {int(number): policy for number, _, policy in (each.partition("=") for each in rest.split())}
    without = [{n: each for n, each in single.items() if n != left_out} for left_out in single]
    return [single, *(without if len(single) > 1 else []), {}]


def made(name: str, kind: str) -> Made | None:
    """A case of a program; None where its module has operations that a policy would change, and a truth cannot."""
    found = lowered(name)
    first, _, rest = kind.partition(" ")
    inputs = [np.asarray(each) for each in PROGRAMS[name].arguments]
    if first == "fault":
        fault, _, policy = rest.partition(" under ")
        how: How = {_OF_ALL[policy]: policy} if policy else {}
        right = by_xla(name, how)
        return Made(found.module, inputs, by_xla(name, how, fault), right, None, [], kind)
    if first in _OWN:
        expected = by_xla(name, {}, is_exact=first == "exact", is_plain=first == "xla-cpu")
        return Made(found.module, inputs, expected, by_xla(name, {}), first, [])
    if _OF_ALL.get(first) in found.uncovered:
        return None
    expected, *simpler, right = (by_xla(name, how) for how in ways(kind))
    policy = first if first in _OF_ALL else _overrides(found, ways(kind)[0])
    return Made(found.module, inputs, expected, right, policy, simpler)


def _overrides(found: Lowered, single: How) -> str:
    return "reference" + "".join(f",{found.sites[int(number)][1]}={policy}" for number, policy in single.items())
