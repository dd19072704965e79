"""The table of pairs: which fault is planted in which model, and pairs without any.

A pair's seed, and whether sums are reordered on top of the fault, follow from its place in the table; so does all of
its disguise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import attrs

from evaluation.faults.disguise import Disguised, disguise
from evaluation.faults.planting import Fault, Planted, plant
from evaluation.faults.regrouping import (
    products_in_f32,
    reciprocals,
    sums_from_the_other_end,
    sums_over_devices_in_two_steps,
)
from evaluation.faults.rounding import rounding_lost
from evaluation.pairs.faults import FAULTS
from evaluation.pairs.models import model
from hloexec.core.ir import Module


@attrs.frozen(eq=False)
class Case:
    """A pair of modules; the one after is the other in disguise, with a fault or without."""

    name: str
    model: str
    seed: int
    change: Fault | None = None
    is_fault: bool = False
    """Whether the change is one; others change roundings only, as a compiler may."""
    reorders: bool = False
    unrolls: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.model})"

    @property
    def before(self) -> Module:
        return model(self.model).module

    @property
    def inputs_per_device(self) -> Sequence[Sequence[Any]]:
        return model(self.model).inputs_per_device

    @property
    def planted(self) -> Planted:
        """The module with its fault, but not yet in disguise."""
        return _planted(self)

    @property
    def after(self) -> Disguised:
        return _disguised(self)

    @property
    def blamed(self) -> frozenset[str]:
        """Which instructions of the planted module are to blame."""
        return self.planted.names if self.is_fault else frozenset()


@cache
def _planted(case: Case) -> Planted:
    return Planted(case.before, frozenset()) if case.change is None else plant(case.before, case.change)


@cache
def _disguised(case: Case) -> Disguised:
    return disguise(case.planted.module, case.seed, reorders=case.reorders, unrolls=case.unrolls)


_ROUNDING: tuple[tuple[str, str, Fault], ...] = (
    ("divided by a constant as multiplied by its inverse", "attention", reciprocals),
    ("products of bf16 in f32, rounded once", "mlp_train_step", products_in_f32),
    ("products of bf16 in f32, rounded once", "mixed_precision", products_in_f32),
    ("stored in bf16 no more", "mixed_precision", rounding_lost("convert")),
    ("exponential in f32", "gated_mlp_of_002", rounding_lost("exponential")),
    ("sums from the other end", "markov_chain", sums_from_the_other_end),
    ("sums from the other end", "layer_norm", sums_from_the_other_end),
    ("one sum over devices in two steps", "data_parallel_step", sums_over_devices_in_two_steps),
)
"""What compilers may do to a program: it rounds otherwise, no more."""

_REORDERED = "attention rnn_scan markov_chain mlp mlp_train_step layer_norm cross_entropy conv_net power_iteration mixed_precision tensor_parallel ring_attention".split()
_SAME = (
    "attention attention.optimized mlp_train_step rnn_scan router choice gated_mlp_of_002 rotary_norm_of_002".split()
)

FAULTY = tuple(
    Case(name, model, seed=number, change=fault, is_fault=True, reorders=number % 2 == 1, unrolls=number % 5 == 2)
    for number, (name, model, fault) in enumerate(FAULTS)
)
"""Pairs with one fault each; under every other one, sums are reordered, too, and under every fifth, loops unrolled."""

CLEAN = (
    *(Case("disguised only", model, seed=100 + number, unrolls=number % 2 == 1) for number, model in enumerate(_SAME)),
    *(
        Case("sums reordered", model, seed=200 + number, reorders=True, unrolls=number % 3 == 1)
        for number, model in enumerate(_REORDERED)
    ),
    *(
        Case(name, model, seed=300 + number, change=change, reorders=number % 2 == 1)
        for number, (name, model, change) in enumerate(_ROUNDING)
    ),
)
"""Pairs without a fault: the same bits, or other roundings."""
