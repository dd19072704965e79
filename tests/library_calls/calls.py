"""Modules of one library call each, as text: what the tests of the libraries run."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import hloexec
from conformance.cell import shape_of
from conformance.xla import COMPILED_SOONEST
from hloexec.core.dtypes import ELEMENT_TYPES

U32 = 2.0**-24
"""Half an ULP of 1 in f32: the relative error of one operation."""
HALF_ULP = {"f32": U32, "f16": 2.0**-11, "bf16": 2.0**-8, "f64": 2.0**-53}


def numbers(seed: int, shape: tuple[int, ...], name: str = "f32") -> Any:
    """Normal numbers, rounded to f32 and then to an element type."""
    values = np.random.default_rng(seed).standard_normal(shape)
    return values.astype(np.float32).astype(ELEMENT_TYPES[name].storage)


def wide(array: Any) -> Any:
    return np.asarray(array).astype(np.float64)


def attributes_text(attributes: Mapping[str, Any]) -> str:
    """The attributes of a typed call, as MLIR prints them."""

    def value(found: Any) -> str:
        if isinstance(found, (bool, str)):
            return str(found).lower() if isinstance(found, bool) else f'"{found}"'
        return f"{found} : i64" if isinstance(found, int) else f"{found:.17e} : f64"

    return "{" + ", ".join(f"{name} = {value(found)}" for name, found in attributes.items()) + "}"


def call_text(target: str, operands: Sequence[Any], results: Sequence[str] | str, config: str) -> str:
    """A module whose entry computation is one custom call; several results make a tuple."""
    parameters = [f"  %p{number} = {shape_of(array)} parameter({number})" for number, array in enumerate(operands)]
    shape = results if isinstance(results, str) else f"({', '.join(results)})"
    names = ", ".join(f"%p{number}" for number in range(len(operands)))
    typed = ", api_version=API_VERSION_TYPED_FFI" if not config.startswith('{"') else ""
    call = f'custom-call({names}), custom_call_target="{target}"{typed}, backend_config={config}'
    lines = ["HloModule call", "", "ENTRY %main {", *parameters, f"  ROOT %call = {shape} {call}", "}"]
    return "\n".join(lines) + "\n"


def run_call(
    target: str, operands: Sequence[Any], results: Sequence[str] | str, config: str | Mapping[str, Any], **options: Any
) -> Any:
    """What the call gives; operands must stay as they are."""
    text = config if isinstance(config, str) else attributes_text(config)
    before = [operand.tobytes() for operand in operands]
    module = hloexec.parse(call_text(target, operands, results, text))
    hloexec.verify(module)
    value = hloexec.run(module, *operands, **options)
    assert before == [operand.tobytes() for operand in operands]
    return value


def refusal(target: str, operands: Sequence[Any], results: Sequence[str] | str, config: str | Mapping[str, Any]) -> str:
    """The message with which hloexec refuses to run the call."""
    try:
        run_call(target, operands, results, config)
    except hloexec.HloError as error:
        return str(error)
    raise AssertionError(f"{target} ran")


def within(actual: Any, expected: Any, type_name: str, bound: Any) -> None:
    """Assert that a result, rounded once to its type, is the expected number but for `bound` before the rounding."""
    actual, expected = np.asarray(actual).astype(np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    excess = np.abs(actual - expected) - (bound + HALF_ULP[type_name] * (np.abs(expected) + bound))
    worst = excess.max(initial=-math.inf)
    assert not np.isnan(actual).any() and worst <= 0, f"off by {worst} more than the bound {np.max(bound)}"


def by_jax(function: Callable[..., Any], *arguments: Any) -> Any:
    """A function's result, with NumPy's arrays as its leaves; f64 stays f64."""
    import jax

    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.jit(function, compiler_options={**COMPILED_SOONEST})(*arguments))


def with_gradients_by_jax(
    function: Callable[..., Any], *arguments: Any, cotangent: Any, has_aux: bool = False
) -> tuple[Any, ...]:
    """The output, the gradients by each argument for a cotangent of the output and, `has_aux`, what is returned beside
    the output."""
    import jax

    def differentiated(cotangent: Any, *arguments: Any) -> tuple[Any, ...]:
        output, pull, *others = jax.vjp(function, *arguments, has_aux=has_aux)
        return output, pull(cotangent), *others

    return by_jax(differentiated, cotangent, *arguments)
