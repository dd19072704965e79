"""reduce-window. Its kernels: `ops.reduction.window_reductions`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from math import prod

import attrs

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import Shape, Window
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import require
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.probes import REDUCER, Probe
from hloexec.ops.reduction.callees import (
    element_types,
    reduced,
    reduced_demands,
    reducer_types,
    result_shape,
    usual_operations,
)
from hloexec.ops.reduction.known_reducers import KNOWN_REDUCERS
from hloexec.ops.reduction.window_reductions import (
    reduce_windows_exactly,
    reduce_windows_known,
    reduce_windows_stepwise,
)
from hloexec.ops.registry import ANY, Callee, ProgramShape, opcode
from hloexec.ops.relations import Relating, Resizing, relate_window, resized_windows
from hloexec.ops.rounding import Rounding, Summation, Sums
from hloexec.ops.windows import output_size, require_window


@frozen
class ReduceWindowAttributes:
    """The window, and what combines two values."""

    window: Window = attribute(Grammar.WINDOW, default=Window())
    to_apply: str = attribute(Grammar.COMPUTATION)


@opcode(
    "reduce-window",
    operands=(2, ANY),
    attributes=ReduceWindowAttributes,
    rounding=Rounding.SUM,
    flushes_denormals=True,
    fast_in="hloexec.ops.reduction.fast.reduce_window",
)
class ReduceWindow:
    """out[o...] = init_value combined with all operand[...] under the window at o

    Along each dimension tap t of the window at place o lies at o·stride + t·window_dilation − padding_low of the
    operand dilated by base_dilation. Padding and the gaps between dilated elements are skipped. N operands and N
    initial values as for reduce. XLA: ReduceWindow.
    """

    sums = Sums.PREFIXES
    probe = Probe("T[2] reduce-window(a0, a1), window={size=1}, to_apply=c", ("T[2]", "T[]"), REDUCER)

    demands_for = reduced_demands

    @staticmethod
    def unstated(*operands: Shape) -> None:
        require(len(operands) == 2, "XLA infers the shape of a reduce-window of one array only")

    @staticmethod
    def relate(use: Relating) -> None:
        arrays = [operand.axes for operand in use.operands[: len(use.operands) // 2]]
        use.same_leaf_units(len(arrays))
        use.same(*arrays)
        results = [*use.result.leaves.values()]
        use.same(*results)
        windows = use.attributes.window.dimensions
        for entry, operand, result in zip(windows, arrays[0], results[0], strict=True):
            relate_window(use, entry, operand, result)
        whole = [axis for axis, entry in zip(arrays[0], windows, strict=True) if 1 < entry.size == use.size(axis)]
        if whole:
            use.sums_over(whole)

    @staticmethod
    def resize(change: Resizing) -> object:
        window = resized_windows(change.attributes.window, change.sizes(0), change.result_sizes)
        return attrs.evolve(change.attributes, window=window)

    @staticmethod
    def infer(*operands: Shape, attributes: ReduceWindowAttributes, computations: Sequence[ProgramShape]) -> Shape:
        arrays, results = reducer_types(operands, computations[0], "reduce-window")
        operand, window = arrays[0], attributes.window
        require(
            len(window.dimensions) == operand.rank,
            f"the window of reduce-window has {len(window.dimensions)} dimensions, but its operand is {operand}",
        )
        require_window(window, "reduce-window")
        sizes = tuple(map(output_size, operand.dimensions, window.dimensions))
        return result_shape(results, sizes, operand.dynamic_dimensions, computations[0])

    @staticmethod
    def evaluate(
        *operands: Array,
        attributes: ReduceWindowAttributes,
        shape: Shape,
        computations: Sequence[Callee],
        numerics: NumericsPolicy = REFERENCE,
    ) -> Array | tuple[Array, ...]:
        callee, window = computations[0], attributes.window
        reduce_windows = reduce_windows_exactly if numerics.is_exact else reduce_windows_known

        def by_operation(array: Array, init_value: Array, name: str, element_type: ElementType) -> Array:
            return reduce_windows(array, init_value, window, KNOWN_REDUCERS[name], element_type)

        by_calling = partial(reduce_windows_stepwise, window=window, callee=callee)
        return reduced(operands, shape, callee, by_operation, by_calling, is_exact=numerics.is_exact)

    @staticmethod
    def summed(*, attributes: ReduceWindowAttributes, shape: Shape, computations: Sequence[Callee]) -> Summation | None:
        names = usual_operations(computations[0], element_types(shape), is_exact=False) or ()
        terms = prod(dimension.size for dimension in attributes.window.dimensions)
        if not {"add", "multiply"} & set(names):
            return None
        # XLA makes prefix sums of sums of blocks of 16, each added up in the declared type: every term passes through
        # four partial sums per binary digit of their number, which are rounded apart from one another.
        steps = 6 * min(float(terms), 4 * math.log2(max(2, terms)))
        return Summation(terms, narrow_steps=steps, is_product="multiply" in names)
