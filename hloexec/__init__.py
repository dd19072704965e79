"""hloexec: XLA HLO, run on NumPy.

    module = hloexec.load("module.txt")
    inputs = hloexec.random_inputs(module)
    output = hloexec.run(module, *inputs)

Everything here is imported when it is first used, so that `import hloexec` and the command line start fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hloexec.errors import (
    EvaluationError,
    HloError,
    HloWarning,
    InputError,
    LiteralError,
    ParseError,
    ResourceError,
    ShapeError,
    UnsupportedError,
    VerificationError,
)

if TYPE_CHECKING:
    from hloexec.custom_calls.registry import register_custom_call
    from hloexec.exec import run
    from hloexec.inputs import random_inputs
    from hloexec.interop import from_jax
    from hloexec.loading import load
    from hloexec.text import format, parse
    from hloexec.verifier import verify

__all__ = [
    "EvaluationError",
    "HloError",
    "HloWarning",
    "InputError",
    "LiteralError",
    "ParseError",
    "ResourceError",
    "ShapeError",
    "UnsupportedError",
    "VerificationError",
    "format",
    "from_jax",
    "load",
    "parse",
    "random_inputs",
    "register_custom_call",
    "run",
    "verify",
]

_HOMES = {
    "format": "hloexec.text",
    "from_jax": "hloexec.interop",
    "load": "hloexec.loading",
    "parse": "hloexec.text",
    "random_inputs": "hloexec.inputs",
    "register_custom_call": "hloexec.custom_calls.registry",
    "run": "hloexec.exec",
    "verify": "hloexec.verifier",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'hloexec' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
