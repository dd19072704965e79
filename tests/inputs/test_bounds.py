"""What the analysis says of the bounds of a value holds for every element that a run computes."""

import zlib

import numpy as np
import pytest

import hloexec
from hloexec.core.dtypes import ELEMENT_TYPES, element_type_of
from hloexec.engine.inputs.bounds import frame_of
from hloexec.language.element_types import accepted_element_types
from hloexec.ops.elementwise.selection import convert
from hloexec.ops.intervals import Bounds
from hloexec.ops.registry import OPCODES
from tests.drawing import examples

NUMBERS = [0.0, 0.25, 0.75, 1.0, 2.5, 3.0, 7.0, 100.0, 250.0, 300.0, 1e5, 3e9, 1e20]
TYPES = "f32 bf16 f8e4m3fn f4e2m1fn s32 s8 u8 s4 u64 pred".split()
MOVING = {
    "bitcast": "T[4] bitcast(a0)",
    "concatenate": "T[4,2] concatenate(a0, a1), dimensions={0}",
    "pad": "T[4,2] pad(a0, a2), padding=1_1x0_0",
    "slice": "T[1,2] slice(a0), slice={[1:2],[0:2]}",
    "reverse": "T[2,2] reverse(a0), dimensions={0}",
    "dynamic-slice": "T[1,2] dynamic-slice(a0, a3, a3), dynamic_slice_sizes={1,2}",
    "dynamic-update-slice": "T[2,2] dynamic-update-slice(a0, a1, a3, a3)",
    "select": "T[2,2] select(a4, a0, a1)",
}
"""Of operands a0 and a1 of [2,2], scalars a2 and (an index) a3, and the pred a4."""


def _samples(generator: np.random.Generator, type_name: str, size: int) -> np.ndarray:
    """Elements between two of the numbers, on either side of zero."""
    first, second = generator.choice(NUMBERS, 2) * generator.choice([-1.0, 1.0], 2)
    return convert(generator.uniform(min(first, second), max(first, second), size), ELEMENT_TYPES[type_name])


def _module(instruction: str, operands: list[np.ndarray]) -> hloexec.Module:
    lines = []
    for number, array in enumerate(operands):
        its_type = element_type_of(array.dtype)
        shape = f"{its_type.name}[{','.join(map(str, array.shape))}]"
        lines.append(f"a{number} = {shape} constant({_text(array)})")
    return hloexec.parse(f"HloModule m\nENTRY e {{ {' '.join(lines)} ROOT r = {instruction} }}")


def _text(array: np.ndarray) -> str:
    if array.ndim:
        return "{" + ", ".join(map(_text, array)) + "}"
    if array.dtype == np.bool_:
        return "true" if array else "false"
    return repr(int(array)) if element_type_of(array.dtype).is_integral else repr(float(array))


def _require_bounds(module: hloexec.Module) -> None:
    """Sums and products are bounded as if they were exact, so that elements may be a rounding beyond."""
    (bounds,) = frame_of(module, module.entry, []).bounds[module.entry.root_name]
    result = np.asarray(hloexec.run(module))
    its_type = element_type_of(result.dtype)
    elements = result.astype(np.float64)
    elements = elements[~np.isnan(elements)]
    roundoff = 2.0 ** -(its_type.mantissa_bits + 1) * np.abs(elements) if its_type.is_floating else 0
    assert (bounds.low - roundoff <= elements).all(), bounds
    assert (elements <= bounds.high + roundoff).all(), bounds


ELEMENTWISE = sorted(
    name for name, entry in OPCODES.items() if entry.is_elementwise and name not in ("complex", "convert", "select")
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_results_lie_within_their_bounds(name: str) -> None:
    entry = OPCODES[name]
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    text = {"compare": ", direction=LT", "reduce-precision": ", exponent_bits=4, mantissa_bits=1"}.get(name, "")
    for _ in range(examples(60)):
        type_name = str(generator.choice(TYPES))
        if ELEMENT_TYPES[type_name] not in (accepted_element_types(entry) or ()) or name == "stochastic-convert":
            continue
        operands = [_samples(generator, type_name, 6) for _ in range(entry.minimum_operands)]
        result = "pred" if name in ("compare", "is-finite") else type_name
        arguments = ", ".join(f"a{number}" for number in range(len(operands)))
        _require_bounds(_module(f"{result}[6] {name}({arguments}){text}", operands))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TYPES)
@pytest.mark.parametrize("source", TYPES)
def test_converted_elements_lie_within_their_bounds(source: str, target: str) -> None:
    generator = np.random.default_rng(zlib.crc32(f"{source} {target}".encode()))
    for _ in range(examples(30)):
        operand = _samples(generator, source, 6)
        _require_bounds(_module(f"{target}[6] convert(a0)", [operand]))


def test_a_fraction_is_converted_to_the_whole_number_below_it() -> None:
    module = _module("s32[2] convert(a0)", [np.array([0.75, 0.75], np.float32)])
    assert frame_of(module, module.entry, []).bounds["r"] == (Bounds(0, 0),)


def test_nan_counts_where_floats_become_integers() -> None:
    text = "HloModule m\nENTRY e { x = f32[3] constant({5, nan, 6}) ROOT r = s32[3] convert(x) }"
    module = hloexec.parse(text)
    (bounds,) = frame_of(module, module.entry, []).bounds["r"]
    assert bounds.low <= 0 <= bounds.high


@pytest.mark.parametrize("name", MOVING)
def test_moved_elements_lie_within_the_bounds_of_what_they_were(name: str) -> None:
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    for type_name in ("f32", "s32", "u8"):
        x, y = (_samples(generator, type_name, 4).reshape(2, 2) for _ in range(2))
        z, p = _samples(generator, type_name, 1).reshape(()), generator.random((2, 2)) < 0.5
        _require_bounds(_module(MOVING[name].replace("T[", f"{type_name}["), [x, y, z, np.array(1, np.int32), p]))


def test_sizes_that_are_set_add_zeros() -> None:
    module = hloexec.parse(
        "HloModule m\nENTRY e { x = s32[4] constant({5, 6, 7, 8}) n = s32[] constant(2) four = s32[] constant(4) "
        "less = s32[<=4] set-dimension-size(x, n), dimensions={0} "
        "ROOT r = s32[<=4] set-dimension-size(less, four), dimensions={0} }"
    )
    (bounds,) = frame_of(module, module.entry, []).bounds["r"]
    assert (bounds.low, bounds.high) == (0, 8)
    assert hloexec.run(module).tolist() == [5, 6, 0, 0]


def test_complex_numbers_have_no_bounds() -> None:
    module = hloexec.parse(
        "HloModule m\nENTRY e { x = c64[3] parameter(0) y = c64[3] add(x, x) ROOT r = c64[3] negate(y) }"
    )
    assert hloexec.random_inputs(module)[0].shape == (3,)


def test_products_of_integers_beyond_the_largest_float_are_bounded_by_infinity() -> None:
    squares = "".join(f"  a{n} = f32[2] multiply(a{n - 1}, a{n - 1})\n" for n in range(1, 40))
    text = f"""HloModule m
ENTRY e {{
  p = f32[2] parameter(0)
  s = f32[2] sign(p)
  a0 = f32[2] add(s, s)
{squares}  ROOT r = f32[2] add(a39, p)
}}
"""
    (values,) = hloexec.random_inputs(hloexec.parse(text))
    assert values.shape == (2,)
