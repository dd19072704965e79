"""The table of faults: what is wrong, in which model, and how it is planted."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from evaluation.faults.editing import Draft, Where
from evaluation.faults.planting import (
    Fault,
    becomes,
    constant_becomes,
    doubled,
    dropped,
    reducer_becomes,
    roots_become,
    shifted_index,
    swapped,
    taken_from,
    with_attributes,
)
from evaluation.faults.rounding import (
    accumulated_in,
    flushed,
    nan_is_lost,
    operands_of_few_bits,
    rounded,
    wraps_at,
)
from hloexec.core.ir import (
    ArrayShape,
    Instruction,
    PaddingDimension,
    ReplicaGroups,
    SliceDimension,
    Window,
    WindowDimension,
)

# Which instruction


def _of_shape(*dimensions: int) -> Where:
    return lambda _, i: isinstance(i.shape, ArrayShape) and i.shape.dimensions == dimensions


def _of_type(element_type: str) -> Where:
    return lambda _, i: isinstance(i.shape, ArrayShape) and i.shape.element_type.name == element_type


def _takes(opcode: str, operand: int = 0) -> Where:
    return lambda draft, i: draft.operand(i, operand).opcode == opcode


def _takes_number(operand: int, holds: Callable[[float], bool]) -> Where:
    """Where an operand is a constant that fulfils a condition."""

    def where(draft: Draft, instruction: Instruction) -> bool:
        number = draft.scalar(instruction.operands[operand])
        return number is not None and holds(number)

    return where


def _is_loop_root(draft: Draft, instruction: Instruction) -> bool:
    """Where an instruction is what the body of a loop hands on."""
    home = draft.home(instruction.name)
    loops = [each for each in draft.instructions() if each.opcode == "while"]
    return draft.is_root(instruction.name) and any(each.attributes.body == home for each in loops)


def _not_in_reducer(draft: Draft, instruction: Instruction) -> bool:
    return isinstance(instruction.shape, ArrayShape) and bool(instruction.shape.dimensions)


# How attributes change


def _moved(axis: int, by: int) -> Callable[[tuple[SliceDimension, ...]], tuple[SliceDimension, ...]]:
    """A slice that starts and ends elsewhere."""

    def change(ranges: tuple[SliceDimension, ...]) -> tuple[SliceDimension, ...]:
        old = ranges[axis]
        new = attrs.evolve(old, start=old.start + by, limit=old.limit + by)
        return (*ranges[:axis], new, *ranges[axis + 1 :])

    return change


def _window(change: Callable[[WindowDimension], WindowDimension]) -> Callable[[Window], Window]:
    """A window whose dimensions of more than one tap are changed."""
    return lambda window: Window(tuple(change(each) if each.size > 1 else each for each in window.dimensions))


def _padded_on_the_other_side(each: WindowDimension) -> WindowDimension:
    return attrs.evolve(each, padding_low=each.padding_high, padding_high=each.padding_low)


def _dilated(each: WindowDimension) -> WindowDimension:
    """Taps twice as far apart, padded so that the result keeps its shape."""
    more = (each.size - 1) // 2
    return attrs.evolve(
        each, window_dilation=2, padding_low=each.padding_low + more, padding_high=each.padding_high + more
    )


def _pad_on_the_other_side(each: PaddingDimension) -> PaddingDimension:
    return PaddingDimension(each.edge_padding_high, each.edge_padding_low, each.interior_padding)


def _exclusive(each: WindowDimension) -> WindowDimension:
    return attrs.evolve(each, padding_low=each.padding_low + 1, padding_high=each.padding_high - 1)


_HALVES = ReplicaGroups(groups=((0, 1), (2, 3)))
_CROSSED = ReplicaGroups(groups=((0, 2), (1, 3)))
_TWISTED = ReplicaGroups(groups=((0, 1, 3, 2),))


def _other_weights(draft: Draft, instruction: Instruction) -> str:
    """The other one of two parameters that have one shape."""
    shape = draft[instruction.operands[1]].shape
    return next(
        each.name
        for each in draft.computations[draft.home(instruction.name)].values()
        if each.opcode == "parameter" and each.shape == shape and each.name not in instruction.operands
    )


def _takes_divide(draft: Draft, instruction: Instruction) -> bool:
    return draft.operand(instruction, 2).opcode == "divide"


FAULTS: tuple[tuple[str, str, Fault], ...] = (
    # Operands and epilogues
    ("subtraction the other way round", "attention", swapped("subtract", where=_of_shape(4, 16, 16))),
    ("rotation by the sine instead of the cosine", "attention", becomes("cosine", "sine", 1)),
    ("masked the other way round", "attention", swapped("select", where=_not_in_reducer, first=1, second=2)),
    ("mask without the diagonal", "attention.optimized", with_attributes("compare", 1, direction="GT")),
    (
        "mask along the other dimension",
        "attention.optimized",
        with_attributes("iota", 0, _of_shape(16, 16), iota_dimension=1),
    ),
    ("rotated halves in the wrong order", "attention.optimized", swapped("concatenate")),
    (
        "heads off by one in a slice",
        "attention.optimized",
        with_attributes("slice", 1, _of_shape(1, 16, 4, 8), slice=_moved(0, 1)),
    ),
    ("relu dropped", "mlp", dropped("maximum")),
    ("bias dropped", "mlp", dropped("add", where=_takes("dot"))),
    ("bias added twice", "mlp", doubled("add", 1, where=_takes("dot"))),
    ("alpha is another number", "mlp", constant_becomes("multiply", 1, 0.26)),
    ("second layer takes the first's weights", "mlp", taken_from("dot", 1, _other_weights, 1)),
    ("wrong dimension contracted", "mlp", with_attributes("dot", 1, rhs_contracting_dims=(1,))),
    (
        "epsilon of another norm",
        "layer_norm",
        constant_becomes("add", 1, 1e-3, where=_takes_number(1, lambda x: x < 1e-3)),
    ),
    ("mean over one element too few", "layer_norm", constant_becomes("divide", 1, 23, 1)),
    (
        "scale and bias exchanged",
        "layer_norm",
        taken_from("add", 1, lambda d, i: d[d[i.operands[0]].operands[1]].name, -1),
    ),
    # Precision
    ("sums of a product in bf16", "mlp", accumulated_in("dot", "bf16")),
    ("TF32 in a product", "power_iteration", operands_of_few_bits()),
    ("TF32 in attention", "attention", operands_of_few_bits(where=_of_shape(4, 16, 16))),
    ("sums of a mean in bf16", "layer_norm", accumulated_in("reduce", "bf16", 1)),
    ("probabilities kept in bf16", "attention", rounded("exponential")),
    ("state kept in f16", "rnn_scan", rounded("tanh", "f16", 1)),
    ("tanh left out", "mixed_precision", dropped("tanh")),
    ("exponential of 002 minus one", "gated_mlp_of_002", becomes("exponential", "exponential-minus-one")),
    ("denormals flushed", "tiny_probabilities", flushed("multiply")),
    ("reduced to seven bits instead of ten", "quantized", with_attributes("reduce-precision", mantissa_bits=7)),
    ("rounded towards zero by a cast", "quantized", becomes("round-nearest-even", "floor")),
    ("cosine of 002 left out", "rotary_norm_of_002", dropped("multiply", where=_takes("broadcast", 1), nth=-1)),
    ("rotation of 002 by the wrong half", "rotary_norm_of_002", with_attributes("slice", 2, slice=_moved(1, 64))),
    ("gate of 002 is not activated", "gated_mlp_of_002", dropped("divide", keeps=0)),
    # Windows
    (
        "padding on the other side",
        "conv_net",
        with_attributes("convolution", window=_window(_padded_on_the_other_side)),
    ),
    ("window dilated", "conv_net", with_attributes("convolution", 1, window=_window(_dilated))),
    ("pooling window one off", "conv_net", with_attributes("reduce-window", window=_window(_padded_on_the_other_side))),
    ("average instead of maximum", "conv_net", reducer_becomes("reduce-window", "add")),
    ("kernel not turned for its gradient", "conv_gradient", dropped("reverse")),
    ("kernel turned in one dimension only", "conv_gradient", with_attributes("reverse", dimensions=lambda d: d[:1])),
    (
        "cumulative sum leaves its own element out",
        "ranking",
        with_attributes("reduce-window", window=_window(_exclusive)),
    ),
    # Indices
    ("clamped one before the last", "embedding", constant_becomes("clamp", 2, 9)),
    ("gathered one row too far", "embedding", shifted_index("gather", 1, 1)),
    ("words that come twice count once", "embedding", reducer_becomes("scatter", "second")),
    ("expert is another", "router", shifted_index("gather", 1, -1)),
    ("counted once", "router", reducer_becomes("scatter", "second")),
    ("label off by one", "cross_entropy", shifted_index("gather", 1, 1)),
    (
        "first class not ignored",
        "cross_entropy",
        with_attributes("compare", 0, lambda _, i: i.attributes.direction == "GT", direction="GE"),
    ),
    ("sorted the other way", "ranking", with_attributes("compare", 0, lambda d, i: d.is_root(i.name), direction="GT")),
    # Dimensions of one size
    ("transposed the wrong way", "mixing", with_attributes("transpose", dimensions=(1, 2, 0))),
    (
        "broadcast along another dimension",
        "mixing",
        with_attributes("broadcast", 0, _of_shape(8, 8, 8), dimensions=(2,)),
    ),
    (
        "padded on the other side",
        "mixing",
        with_attributes("pad", padding=lambda p: tuple(map(_pad_on_the_other_side, p))),
    ),
    (
        "batch dimensions of the second operand exchanged",
        "mixing",
        with_attributes("dot", rhs_batch_dims=(1,), rhs_contracting_dims=(0,)),
    ),
    # Reductions
    ("maximum instead of a sum", "markov_chain", reducer_becomes("reduce", "maximum", 1)),
    (
        "sum starts at one",
        "cross_entropy",
        constant_becomes("reduce", 1, 1.0, where=lambda d, i: d.scalar(i.operands[1]) == 0),
    ),
    ("largest value starts at one", "quantized", constant_becomes("reduce", 1, 1.0)),
    # Integers and special values
    ("hash in sixteen bits", "calendar", wraps_at("multiply", "s16", where=_takes_number(1, lambda x: x > 1000))),
    ("division truncates", "calendar", taken_from("select", 1, lambda d, i: i.operands[2], where=_takes_divide)),
    ("logical shift", "calendar", becomes("shift-right-arithmetic", "shift-right-logical")),
    (
        "counted along the other dimension",
        "calendar",
        with_attributes("broadcast", 0, _takes("reshape"), dimensions=(1,)),
    ),
    ("NaN is lost", "clipped_gradient", nan_is_lost(where=_takes("abs"))),
    ("sign lost", "clipped_gradient", dropped("negate")),
    ("back by the forward transform", "fourier_filter", dropped("multiply", where=_of_type("c64"))),
    # Loops and branches
    ("one step too few", "power_iteration", constant_becomes("compare", 1, 5)),
    ("loop starts at one", "ring_attention", constant_becomes("tuple", 0, 1, where=_takes_number(0, lambda x: x == 0))),
    ("vector of the step before", "power_iteration", roots_become("tuple", 1, 1, where=_is_loop_root)),
    ("sum not accumulated", "ring_attention", dropped("add", where=_of_shape(4, 8), keeps=1)),
    ("stale state", "rnn_scan", taken_from("dynamic-update-slice", 2, lambda d, i: i.operands[3])),
    ("chain is not transposed", "markov_chain", dropped("transpose")),
    (
        "another branch",
        "choice",
        with_attributes("conditional", branch_computations=lambda names: (names[0], names[2], names[1])),
    ),
    ("branches exchanged", "choice", with_attributes("compare", direction="LT")),
    # Devices
    ("summed over half of the devices", "data_parallel_step", with_attributes("all-reduce", replica_groups=_HALVES)),
    ("wrong groups", "tensor_parallel", with_attributes("all-reduce", replica_groups=_CROSSED)),
    ("gathered in another order", "tensor_parallel", with_attributes("all-gather", replica_groups=_TWISTED)),
    (
        "handed on the other way",
        "ring_attention",
        with_attributes("collective-permute", source_target_pairs=((1, 0), (2, 1), (3, 2), (0, 3))),
    ),
    ("exchanged among halves", "ring_attention", with_attributes("all-to-all", replica_groups=_TWISTED)),
)
"""Name, model and fault."""
