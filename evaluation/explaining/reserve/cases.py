"""The cases of the reserve: which programs there are, what is done to the numerics of each, and what comes of it."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs
import numpy as np

import hloexec
from evaluation.explaining.reserve.lowered import by_xla, lowered
from evaluation.explaining.reserve.programs import PROGRAMS
from evaluation.explaining.reserve.texts import TEXTS
from hloexec.core.ir import Module

NAMES = (*PROGRAMS, *TEXTS)
_COARSE, _FINE = ("tf32", "bf16"), ("tf32x3", "bf16x3", "bf16x6")


@attrs.frozen(eq=False)
class Made:
    """A module, its inputs per device, the leaves that the other side gave per device, and what is right."""

    module: Module
    inputs: list[list[Any]]
    expected: list[list[Any]]
    right: list[list[Any]]
    """The leaves without a fault."""
    policy: str | None
    note: str = ""


def kinds_of(name: str) -> list[str]:
    """What is done to a program: a policy of all products, of one of them, of two different ones; or a fault."""
    if name in TEXTS:
        return [*TEXTS[name].policies.values(), *(f"fault {fault}" for fault in TEXTS[name].faults)]
    program, random = PROGRAMS[name], Random(name)
    count, kinds = program.products, ["reference", random.choice(_COARSE), random.choice(_FINE)]
    if count > 1:
        kinds.append(f"one {random.choice(_COARSE)}")
    if count > 2:
        kinds += ["both", f"most {random.choice(_COARSE)}"]
    faults = random.sample(program.faults, 2)
    return [*kinds, f"fault {faults[0]}", f"fault {faults[1]} under tf32"]


def made(name: str, kind: str) -> Made:
    """A case of a program."""
    return _of_text(name, kind) if name in TEXTS else _of_program(name, kind)


def _of_text(name: str, kind: str) -> Made:
    found = TEXTS[name]
    module = hloexec.parse(found.text)
    fault = kind.removeprefix("fault ") if kind.startswith("fault") else ""
    how = "" if fault else next(how for how, policy in found.policies.items() if policy == kind)
    return Made(
        module,
        [list(row) for row in found.inputs],
        found.truth(found.inputs, how, fault),
        found.truth(found.inputs, how, ""),
        None if fault else kind,
        fault,
    )


def _of_program(name: str, kind: str) -> Made:
    found = lowered(name)
    how, fault = _varied(name, kind)
    policy = kind if kind in ("reference", *_COARSE, *_FINE) else _overrides(name, how)
    expected = by_xla(name, how, fault)
    right = by_xla(name, how) if fault else expected
    inputs = [[np.asarray(each) for each in PROGRAMS[name].arguments]]
    return Made(found.module, inputs, [expected], [right], None if fault else policy, fault)


def _varied(name: str, kind: str) -> tuple[dict[int, str], str]:
    """The policies of products by their numbers, and the fault."""
    numbers, random = range(PROGRAMS[name].products), Random(f"{name}/{kind}")
    first, _, rest = kind.partition(" ")
    if first == "fault":
        fault, _, policy = rest.partition(" under ")
        return dict.fromkeys(numbers, policy) if policy else {}, fault
    if first == "one":
        return {random.choice(numbers): rest}, ""
    if first == "both":
        return dict(zip(random.sample(numbers, 2), _COARSE, strict=True)), ""
    if first == "most":
        return dict.fromkeys(random.sample(numbers, len(numbers) - 1), rest), ""
    return {} if first == "reference" else dict.fromkeys(numbers, first), ""


def _overrides(name: str, how: dict[int, str]) -> str:
    sites = lowered(name).sites
    return "reference" + "".join(f",{sites[number]}={policy}" for number, policy in sorted(how.items()))
