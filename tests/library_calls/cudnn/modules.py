"""Modules of one library call, for the tests of cuDNN's targets."""

import json
from typing import Any

import numpy as np

import hloexec
from conformance.cell import shape_of


def module(target: str, *operands: Any, result: str, config: Any = None, attributes: str = "") -> str:
    """A module whose only instruction calls `target`; `config` is the backend_config, as JSON or verbatim."""
    parameters = "\n".join(f"  p{n} = {shape_of(x)} parameter({n})" for n, x in enumerate(operands))
    names = ", ".join(f"p{n}" for n in range(len(operands)))
    suffix = "" if config is None else f", backend_config={config if isinstance(config, str) else json.dumps(config)}"
    attributes = f", {attributes}" if attributes else ""
    return (
        f"HloModule m\n\nENTRY e {{\n{parameters}\n  ROOT r = {result} custom-call({names}){attributes}, "
        f'custom_call_target="{target}"{suffix}\n}}\n'
    )


def call(target: str, *operands: Any, numerics: str = "reference", **how: Any) -> Any:
    """The call's result; the module survives printing and parsing, is verified, and leaves its operands alone."""
    parsed = hloexec.parse(module(target, *operands, **how))
    assert hloexec.parse(hloexec.format(parsed)) == parsed
    hloexec.verify(parsed)
    before = [operand.tobytes() for operand in operands]
    value = hloexec.run(parsed, *operands, numerics=numerics)
    assert before == [operand.tobytes() for operand in operands]
    return value


def whole(*shape: int, seed: int = 0, dtype: Any = np.float32, largest: int = 3) -> Any:
    """Small whole numbers, of which every sum of products is exact in f32."""
    return np.random.default_rng(seed).integers(-largest, largest + 1, shape).astype(dtype)
