"""What the modules are made with, and where they are kept."""

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np

ADD = "add { x = f32[] parameter(0) y = f32[] parameter(1) ROOT z = f32[] add(x, y) }\n"
MAX = "max { x = f32[] parameter(0) y = f32[] parameter(1) ROOT z = f32[] maximum(x, y) }\n"


@attrs.frozen
class HandMade:
    """A module for sizes by name, with a large and a small set of them."""

    make: Callable[..., str]
    large: Mapping[str, int]
    small: Mapping[str, int]

    def at(self, sizes: Mapping[str, int]) -> str:
        return self.make(**sizes)


MODULES: dict[str, HandMade] = {}


def module(large: dict[str, int], small: dict[str, int]) -> Callable[[Callable[..., str]], Callable[..., str]]:
    def add(make: Callable[..., str]) -> Callable[..., str]:
        MODULES[make.__name__] = HandMade(make, large, small)
        return make

    return add


def text(entry: str, computations: str = "") -> str:
    return f"HloModule m\n\n{computations}\nENTRY main {{\n{entry}\n}}\n"


def number(value: float, kind: Any = np.float32) -> str:
    return repr(float(kind(value)))
