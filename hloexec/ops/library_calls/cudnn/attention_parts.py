"""What cuDNN's attention calls have in common.

Targets and configs of cuDNN's attention: which operands a call has, and the role of each dimension.

The dimension numbers of the inner matrix products give the layouts of queries, keys and values; all are converted to
[batch, heads, rows, columns]. Products with one batch dimension get a heads dimension of size 1. Source: XLA,
CudnnfMHABackendConfig; JAX, fused_attention_stablehlo.py.

cuDNN's attention: its operands by name, and its results, one of which is scratch memory (u8, zeros).

The sequences of cuDNN's flash attention: padded to one length, packed several to a row, or with keys in pages.

In each form, the input is treated as tokens [tokens, heads, depth], row by row, and a sequence is a range of query
tokens with a range of key tokens. Source: JAX, fused_attention_stablehlo.py; cuDNN frontend, Attention.

The older form of cuDNN's attention, which holds all probabilities: scores · mask, then softmax.

Everything is `[batch, heads, rows, columns]` and computed in f32. Source: XLA, cuda_dnn.cc of 2023
(GetCudnnFusedMHAOperationGraph, GetCudnnFusedMHABackwardOperationGraph).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.errors import HloError, ShapeError, UnsupportedError
from hloexec.ops.common import array_shape, require, widen
from hloexec.ops.contraction.dot import contract, dot_of
from hloexec.ops.library_calls import activations as softmax
from hloexec.ops.library_calls.activations import Band
from hloexec.ops.library_calls.configs import CallResult, Fields, read_fields, require_floating, result_shapes, zeros_of
from hloexec.ops.policies.policy import NumericsPolicy

# `algorithm` chooses among kernels and `force_deterministic` an order of sums: rounding. `seed` feeds dropout alone,
# `intermediate_tensor_shape` restates what the operands say.
_FIELDS = (
    "algorithm fmha_scale dropout_rate seed bmm1_dot_dimension_numbers bmm2_dot_dimension_numbers "
    "bmm1_grad_gemm1_dot_dimension_numbers bmm1_grad_gemm2_dot_dimension_numbers bmm2_grad_gemm1_dot_dimension_numbers "
    "bmm2_grad_gemm2_dot_dimension_numbers intermediate_tensor_shape is_flash_attention is_causal_mask mask_type "
    "force_deterministic sliding_window_length max_seg_per_batch is_paged_attention"
).split()
_MASKS = ("NO_MASK", "PADDING", "CAUSAL", "PADDING_CAUSAL", "ALIBI")


@frozen
class Kind:
    """What a target's name says."""

    has_softmax: bool = True
    has_mask: bool = False
    has_bias: bool = False
    is_backward: bool = False
    is_8_bit: bool = False


_FORWARD = {
    "BmmBmm": Kind(has_softmax=False),
    "Softmax": Kind(),
    "ScaleBiasSoftmax": Kind(has_bias=True),
    "ScaleMaskSoftmax": Kind(has_mask=True),
    "ScaleBiasMaskSoftmax": Kind(has_mask=True, has_bias=True),
}
_FORWARD |= {f"{name}Dropout": kind for name, kind in _FORWARD.items() if kind.has_softmax}
_BACKWARD = {f"{name}Backward": attrs.evolve(kind, is_backward=True) for name, kind in _FORWARD.items()}
_NARROW = {"SoftmaxF8": Kind(is_8_bit=True), "SoftmaxBackwardF8": Kind(is_8_bit=True, is_backward=True)}
# Dumps of 2023 misspell the name.
KINDS: Mapping[str, Kind] = {
    f"__cudnn${prefix}{name}": kind
    for prefix in ("fmha", "fhma")
    for name, kind in (_FORWARD | _BACKWARD | _NARROW).items()
}
"""Every target of cuDNN's attention."""


@frozen
class Placement:
    """Which dimensions of an operand are the batch (and heads), the rows and the columns."""

    batch: Dimensions
    rows: int
    columns: int

    @property
    def order(self) -> Dimensions:
        return (*self.batch, self.rows, self.columns)

    def shape(self, array: ArrayShape, subject: str) -> tuple[int, int, int, int]:
        """Batch, heads, rows and columns of an operand's shape."""
        require(array.rank == len(self.order), f"{subject} must have {len(self.order)} dimensions, but is {array}")
        sizes = [array.dimensions[dim] for dim in self.order]
        batch, heads, rows, columns = sizes if len(sizes) == 4 else (sizes[0], 1, *sizes[1:])
        return batch, heads, rows, columns

    def canonical(self, array: Array) -> Array:
        """The operand as a view [batch, heads, rows, columns]."""
        view = array.transpose(self.order)
        return view if view.ndim == 4 else view[:, None]


_FORWARD_ROLES = {
    "queries": ("bmm1_dot_dimension_numbers", "lhs", False),
    "keys": ("bmm1_dot_dimension_numbers", "rhs", False),
    "values": ("bmm2_dot_dimension_numbers", "rhs", True),
}
_BACKWARD_ROLES = {
    "queries": ("bmm1_grad_gemm1_dot_dimension_numbers", "rhs", True),
    "keys": ("bmm1_grad_gemm2_dot_dimension_numbers", "rhs", True),
    "values": ("bmm2_grad_gemm2_dot_dimension_numbers", "rhs", False),
    "output": ("bmm2_grad_gemm2_dot_dimension_numbers", "lhs", False),
    "output gradient": ("bmm2_grad_gemm2_dot_dimension_numbers", "lhs", False),
    "statistics": ("bmm2_grad_gemm1_dot_dimension_numbers", "lhs", True),
}
"""By role: the product, the side of it, and whether the rows are what it contracts."""


@frozen
class AttentionConfig:
    """A target's kind and what its config says about values."""

    kind: Kind
    scale: float
    is_flash: bool
    band: Band
    has_padding: bool
    is_packed: bool
    is_paged: bool
    placements: Mapping[str, Placement] = attrs.field(eq=False)

    @property
    def has_lengths(self) -> bool:
        return self.has_padding or self.is_packed or self.is_paged

    def shapes(self, named: Mapping[str, ArrayShape]) -> Iterator[tuple[int, int, int, int]]:
        """Batch, heads, rows and columns of queries, keys and values."""
        return (self.placements[role].shape(named[role], role) for role in _FORWARD_ROLES)

    def canonical(self, named: Mapping[str, Array], *roles: str) -> Iterator[Array]:
        """Queries, keys and values, or what else plays the given roles, as views [batch, heads, rows, columns]."""
        return (self.placements[role].canonical(named[role]) for role in roles or _FORWARD_ROLES)


def attention_config(instruction: Instruction) -> AttentionConfig:
    """What a call says; UnsupportedError names what cannot be done."""
    target = instruction.attributes.custom_call_target
    kind = KINDS[target]
    fields = read_fields(instruction, "cudnn_fmha_backend_config", _FIELDS)
    if fields.number("dropout_rate") != 0:
        raise UnsupportedError(
            f"its dropout_rate is {fields.number('dropout_rate')}, but the random numbers of cuDNN are not public"
        )
    if "fmha_scale" not in fields.values:
        raise UnsupportedError("its cudnn_fmha_backend_config lacks fmha_scale")
    mask, is_flash = fields.word("mask_type", _MASKS), fields.flag("is_flash_attention")
    if mask == "ALIBI":
        raise UnsupportedError("its mask_type is ALIBI, which cuDNN takes with a causal mask only")
    window, segments = fields.whole("sliding_window_length"), fields.whole("max_seg_per_batch")
    is_causal = "CAUSAL" in mask or fields.flag("is_causal_mask")
    is_paged = fields.flag("is_paged_attention")
    if not is_flash and (mask != "NO_MASK" or is_causal or window > 0 or segments > 1 or is_paged):
        raise UnsupportedError(
            "it has mask_type, is_causal_mask, sliding_window_length, max_seg_per_batch or is_paged_attention without "
            "is_flash_attention"
        )
    if is_flash and (kind.has_mask or not kind.has_softmax):
        raise UnsupportedError(f"{target} is not flash attention, but has is_flash_attention")
    if kind.has_bias and segments > 1:
        raise UnsupportedError(f"it has a bias together with max_seg_per_batch of {segments}")
    if is_paged and (kind.is_backward or segments > 1):
        raise UnsupportedError("it has is_paged_attention together with gradients or max_seg_per_batch")
    if kind.is_8_bit and ("PADDING" in mask or window > 0 or segments > 1 or is_paged):
        raise UnsupportedError("8-bit attention has a causal mask or none, and nothing else")
    roles = _BACKWARD_ROLES if kind.is_backward else _FORWARD_ROLES
    return AttentionConfig(
        kind=kind,
        scale=fields.number("fmha_scale"),
        is_flash=is_flash,
        band=Band(left=window - 1 if window > 0 else None, right=0 if is_causal else None),
        has_padding="PADDING" in mask,
        is_packed=segments > 1,
        is_paged=is_paged,
        placements={role: _placement(fields, *where) for role, where in roles.items()},
    )


def _placement(fields: Fields, product: str, side: str, contracts_rows: bool) -> Placement:
    if fields.values.get(product) is None:
        raise UnsupportedError(f"its cudnn_fmha_backend_config lacks {product}")
    numbers = fields.object(product)
    batch = numbers.whole_list(f"{side}_batch_dimensions")
    contracting = numbers.whole_list(f"{side}_contracting_dimensions")
    free = set(range(len(batch) + 2)) - {*batch, *contracting}
    if len(batch) not in (1, 2) or len(contracting) != 1 or len(free) != 1:
        raise UnsupportedError(
            f"{product} of its backend_config must have one or two batch dimensions and one contracting dimension on "
            f"either side, but has {list(batch)} and {list(contracting)} on {side}"
        )
    other = free.pop()
    return Placement(batch, *((contracting[0], other) if contracts_rows else (other, contracting[0])))


_Operand = TypeVar("_Operand")

_INTEGERS = ("query lengths", "key lengths", "query offsets", "key offsets", "key pages", "value pages")


def named(
    operands: Sequence[_Operand], names: Sequence[str], subject: str, error: type[HloError]
) -> dict[str, _Operand]:
    """The operands by name; `error` unless there is one for each of `names`."""
    if len(operands) != len(names):
        raise error(f"{subject} must have the operands {', '.join(names)}, but has {len(operands)} operands")
    return dict(zip(names, operands, strict=True))


def named_shapes(operands: Sequence[Shape], names: Sequence[str], subject: str) -> dict[str, ArrayShape]:
    """The operands' shapes by name; ShapeError for other than floating-point numbers, where these are asked for."""
    operands_by_name = named(operands, names, subject, ShapeError)
    shapes = {name: array_shape(shape, f"{name} of {subject}") for name, shape in operands_by_name.items()}
    require_floating((shape for name, shape in shapes.items() if name not in _INTEGERS), subject)
    return shapes


def check_heads(queries: Sequence[int], keys: Sequence[int], values: Sequence[int]) -> None:
    """ShapeError where operands of these batches, heads, rows and depths do not fit each other."""
    require(
        queries[0] == keys[0] == values[0]
        and keys[1:3] == values[1:3]
        and queries[3] == keys[3]
        and keys[1] > 0
        and queries[1] % keys[1] == 0,
        f"queries, keys and values of the attention do not fit each other: as batch, heads, rows and depth they are "
        f"{list(queries)}, {list(keys)} and {list(values)}",
    )


def check_outputs(
    shapes: Mapping[str, ArrayShape], config: AttentionConfig, expected: Dimensions, subject: str
) -> None:
    """ShapeError unless the output and its gradient, as operands, are as the output of forward is."""
    for name in ("output gradient", "output"):
        if name in shapes:
            dimensions = config.placements[name].shape(shapes[name], f"the {name} of {subject}")
            require(dimensions == expected, f"the {name} of {subject} must be {list(expected)}, but is {shapes[name]}")


def result_count(shape: Shape) -> int:
    """How many results are declared, scratch memory aside."""
    return sum(not is_scratch(leaf) for leaf in result_shapes(shape, "the attention"))


def results_of(shape: Shape, expected: Sequence[Dimensions], subject: str) -> Shape:
    """The declared shape with the dimensions of everything but scratch memory as expected.

    A dimension of size 1 that one of them has more than the other does not count.
    """
    declared = list(result_shapes(shape, subject))
    places = [place for place, leaf in enumerate(declared) if not is_scratch(leaf)]
    if len(places) != len(expected) or not isinstance(shape, TupleShape):
        raise ShapeError(f"{subject} has {len(expected)} results and scratch memory, but is declared as {shape}")
    for place, dimensions in zip(places, expected, strict=True):
        part = declared[place]
        if [size for size in part.dimensions if size != 1] != [size for size in dimensions if size != 1]:
            declared[place] = ArrayShape(part.element_type, dimensions)
    return TupleShape(tuple(declared))


def rounded_results(
    results: Sequence[Array], shape: Shape, rounded: Callable[[Array, ElementType], Array]
) -> CallResult:
    """The results in the places of what is no scratch memory, each rounded once; zeros for scratch memory.

    Results for which the declared shape has no place are left out.
    """
    remaining = iter(results)
    leaves = [
        zeros_of(leaf) if is_scratch(leaf) else rounded(next(remaining), leaf.element_type).reshape(leaf.dimensions)
        for leaf in result_shapes(shape, "the attention")
    ]
    return tuple(leaves) if isinstance(shape, TupleShape) else leaves[0]


def is_scratch(leaf: ArrayShape) -> bool:
    """Whether a result is scratch memory; its place among the results changed over the years."""
    return leaf.element_type.name == "u8" and leaf.rank == 1


def tokens(array: Array) -> Array:
    """`[batch, heads, rows, depth]` as `[batch × rows, heads, depth]`."""
    batch, heads, rows, depth = array.shape
    return array.swapaxes(1, 2).reshape(batch * rows, heads, depth)


def heads_first(flat: Array, batch: int) -> Array:
    """The inverse of `tokens`."""
    return flat.reshape(batch, -1, *flat.shape[1:]).swapaxes(1, 2)


def four_dimensions(array: Array | None) -> Array | None:
    """A bias or mask with a dimension of heads."""
    return array if array is None or array.ndim == 4 else array[:, None]


@frozen
class Stretch:
    """One sequence."""

    row: int
    """Of the softmax statistics, and of a bias."""
    queries: slice
    keys: slice

    @property
    def length(self) -> int:
        return int(self.queries.stop - self.queries.start)


@frozen
class Batch:
    """All sequences of a call; queries, keys and values are `[batch, heads, rows, depth]`."""

    queries: Array
    keys: Array
    values: Array
    bias: Array | None
    """Broadcasts to `[batch, heads, queries, keys]`."""
    lengths: Mapping[str, Array]
    """`query lengths` and `key lengths`, and (packed) `query offsets` and `key offsets`, in elements."""
    config: AttentionConfig
    numerics: NumericsPolicy

    @classmethod
    def of(cls, arrays: Mapping[str, Array], config: AttentionConfig, numerics: NumericsPolicy) -> Batch:
        """The batch that a call's operands are, given by name."""
        queries, keys, values = config.canonical(arrays)
        if config.is_paged:
            keys, values = _paged(keys, arrays["key pages"]), _paged(values, arrays["value pages"])
        return cls(queries, keys, values, four_dimensions(arrays.get("bias")), arrays, config, numerics)

    def stretches(self) -> Iterator[Stretch]:
        """All sequences; those of length 0, and starts behind the last token, fill what there is room for."""
        sides = self._places("query", self.queries), self._places("key", self.keys)
        for row, (queries, keys) in enumerate(zip(*sides, strict=True)):
            yield Stretch(row, queries, keys)

    def _places(self, side: str, array: Array) -> Iterator[slice]:
        batch, heads, rows, depth = array.shape
        lengths, starts = [rows] * batch, [rows * row for row in range(batch)]
        if self.config.has_lengths:
            lengths = self.lengths[f"{side} lengths"].reshape(-1).tolist()
        if self.config.is_packed:
            starts = (self.lengths[f"{side} offsets"].reshape(-1) // (heads * depth)).tolist()
        # Of a packed sequence the keys may go on in the next row; queries have their statistics in one.
        most = batch * rows if self.config.is_packed and side == "key" else rows
        for start, length in zip(starts, lengths, strict=False):
            begin = min(max(0, start), batch * rows)
            yield slice(begin, min(begin + min(max(0, length), most), batch * rows))

    def sequences(self) -> Iterator[tuple[Stretch, softmax.Sequence]]:
        """Those that have queries and keys: what others give is 0, and −∞ as their statistics."""
        queries, keys, values = tokens(self.queries), tokens(self.keys), tokens(self.values)
        sequence = partial(softmax.Sequence, scale=self.config.scale, band=self.config.band, numerics=self.numerics)
        for stretch in self.stretches():
            here, there = stretch.queries, stretch.keys
            if here.start >= here.stop or there.start >= there.stop:
                continue
            bias = None
            if self.bias is not None:
                bias = self.bias[stretch.row if len(self.bias) > 1 else 0]
                bias = bias[:, : stretch.length, : there.stop - there.start]
            yield stretch, sequence(queries[here], keys[there], values[there], bias=bias)


def _paged(container: Array, table: Array) -> Array:
    """Keys or values `[blocks, heads, rows of a block, depth]`, gathered by `[batch, 1, blocks of a row, 1]`."""
    numbers = np.clip(table.reshape(table.shape[0], -1), 0, len(container) - 1)
    gathered = np.moveaxis(container[numbers], 2, 1)
    batch, heads, blocks, rows, depth = gathered.shape
    return np.asarray(gathered.reshape(batch, heads, blocks * rows, depth))


def product(lhs: Array, rhs: Array, letters: str, numerics: NumericsPolicy) -> Array:
    """The product of two stacks of matrices in the accumulation type; `letters` are as einsum's, e.g. `tk,sk->ts`."""
    numbers = dot_of(re.sub(r"\b(?=\w)", "bh", letters))
    return contract(lhs, rhs, numbers, element_type_of(element_type_of(lhs.dtype).accumulate), numerics=numerics)


def shared_heads(array: Array, heads: int) -> Array:
    """Keys or values with every head repeated for the query heads that share it."""
    return array if array.shape[1] == heads else np.repeat(array, heads // array.shape[1], 1)


def summed_heads(gradient: Array, heads: int) -> Array:
    """The gradient of `shared_heads`."""
    if gradient.shape[1] == heads:
        return gradient
    batch, shared, rows, depth = gradient.shape
    return np.asarray(gradient.reshape(batch, heads, shared // heads, rows, depth).sum(2))


def forward(arrays: Mapping[str, Array], config: AttentionConfig, numerics: NumericsPolicy) -> list[Array]:
    """The output and the probabilities (without a softmax, the scores), from operands by name."""
    queries, keys, values = config.canonical(arrays)
    heads = queries.shape[1]
    scores = product(queries, shared_heads(keys, heads), "tk,sk->ts", numerics)
    bias, mask = (four_dimensions(arrays.get(name)) for name in ("bias", "mask"))
    scores = scores * scores.dtype.type(config.scale)
    if bias is not None:
        scores = scores + widen(bias)
    if mask is not None:
        scores = scores * widen(mask)
    if config.kind.has_softmax:
        scores = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        scores = scores / scores.sum(-1, keepdims=True)
    return [product(scores, shared_heads(values, heads), "ts,sk->tk", numerics), scores]


def backward(arrays: Mapping[str, Array], config: AttentionConfig, numerics: NumericsPolicy) -> list[Array]:
    """Gradients of queries, keys, values and unscaled scores, and of a bias that is the same for the whole batch."""
    queries, keys, values = config.canonical(arrays)
    probabilities, gradient = config.canonical(arrays, "statistics", "output gradient")
    heads, groups = queries.shape[1], keys.shape[1]
    chosen, mask = widen(probabilities), four_dimensions(arrays.get("mask"))
    scores = product(gradient, shared_heads(values, heads), "tk,sk->ts", numerics)
    if config.kind.has_softmax:
        scores = chosen * (scores - (chosen * scores).sum(-1, keepdims=True))
    if mask is not None:
        scores = scores * widen(mask)
    bias = scores.sum(0, keepdims=True)
    scores = scores * scores.dtype.type(config.scale)
    return [
        product(scores, shared_heads(keys, heads), "ts,sk->tk", numerics),
        summed_heads(product(scores, queries, "ts,tk->sk", numerics), groups),
        summed_heads(product(chosen, widen(gradient), "ts,tk->sk", numerics), groups),
        scores,
        bias,
    ]
