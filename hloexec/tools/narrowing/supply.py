"""Where the inputs of a search come from: a list, or a function of seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hloexec.core.arguments import listed
from hloexec.core.errors import InputError
from hloexec.core.ir import Module
from hloexec.core.values import Inputs
from hloexec.engine.inputs import random_inputs
from hloexec.tools.narrowing.settings import Settings


class Supply:
    """Inputs for the search, and others that it does not see."""

    def __init__(self, module: Module, inputs: object, settings: Settings) -> None:
        self._seed = settings.seed
        self._make: Callable[[int], Inputs] | None = None
        self._given: list[Inputs] = []
        if inputs is None:
            self._make = lambda seed: random_inputs(module, seed)
        elif callable(inputs) and not isinstance(inputs, type):
            self._make = inputs
        else:
            self._given = listed("inputs", inputs, "inputs, one per run")
            if not self._given:
                raise InputError("inputs must have at least one list of values, or be None for random ones")
        self.is_endless = self._make is not None
        given = len(self._given)
        self.held_back_count = settings.held_back if self.is_endless else min(settings.held_back, (given + 1) // 3)
        self.count = settings.seeds if self.is_endless else given - self.held_back_count
        """How many the search runs on."""

    def first(self) -> Iterator[Inputs]:
        """Those of the search."""
        for number in range(self.count):
            yield self._make(self._seed + number) if self._make is not None else self._given[number]

    def others(self) -> Iterator[Inputs]:
        """Those behind them: without end, where they are made."""
        number = self.count
        while self._make is not None or number < len(self._given):
            yield self._make(self._seed + number) if self._make is not None else self._given[number]
            number += 1
