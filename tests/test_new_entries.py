"""An opcode, or a library call, that one file registers is known to every part of hloexec."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.analysis.numerics.tolerances import leaf_chains
from hloexec.core.ir import ArrayShape, Instruction, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.engine.exec import plan_of
from hloexec.engine.inputs.bounds import frame_of
from hloexec.engine.plan.regions.region import RegionKernel
from hloexec.language.element_types import accepted_element_types
from hloexec.ops import registry
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape, narrow, require_distinct_dimensions, widen
from hloexec.ops.contraction.dot import product_size
from hloexec.ops.elementwise.declaration import FLOAT, elementwise
from hloexec.ops.intervals import Bounds
from hloexec.ops.intervals import demand as demanding
from hloexec.ops.registry import FAST, OPCODES, MemoryOrder, fast, opcode
from hloexec.ops.relations import Relating
from hloexec.ops.traits import ContractionSize, Pole, Probe, Rounding, Summation, Sums
from hloexec.tools.shadowing.computing.widening import WIDE, kernels_of
from tests.command_line import CommandLine

N = 300_000


@frozen
class Dimensions:
    """Which dimensions vanish."""

    dimensions: tuple[int, ...] = attribute(Grammar.INT_LIST)


@pytest.fixture(autouse=True, scope="module")
def _new_entries() -> Iterator[None]:
    elementwise(
        "cot",
        lambda x: np.divide(1, np.tan(x)),
        "1 / tan x.",
        operands=1,
        kinds=FLOAT,
        rounding=Rounding.FUNCTION,
        demands=demanding(0, 1, 2),
        pole=Pole(0, lambda x: x == 0, "cotangent of zero"),
    )

    @opcode("swap-halves", operands=1, any_order=True, moves=(0,), fast_in=__name__)
    class SwapHalves:
        """out = the second half of the operand along dimension 0, then the first."""

        probe = Probe("T[2] swap-halves(a0)", ("T[2]",))

        @staticmethod
        def infer(operand: Shape) -> Shape:
            return operand

        @staticmethod
        def evaluate(operand: Array) -> Array:
            return np.roll(operand, operand.shape[0] // 2, axis=0)

        @staticmethod
        def memory_order(order: MemoryOrder, **_: Any) -> MemoryOrder:
            return order

    @fast("swap-halves")
    class FastSwapHalves:
        """Two copies."""

        @staticmethod
        def bind(*, shape: ArrayShape) -> Callable[[Array], Array] | None:
            half = shape.dimensions[0] // 2
            return partial(_swapped, half) if shape.dimensions[0] == 2 * half else None

    @opcode("sum-of-squares", attributes=Dimensions, rounding=Rounding.SUM, sums=Sums.FOLDED)
    class SumOfSquares:
        """out[kept...] = the sum of operand[...]² along `dimensions`"""

        probe = Probe("T[] sum-of-squares(a0), dimensions={0}", ("T[2]",))

        @staticmethod
        def infer(operand: Shape, *, attributes: Dimensions) -> Shape:
            array = array_shape(operand, "the operand of sum-of-squares")
            require_distinct_dimensions(attributes.dimensions, array.rank, "sum-of-squares")
            kept = [size for number, size in enumerate(array.dimensions) if number not in attributes.dimensions]
            return ArrayShape(array.element_type, tuple(kept))

        @staticmethod
        def evaluate(operand: Array, *, attributes: Dimensions, shape: ArrayShape) -> Array:
            wide = widen(operand)
            return narrow(np.asarray(np.sum(wide * wide, axis=attributes.dimensions)), shape.element_type)

        @staticmethod
        def summed(*, attributes: Dimensions, operand_shapes: tuple[ArrayShape, ...]) -> Summation:
            along = attributes.dimensions
            return Summation(prod(operand_shapes[0].dimensions[number] for number in along), (along,))

        @staticmethod
        def relate(use: Relating) -> None:
            (operand,) = use.operands
            along = use.attributes.dimensions
            use.sums_over([operand.axes[number] for number in along])
            use.same([axis for number, axis in enumerate(operand.axes) if number not in along], use.result.axes)

    @registry.custom_call("acme$product", is_reproducible=True)
    class Product:
        """lhs · rhs, of matrices."""

        @staticmethod
        def infer(lhs: Shape, rhs: Shape) -> Shape:
            assert isinstance(lhs, ArrayShape) and isinstance(rhs, ArrayShape)
            return ArrayShape(lhs.element_type, (lhs.dimensions[0], rhs.dimensions[1]))

        @staticmethod
        def evaluate(lhs: Array, rhs: Array) -> Array:
            return np.asarray(lhs @ rhs)

        @staticmethod
        def contraction(
            instruction: Instruction, lhs: ArrayShape, rhs: ArrayShape, result: ArrayShape
        ) -> ContractionSize | None:
            return product_size(lhs, (1,), result)

    yield
    for name in ("cot", "swap-halves", "sum-of-squares"):
        del OPCODES[name]
        FAST.pop(name, None)
    del registry.CUSTOM_CALLS["acme$product"]


SWAPPED: list[Array] = []
"""What the fast variant was given."""


def _swapped(half: int, operand: Array) -> Array:
    SWAPPED.append(operand)
    return np.concatenate([operand[half:], operand[:half]])


CHAIN = f"""HloModule chain
ENTRY e {{
  x = f32[{N}] parameter(0)
  double = f32[{N}] add(x, x)
  cot = f32[{N}] cot(double)
  swapped = f32[{N}] swap-halves(cot)
  ROOT r = f32[{N}] multiply(swapped, double)
}}
"""
PRODUCT = """HloModule product
ENTRY e {
  lhs = f32[8,64] parameter(0)
  rhs = f32[64,4] parameter(1)
  ROOT r = f32[8,4] custom-call(lhs, rhs), custom_call_target="acme$product"
}
"""


SQUARES = """HloModule squares
ENTRY e {
  x = f32[64,48] parameter(0)
  s = f32[64] sum-of-squares(x), dimensions={1}
  ROOT r = f32[64] sqrt(s)
}
"""


def test_text_with_a_new_opcode_is_read_verified_and_printed() -> None:
    for text in (CHAIN, SQUARES, PRODUCT):
        module = hloexec.parse(text, strict=True)
        hloexec.verify(module)
        assert hloexec.parse(hloexec.format(module)) == module
    wrong = hloexec.parse(CHAIN.replace(f"cot = f32[{N}]", f"cot = f32[{N + 1}]"))
    with pytest.raises(hloexec.VerificationError, match="cot"):
        hloexec.verify(wrong)
    for attributes, message in (
        (", dimensions={2}", "dimension 2"),
        ("", "dimensions"),
        (", dimensions={1}, axes={1}", "axes"),
    ):
        with pytest.raises(hloexec.HloError, match=message):
            hloexec.verify(hloexec.parse(SQUARES.replace(", dimensions={1}", attributes), strict=True))
    wrong = hloexec.parse(PRODUCT.replace("ROOT r = f32[8,4]", "ROOT r = f32[8,5]"))
    with pytest.raises(hloexec.VerificationError, match="acme"):
        hloexec.verify(wrong)


def test_it_runs_and_joins_fused_regions() -> None:
    module, x = hloexec.parse(CHAIN), np.linspace(0.1, 0.7, N, dtype=np.float32)
    regions = [step.kernel for step in plan_of(module).steps if isinstance(step.kernel, RegionKernel)]
    assert regions
    expected = np.roll(1 / np.tan(2 * x), N // 2) * (2 * x)
    assert_array_equal(hloexec.run(module, x), expected)
    assert_array_equal(hloexec.run(module, x, planner=False), expected)


def test_its_poles_are_named_where_numbers_go_bad() -> None:
    x = np.full(N, 0.5, np.float32)
    x[7] = 0
    finding = hloexec.find_nan(hloexec.parse(CHAIN), [[x]], first=True).finding
    assert finding is not None
    assert (finding.instruction, finding.reason) == ("cot", "cotangent of zero")


def test_it_is_traced_and_found_by_diff(tmp_path: Path) -> None:
    x = np.linspace(0.1, 0.7, N, dtype=np.float32)
    hloexec.trace(hloexec.parse(CHAIN), [[x]], tmp_path / "trace")
    assert {record.name for record in hloexec.read_trace(tmp_path / "trace")} >= {"cot", "swapped"}
    small = CHAIN.replace(str(N), "300")
    found = hloexec.diff(hloexec.parse(small), hloexec.parse(small.replace(" cot(", " tan(")), [x[:300]])
    assert [finding.after.instruction for finding in found.findings] == ["cot"]
    found = hloexec.diff(hloexec.parse(small), hloexec.parse(small.replace(" swap-halves(", " copy(")), [x[:300]])
    assert [finding.after.instruction for finding in found.findings] == ["swapped"]


def test_inputs_meet_its_demands_and_bounds_follow_it() -> None:
    direct = hloexec.parse("HloModule m\nENTRY e { x = f32[99] parameter(0) ROOT r = f32[99] cot(x) }")
    (x,) = hloexec.random_inputs(direct)
    assert (x >= 1).all() and (x <= 2).all()
    moved = hloexec.parse("HloModule m\nENTRY e { x = s32[4] constant({3, 5, 4, 3}) ROOT r = s32[4] swap-halves(x) }")
    assert frame_of(moved, moved.entry, []).bounds["r"] == (Bounds(3, 5),)
    lhs, rhs = hloexec.random_inputs(hloexec.parse(PRODUCT))
    assert 0.2 < np.std(lhs) * np.sqrt(8) ** 0.5 / 2 < 2
    assert np.std(lhs @ rhs) < 2


def test_memory_error_budget_and_element_types_know_it() -> None:
    module = hloexec.parse(CHAIN)
    assert hloexec.memory_usage(module).peak.bytes >= 3 * 4 * N
    (chain,) = leaf_chains(module).values()
    assert chain.roundings == 3, "the sum, the cotangent and the product: moving rounds nothing"
    accepted = accepted_element_types(OPCODES["cot"]), accepted_element_types(OPCODES["swap-halves"])
    assert accepted[0] is not None and {str(entry) for entry in accepted[0]} >= {"f32", "bf16", "f64"}
    assert "s32" not in {str(entry) for entry in accepted[0]}
    assert accepted[1] is not None and len(accepted[1]) > len(accepted[0])


def test_an_entry_without_traits_loses_precision_alone() -> None:
    elementwise("plain", np.cos, "cos x.", operands=1, kinds=FLOAT)
    try:
        module = hloexec.parse("HloModule m\nENTRY e { x = f32[9] parameter(0) ROOT r = f32[9] plain(x) }")
        assert frame_of(module, module.entry, [(Bounds(0, 1),)]).bounds["r"] == (Bounds(),)
        hloexec.run(module, hloexec.random_inputs(module)[0])
    finally:
        del OPCODES["plain"]


@pytest.mark.parametrize("planner", [True, False])
def test_a_fast_variant_takes_the_place_of_its_definition_where_it_is_one(planner: bool) -> None:
    text = "HloModule m\nENTRY e { x = f32[%d] parameter(0)\n ROOT r = f32[%d] swap-halves(x) }\n"
    for size, uses in ((8, 1), (9, 0)):
        SWAPPED.clear()
        x = np.arange(size, dtype=np.float32)
        found = hloexec.run(hloexec.parse(text % (size, size)), x, planner=planner)
        assert len(SWAPPED) == uses
        evaluate = OPCODES["swap-halves"].evaluate
        assert evaluate is not None and found.tobytes() == evaluate(x).tobytes()
    SWAPPED.clear()
    dynamic = "HloModule m\nENTRY e { x = f32[<=8] parameter(0)\n ROOT r = f32[<=8] swap-halves(x) }\n"
    assert_array_equal(hloexec.run(hloexec.parse(dynamic), np.arange(6, dtype=np.float32)), np.roll(np.arange(6), 3))
    assert not SWAPPED, "extents are not known before the run"


def test_it_is_listed(cli: CommandLine) -> None:
    names = {entry["name"] for entry in json.loads(cli("ops --json"))["opcodes"]}
    assert names >= {"add", "cot", "swap-halves", "sum-of-squares"}
    assert re.search(r"^sum-of-squares +[·●]+$", cli("ops --types"), re.MULTILINE)


def test_it_is_computed_in_f64_and_its_rounding_accounted_for() -> None:
    """The fast variant and the library call are bound for wider floats, too."""
    SWAPPED.clear()
    small = hloexec.parse(CHAIN.replace(str(N), "8"))
    kernels = kernels_of(small)
    swap = kernels.bound(small.entry, small.entry.by_name["swapped"], WIDE)
    x = np.arange(8, dtype=np.float64) / 3
    assert swap is not None and swap(x).tobytes() == np.roll(x, 4).tobytes() and SWAPPED[0].dtype == np.float64
    product = hloexec.parse(PRODUCT)
    multiply = kernels_of(product).bound(product.entry, product.entry.root, WIDE)
    lhs, rhs = np.ones((8, 64)) / 3, np.ones((64, 4)) / 7
    assert multiply is not None and multiply(lhs, rhs).tobytes() == (lhs @ rhs).tobytes()


def test_library_calls_run_planned_or_not() -> None:
    lhs, rhs = hloexec.random_inputs(hloexec.parse(PRODUCT))
    for planner in (True, False):
        found = hloexec.run(hloexec.parse(PRODUCT), lhs, rhs, planner=planner, numerics="exact")
        assert found.tobytes() == (lhs @ rhs).tobytes()


@pytest.mark.parametrize("element_type", ["f32", "bf16", "f64"])
def test_an_opcode_with_attributes_runs_planned_or_not(element_type: str) -> None:
    module = hloexec.parse(SQUARES.replace("f32", element_type))
    x = np.arange(64 * 48).reshape(64, 48) % 4
    operand = x.astype(module.entry.parameter_shapes[0].element_type.storage)
    expected = np.sqrt(np.sum(x * x, 1, dtype=np.float64)).astype(operand.dtype)
    for planner in (True, False):
        found = hloexec.run(module, operand, planner=planner)
        assert_array_equal(found.astype(np.float64), expected.astype(np.float64))


def test_its_sums_are_accounted_for_and_its_dimensions_shrink() -> None:
    module = hloexec.parse(SQUARES)
    found = hloexec.shadow(module, hloexec.random_inputs(module))
    assert {loss.instruction for loss in found.losses} == {"s", "r"}
    (chain,) = leaf_chains(module).values()
    assert chain.terms == 48
    smaller = hloexec.shrink(module, max_bytes=512).module
    hloexec.verify(smaller)
    rows, columns = smaller.entry.parameter_shapes[0].dimensions
    assert rows * columns < 64 * 48 and smaller.entry.result_shape.dimensions == (rows,)


@pytest.mark.parametrize(("text", "name"), [(CHAIN, "cot"), (SQUARES, "sum-of-squares")])
def test_what_rounds_in_its_own_way_has_to_say_that_it_is_reproducible(text: str, name: str) -> None:
    with pytest.raises(hloexec.UnsupportedError, match=f"{name}.*same bits on every processor"):
        hloexec.run(hloexec.parse(text), numerics="exact", planner=False)
