"""Transformer Engine's fused attention, which runs on cuDNN: forward and backward.

A call has a batch of sequences of one length (BSHD), of which a padding mask uses a prefix, or rows into which
sequences of several lengths are packed (THD), each with an offset. Either way, each sequence is a range of the
flattened queries and a range of the flattened keys, a `Sequence`. Source: TransformerEngine,
jax/csrc/extensions/attention.cpp, jax/cpp_extensions/attention.py, common/include/transformer_engine/fused_attn.h.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from math import prod

import attrs
import numpy as np

from hloexec.core.dtypes import Kind, element_type_of
from hloexec.core.ir import ArrayShape, ArrayShapes, Instruction, Shape, TupleShape
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.errors import EvaluationError, ShapeError, UnsupportedError
from hloexec.ops.common import narrow, operand_shapes, widen
from hloexec.ops.library_calls import activations as softmax
from hloexec.ops.library_calls.configs import (
    Attributes,
    CallResult,
    in_declared_form,
    result_shapes,
    with_scratch,
    zeros,
)
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import custom_call
from hloexec.ops.relations import Axes, Relating, Requirement, Resizing, RunningSums, Starts, Value

_LAYOUTS = {5: "BS3HD", 7: "BSHD_BS2HD", 9: "BSHD_BSHD_BSHD", 10: "T3HD", 12: "THD_T2HD", 14: "THD_THD_THD"}
_MASKS = {
    0: "no mask",
    1: "padding",
    2: "causal",
    3: "padding and causal",
    4: "causal from the bottom right",
    5: "padding and causal from the bottom right",
}
_BIASES = {0: "none", 1: "before the scale", 2: "after the scale"}
_SOFTMAXES = {0: "vanilla", 1: "off by one", 2: "learnable"}


@frozen
class AttentionConfig:
    """What the attributes say about values; sizes are the operands'."""

    layout: str
    has_padding: bool
    band: softmax.Band
    bias: str
    softmax: str
    scale: float
    segments: int
    """Maximum number of sequences packed into a row."""
    has_softmax_offset: bool
    """Whether the offset is an operand (and its gradient a result): newer versions."""
    has_largest: bool
    """Whether there is a result for the largest score of each row: newer versions."""

    @property
    def is_ragged(self) -> bool:
        """Whether several sequences are packed into a row."""
        return self.layout.startswith("T")

    @property
    def packed(self) -> int:
        """How many of queries, keys and values lie in one array: 3 (all), 2 (keys and values) or 1."""
        return 3 if "3" in self.layout else 2 if "2" in self.layout else 1


def attention_config(backend_config: str | None) -> AttentionConfig:
    with Attributes(backend_config) as attributes:
        has_softmax_offset = "softmax_type" in attributes
        has_largest = "return_max_logit" in attributes
        if attributes.truth("return_max_logit", False):
            raise UnsupportedError("it asks for the largest score (return_max_logit)")
        dropout = attributes.number("dropout_probability")
        if dropout > 0:
            raise UnsupportedError(
                f"its attribute dropout_probability is {dropout}, and which elements cuDNN drops is not public"
            )
        mask = attributes.choice("mask_type", _MASKS)
        left = attributes.integer("window_size_left", -1)
        right = 0 if "causal" in mask else attributes.integer("window_size_right", -1)
        is_bottom_right = attributes.truth("bottom_right_diagonal", False) or "bottom right" in mask
        config = AttentionConfig(
            layout=attributes.choice("qkv_layout", _LAYOUTS),
            has_padding="padding" in mask,
            band=softmax.Band(None if left < 0 else left, None if right < 0 else right, is_bottom_right),
            bias=attributes.choice("bias_type", _BIASES),
            softmax=attributes.choice("softmax_type", _SOFTMAXES, 0),
            scale=attributes.number("scaling_factor"),
            segments=attributes.integer("max_segments_per_seq", 1),
            has_softmax_offset=has_softmax_offset,
            has_largest=has_largest,
        )
        if config.is_ragged and config.bias != "none":
            raise UnsupportedError(f"it has a bias (bias_type) and packed sequences ({config.layout})")
        # The operands' shapes say the same; training decides whether the sums of exponentials are written, and
        # determinism the order in which partial gradients are added.
        attributes.ignore("input_batch", "q_max_seqlen", "kv_max_seqlen", "attn_heads", "num_gqa_groups", "bias_batch")
        attributes.ignore("bias_heads", "head_dim", "qk_head_dim", "v_head_dim", "is_training", "deterministic")
        attributes.ignore("window_size_right")
    return config


@frozen
class Sizes:
    """The sizes of a call: batch dimensions, queries, keys, heads, groups, and lengths of query and value vectors."""

    batch: Dimensions
    queries: int
    keys: int
    heads: int
    groups: int
    depth: int
    value_depth: int

    @property
    def output(self) -> Dimensions:
        return (*self.batch, self.queries, self.heads, self.value_depth)


def attention_sizes(shapes: Sequence[Dimensions], config: AttentionConfig) -> Sizes:
    """The sizes that the dimensions of the operands q, k and v say; ShapeError where they do not fit the layout."""
    split = list(shapes[:3])
    if config.packed > 1:
        index = 3 - config.packed
        if len(split[index]) < 4 or split[index][-3] != config.packed:
            raise ShapeError(
                f"layout {config.layout} holds {config.packed} arrays in the third dimension from the end, but operand "
                f"{index} of the attention has dimensions {list(split[index])}"
            )
        split[index:] = [(*split[index][:-3], *split[index][-2:])] * (3 - index)
    q, k, v = split
    fits = (
        min(map(len, split)) >= 3
        and q[:-3] == k[:-3] == v[:-3]
        and k[:-1] == v[:-1]
        and q[-1] == k[-1]
        and min(*q[-2:], *k[-2:], v[-1]) > 0
        and q[-2] % k[-2] == 0
    )
    if not fits:
        raise ShapeError(
            "queries must be [batch..., s, heads, d], keys [batch..., t, groups, d], values [batch..., t, groups, e], "
            f"with heads a multiple of groups, but have dimensions {list(q)}, {list(k)} and {list(v)}"
        )
    return Sizes(q[:-3], q[-3], k[-3], q[-2], k[-2], q[-1], v[-1])


def _is_packed_by_tokens(dimensions: Dimensions, sizes: Sizes, config: AttentionConfig) -> bool:
    """Whether log-sum-exps of packed sequences are [batch..., s, heads, 1], as newer cuDNN has them."""
    return config.is_ragged and dimensions[-3:] == (sizes.queries, sizes.heads, 1)


def check_auxiliary(shape: ArrayShape, sizes: Sizes, config: AttentionConfig) -> None:
    """The softmax's auxiliary array holds log-sum-exps, or where a key has an element each, the probabilities."""
    dimensions = shape.dimensions
    last = {config.segments if config.is_ragged else 1, sizes.keys}
    by_head = (*sizes.batch, sizes.heads, sizes.queries)
    if not (_is_packed_by_tokens(dimensions, sizes, config) and dimensions[:-3] == sizes.batch) and not (
        dimensions[:-1] == by_head and dimensions[-1] in last
    ):
        raise ShapeError(
            f"the softmax's auxiliary array must be [batch..., heads, s, 1] (log-sum-exps) or [batch..., heads, s, t] "
            f"(probabilities), here {[*by_head, 1]} or {[*by_head, sizes.keys]}, but is {shape}"
        )


def holds_probabilities(shape: Dimensions, sizes: Sizes, config: AttentionConfig, is_f32: bool) -> bool:
    """The backend for at most 512 keys leaves probabilities in the operands' type, the other log-sum-exps in f32."""
    return not config.is_ragged and shape[-1] == sizes.keys and not (is_f32 and sizes.keys == 1)


class Batch:
    """The sequences of a call: which stretch of the flattened queries and keys each takes."""

    def __init__(self, operands: Sequence[Array], lengths: Sequence[Array], config: AttentionConfig) -> None:
        """`operands`: q, k, v and the bias; `lengths`: the running sums of query and key lengths, and their offsets."""
        self.config = config
        self.sizes = sizes = attention_sizes([operand.shape for operand in operands[:3]], config)
        rows = prod(sizes.batch)
        self.count = rows * (max(config.segments, 1) if config.is_ragged else 1)
        alone = 3 - config.packed
        q, k, v = operands[:3] if config.packed == 1 else (*operands[:alone], *np.moveaxis(operands[alone], -3, 0))
        self.queries = q.reshape(rows * sizes.queries, sizes.heads, sizes.depth)
        self.keys = k.reshape(rows * sizes.keys, sizes.groups, sizes.depth)
        self.values = v.reshape(rows * sizes.keys, sizes.groups, sizes.value_depth)
        bias = operands[3]
        self.bias = bias.reshape(prod(bias.shape[:-3]), *bias.shape[-3:]) if config.bias != "none" else None
        self.query_stretches = self._stretches(sizes.queries, rows, lengths[0], lengths[2])
        self.key_stretches = self._stretches(sizes.keys, rows, lengths[1], lengths[3])

    def _stretches(self, size: int, rows: int, sums: Array, offsets: Array) -> list[slice]:
        """Where each sequence lies: its row, as far as its length says where a mask or the packing asks for it."""
        is_ragged = self.config.is_ragged
        if not (is_ragged or self.config.has_padding):
            return [slice(row * size, (row + 1) * size) for row in range(rows)]
        if sums.size < self.count + 1 or (is_ragged and offsets.size < self.count):
            raise EvaluationError(
                f"the attention must have {self.count + 1} running sums of lengths, and as many offsets less one where "
                f"sequences are packed, but has {sums.size} and {offsets.size}"
            )
        lengths = np.diff(sums.reshape(-1)[: self.count + 1].astype(np.int64))
        starts = offsets.reshape(-1)[: self.count] if is_ragged else np.arange(rows) * size
        stretches = []
        for number, (start, length) in enumerate(zip(map(int, starts), map(int, lengths), strict=True)):
            stop = start + max(0, length)
            if length > size or (length > 0 and not 0 <= start <= stop <= rows * size):
                raise EvaluationError(
                    f"sequence {number} of the attention takes elements {start} to {stop}, but there are {rows} rows "
                    f"of {size}"
                )
            stretches.append(slice(start, stop))
        return stretches

    def sequences(self, sink: Array | None, numerics: NumericsPolicy) -> Iterator[tuple[int, softmax.Sequence]]:
        """Each sequence with its number; those without queries or keys, which give nothing, are left out."""
        bias = self._biases()
        sequence = partial(
            softmax.Sequence,
            scale=self.config.scale,
            band=self.config.band,
            bias_before_scale=self.config.bias == "before the scale",
            sink=sink,
            numerics=numerics,
        )
        for number, (here, there) in enumerate(zip(self.query_stretches, self.key_stretches, strict=True)):
            if here.start == here.stop or there.start == there.stop:
                continue
            part = None if bias is None else bias[number, :, : here.stop - here.start, : there.stop - there.start]
            yield number, sequence(self.queries[here], self.keys[there], self.values[there], bias=part)

    def _biases(self) -> Array | None:
        """[batch, heads, s, t], a view."""
        if self.bias is None:
            return None
        expected = (self.count, self.sizes.heads, self.sizes.queries, self.sizes.keys)
        try:
            return np.broadcast_to(self.bias, expected)
        except ValueError:
            raise EvaluationError(
                f"the bias of the attention must broadcast to {list(expected)}, but has dimensions "
                f"{list(self.bias.shape)}"
            ) from None

    def sums_by_sequence(self, auxiliary: Array) -> list[Array]:
        """Of log-sum-exps or probabilities in the form that the call has them: views [heads, s, ...] per sequence."""
        sizes = self.sizes
        if _is_packed_by_tokens(auxiliary.shape, sizes, self.config):
            flat = auxiliary.reshape(-1, sizes.heads)
            return [flat[stretch].T for stretch in self.query_stretches]
        # Older cuDNN takes each packed sequence for a row of its own, so [batch, heads, s, segments] holds those.
        last = 1 if self.config.is_ragged else auxiliary.shape[-1]
        by_head = auxiliary.reshape(self.count, sizes.heads, sizes.queries, last)
        return [
            by_head[number, :, : stretch.stop - stretch.start] for number, stretch in enumerate(self.query_stretches)
        ]


def _config(instruction: Instruction) -> AttentionConfig:
    config = attention_config(instruction.backend_config)
    shape = instruction.shape
    first = shape.elements[0] if isinstance(shape, TupleShape) and shape.elements else shape
    if isinstance(first, ArrayShape) and not (first.element_type.is_floating and first.element_type.bits >= 16):
        raise UnsupportedError(f"attention in {first.element_type} needs scales that the call does not have")
    return config


def _sink(config: AttentionConfig, offset: Array | None, heads: int) -> Array | None:
    """The score of the key that newer softmaxes add: 0, or learned."""
    if config.softmax == "vanilla":
        return None
    if config.softmax == "off by one" or offset is None:
        return np.zeros(heads, np.float32)
    if offset.size != heads:
        raise EvaluationError(f"the softmax's offset must have {heads} elements, but has {offset.size}")
    return offset.reshape(heads)


def _infer_sizes(operands: Sequence[Shape], config: AttentionConfig, count: int) -> tuple[list[ArrayShape], Sizes]:
    arrays = operand_shapes(operands, "the attention")
    if len(arrays) < count:
        raise ShapeError(f"the attention must have at least {count} operands by its attributes, but has {len(arrays)}")
    return arrays, attention_sizes([array.dimensions for array in arrays], config)


def _first_sums(shapes: Sequence[ArrayShape], config: AttentionConfig) -> int:
    """The number of forward's operand of the running sums of query lengths: after the seed or, in versions 1.x, before
    offsets and seed."""
    place = 4 + config.has_softmax_offset
    is_older = (
        len(shapes) == place + 5
        and shapes[-1].element_type.kind is Kind.UNSIGNED is not shapes[place].element_type.kind
    )
    return place if is_older else place + 1


def seed_number(shapes: Sequence[ArrayShape], config: AttentionConfig) -> int:
    """The number of forward's operand that is the seed."""
    place = 4 + config.has_softmax_offset
    return place if _first_sums(shapes, config) > place else place + 4


@custom_call("te_fused_attn_forward_ffi", config=_config, is_reproducible=True)
class FusedAttentionForward:
    """softmax(scale · q · kᵀ + bias, hidden keys left out) · v, computed in f32 and rounded once

    Operands: q, k, v by the layout, bias, softmax offset (where there is a `softmax_type`), seed, running sums of query
    and key lengths, offsets of queries and keys, and four that only say how the lengths came about; versions 1.x have
    the seed after the offsets, and nothing more. Results: the output
    [batch..., s, heads, e]; log-sum-exps [batch..., heads, s, 1] in f32 (or probabilities [batch..., heads, s, t] where
    declared so); where there is a `return_max_logit`, an empty array; the state of the random numbers, seed and offset
    0; a workspace. What lies outside of a sequence gives 0, and −∞ as its log-sum-exp. Source: TransformerEngine,
    jax/csrc/extensions/attention.cpp (FusedAttnForwardFFI).
    """

    @staticmethod
    def relate(use: Relating) -> None:
        _relate_sequences(use, use.operands[3:])
        _relate_lengths(use, _first_sums([operand.array for operand in use.operands], use.config))
        results, state = use.result.parts, 2 + use.config.has_largest
        _relate_output(use, results[0].axes)
        _relate_auxiliary(use, results[1].axes)
        use.keep(results[state].axes, _STATE)

    @staticmethod
    def requires(*, operand_shapes: ArrayShapes, config: AttentionConfig) -> Iterator[Requirement]:
        return _required_lengths(operand_shapes, config, _first_sums(operand_shapes, config))

    @staticmethod
    def resize(change: Resizing) -> Resizing:
        """The call whose config has the new sizes, which it repeats."""
        config = change.backend_config
        if config is None:
            return change
        packed = attention_config(config)
        before, after = (
            attention_sizes([shape.dimensions for shape in operand_shapes(shapes, "the attention")], packed)
            for shapes in (change.operands, change.new_operands)
        )
        for name, size in _SIZES.items():
            old, new = (getattr(sizes, size) for sizes in (before, after))
            old, new = (prod(old), prod(new)) if size == "batch" else (old, new)
            config = re.sub(rf"(\b{name} = ){old}\b", rf"\g<1>{new}", config)
        return attrs.evolve(change, backend_config=config)

    @staticmethod
    def infer(*operands: Shape, config: AttentionConfig, shape: Shape) -> Shape:
        arrays, sizes = _infer_sizes(operands, config, 9 + config.has_softmax_offset)
        check_auxiliary(result_shapes(shape, "the attention", 4 + config.has_largest)[1], sizes, config)
        return in_declared_form([ArrayShape(arrays[0].element_type, sizes.output)], shape)

    @staticmethod
    def evaluate(
        *operands: Array,
        config: AttentionConfig,
        shape: Shape,
        operand_shapes: ArrayShapes,
        numerics: NumericsPolicy,
    ) -> CallResult:
        declared = result_shapes(shape, "the attention")
        offset = operands[4] if config.has_softmax_offset else None
        first = _first_sums(operand_shapes, config)
        seed = operands[seed_number(operand_shapes, config)]
        batch = Batch(operands, operands[first : first + 4], config)
        sizes = batch.sizes
        output = np.zeros(
            (prod(sizes.batch) * sizes.queries, sizes.heads, sizes.value_depth), declared[0].element_type.storage
        )
        auxiliary_type = declared[1].element_type
        has_probabilities = holds_probabilities(declared[1].dimensions, sizes, config, auxiliary_type.name == "f32")
        auxiliary = np.full(declared[1].dimensions, 0 if has_probabilities else -np.inf, auxiliary_type.compute)
        places = batch.sums_by_sequence(auxiliary)
        for number, sequence in batch.sequences(_sink(config, offset, sizes.heads), numerics):
            value, weights = softmax.attention(sequence, with_probabilities=has_probabilities)
            output[batch.query_stretches[number]] = narrow(value, declared[0].element_type)
            place = places[number]
            if weights.probabilities is not None:
                place[..., : len(sequence.keys)] = weights.probabilities
            else:
                place[...] = weights.log_sum_exp.reshape(place.shape)
        results = zeros(declared)
        results[:2] = output.reshape(declared[0].dimensions), narrow(auxiliary, auxiliary_type)
        # The seed's 64 bits, and 0: how many random numbers the process used before, which matters with dropout alone.
        state = results[2 + config.has_largest].reshape(-1)
        count = min(2, seed.size, state.size)
        state[:count] = seed.reshape(-1)[:count]
        return tuple(results)


@custom_call("te_fused_attn_backward_ffi", config=_config, is_reproducible=True)
class FusedAttentionBackward:
    """The gradients of attention with respect to q, k, v, the bias and the softmax's offset

    Operands: q, k, v, bias, softmax offset (where there is a `softmax_type`), then what forward left (log-sum-exps or
    probabilities, state of the random numbers, output), the output's gradient, and lengths and offsets as in forward.
    The given log-sum-exps and output are used, not computed again. Results: gradients of the shapes of q, k, v, bias
    and (where it is an operand) the offset; a workspace. They are computed in f32 and rounded once; outside of
    sequences they are 0. Source: TransformerEngine, jax/csrc/extensions/attention.cpp (FusedAttnBackwardFFI).
    """

    @staticmethod
    def relate(use: Relating) -> None:
        count = 4 + use.config.has_softmax_offset
        auxiliary, state, output, gradient, *lengths = use.operands[count:]
        _relate_sequences(use, [*use.operands[3:count], *lengths])
        _relate_lengths(use, count + 4)
        _relate_auxiliary(use, auxiliary.axes)
        use.keep(state.axes, _STATE)
        for value in (output, gradient):
            _relate_output(use, value.axes)
        for operand, result in zip(use.operands[:count], use.result.parts, strict=False):
            use.same(operand.axes, result.axes)

    @staticmethod
    def requires(*, operand_shapes: ArrayShapes, config: AttentionConfig) -> Iterator[Requirement]:
        return _required_lengths(operand_shapes, config, 8 + config.has_softmax_offset)

    resize = staticmethod(FusedAttentionForward.resize)

    @staticmethod
    def infer(*operands: Shape, config: AttentionConfig, shape: Shape) -> Shape:
        count = 4 + config.has_softmax_offset
        arrays, sizes = _infer_sizes(operands, config, count + 8)
        check_auxiliary(arrays[count], sizes, config)
        for name, array in zip(("output", "output's gradient"), arrays[count + 2 : count + 4], strict=True):
            if array.dimensions != sizes.output:
                raise ShapeError(f"the attention's {name} must have dimensions {list(sizes.output)}, but is {array}")
        result_shapes(shape, "the attention's gradient", count + 1)
        return in_declared_form(arrays[:count], shape)

    @staticmethod
    def evaluate(*operands: Array, config: AttentionConfig, shape: Shape, numerics: NumericsPolicy) -> CallResult:
        count = 4 + config.has_softmax_offset
        declared = result_shapes(shape, "the attention's gradient")
        auxiliary, _, output, output_gradient, *lengths = operands[count:]
        batch = Batch(operands, lengths[:4], config)
        sizes = batch.sizes
        flat = [array.reshape(-1, sizes.heads, sizes.value_depth) for array in (output, output_gradient)]
        has_probabilities = holds_probabilities(
            auxiliary.shape, sizes, config, element_type_of(auxiliary.dtype).name == "f32"
        )
        dtype = softmax.working_type(operands[0], numerics)
        queries, keys, values = (np.zeros(array.shape, dtype) for array in (batch.queries, batch.keys, batch.values))
        bias = None if batch.bias is None else np.zeros(batch.bias.shape, dtype)
        sink = _sink(config, operands[4] if config.has_softmax_offset else None, sizes.heads)
        sink_gradient = np.zeros(sizes.heads, dtype)
        places = batch.sums_by_sequence(auxiliary)
        for number, sequence in batch.sequences(sink, numerics):
            here, there = batch.query_stretches[number], batch.key_stretches[number]
            left = widen(places[number])
            if has_probabilities:
                weights = softmax.Weights(np.zeros(left.shape[:2], dtype), left[..., : len(sequence.keys)])
            else:
                weights = softmax.Weights(left.reshape(left.shape[:2]).astype(dtype, copy=False), None)
            sequence_gradients = softmax.attention_gradients(sequence, weights, flat[0][here], flat[1][here])
            queries[here], keys[there], values[there] = (
                sequence_gradients.queries,
                sequence_gradients.keys,
                sequence_gradients.values,
            )
            if bias is not None and sequence_gradients.bias is not None:
                softmax.add_summed(bias[number if len(bias) > 1 else 0], sequence_gradients.bias)
            if sequence_gradients.sink is not None:
                sink_gradient += sequence_gradients.sink
        results = _packed([queries, keys, values], operands, config.packed)
        # cuDNN has the gradient of a learned offset alone.
        results.append(np.zeros(operands[3].shape, dtype) if bias is None else bias)
        if config.has_softmax_offset:
            results.append(sink_gradient if config.softmax == "learnable" else np.zeros(operands[4].shape, dtype))
        gradients = [
            narrow(result, leaf.element_type).reshape(leaf.dimensions)
            for result, leaf in zip(results, declared[:count], strict=True)
        ]
        return with_scratch(gradients, shape)


def _packed(gradients: list[Array], operands: Sequence[Array], packed: int) -> list[Array]:
    """The gradients of q, k and v, the last `packed` of them in one array; operands that those stand for are 0."""
    if packed == 1:
        return gradients
    first = 3 - packed
    rest = [np.zeros(array.shape, gradients[0].dtype) for array in operands[first + 1 : 3]]
    return [*gradients[:first], np.stack(gradients[first:], 1), *rest]


_STATE = "it is the state of a random number generator"
_SIZES = {
    "input_batch": "batch",
    "q_max_seqlen": "queries",
    "attn_heads": "heads",
    "qk_head_dim": "depth",
    "head_dim": "depth",
    "kv_max_seqlen": "keys",
    "num_gqa_groups": "groups",
    "v_head_dim": "value_depth",
}
"""The size that each of these attributes repeats."""


def _sequence_axes(use: Relating) -> tuple[Axes, Axes, Axes]:
    """The dimensions of q, k and v, also where these lie in one array."""
    axes, packed = [operand.axes for operand in use.operands[:3]], use.config.packed
    if packed > 1:
        whole = axes[3 - packed]
        axes[3 - packed :] = [(*whole[:-3], *whole[-2:])] * packed
    query, key, value = axes[:3]
    return query, key, value


def _relate_sequences(use: Relating, others: Sequence[Value]) -> None:
    """How q, k and v correspond. How many they are, seeds and running sums of lengths stay."""
    query, key, value = _sequence_axes(use)
    use.same(query[:-3], key[:-3])
    use.same(key[:-1], value[:-1])
    use.same(query[-1:], key[-1:])
    use.multiple(query[-2], key[-2])
    if use.config.packed > 1:
        use.keep(use.operands[3 - use.config.packed].axes[-3:-2], "it holds so many arrays")
    for operand in use.operands[4 - use.config.packed : 3]:
        use.keep(operand.axes, "the library call reads so many of them")
    if use.config.bias != "none":
        bias, *others = others
        batch = query[-4:-3] or query[:0]
        for ours, theirs in zip(
            bias.axes[-4:], (*batch, query[-2], query[-3], key[-3])[-len(bias.axes) :], strict=False
        ):
            if use.size(ours) == use.size(theirs):
                use.same([ours], [theirs])
            elif use.size(ours) > 1:
                use.keep((ours, theirs), "the bias is neither broadcast along it nor as long as the scores")
    for other in others:
        use.keep(other.axes, "the library call reads so many of them")


def _relate_lengths(use: Relating, first: int) -> None:
    """Running sums of lengths, the operand of this number for queries and the next for keys, count along sequences, and
    so do the offsets after them."""
    query, key, _ = _sequence_axes(use)
    for number, axes in enumerate((query, key), first):
        use.positions(number, axes[-3:-2])
        if use.config.is_ragged:
            use.positions(number + 2, axes[-3:-2])


def _required_lengths(shapes: ArrayShapes, config: AttentionConfig, first: int) -> Iterator[Requirement]:
    """What the running sums of lengths have to be, from the operand of this number on, and the offsets after these."""
    if not (config.is_ragged or config.has_padding):
        return
    sizes = attention_sizes([shape.dimensions for shape in shapes[:3]], config)
    rows = prod(sizes.batch)
    count = rows * (max(config.segments, 1) if config.is_ragged else 1)
    for number, size in enumerate((sizes.queries, sizes.keys), first):
        yield RunningSums(number, count, size)
        if config.is_ragged:
            yield Starts(number + 2, number, are_sums=True, count=count, room=rows * size)


def _relate_output(use: Relating, axes: Axes) -> None:
    """[batch..., s, heads, e]"""
    query, _, value = _sequence_axes(use)
    if len(axes) == len(query) == len(value):
        use.same((*query[:-1], value[-1]), axes)
    else:
        use.keep_all("its output does not have the usual dimensions")


def _relate_auxiliary(use: Relating, axes: Axes) -> None:
    """[batch..., heads, s, 1] or [batch..., heads, s, t], of packed sequences as many as there are in a row, or
    [batch..., s, heads, 1]."""
    query, key, _ = _sequence_axes(use)
    if len(axes) != len(query):
        use.keep_all("its log-sum-exps do not have the usual dimensions")
        return
    sizes = [use.size(axis) for axis in axes[-3:]]
    is_by_tokens = use.config.is_ragged and sizes == [use.size(query[-3]), use.size(query[-2]), 1]
    rows, heads = axes[-3:-1] if is_by_tokens else axes[-3:-1][::-1]
    use.same(query[:-3], axes[:-3])
    use.same(query[-3:-1], (rows, heads))
    if use.config.is_ragged:
        use.keep(axes[-1:], "it has one for each sequence of a row")
    elif use.size(axes[-1]) > 1:
        use.same(key[-3:-2], axes[-1:])
