"""Targets and configs of cuDNN's attention: which operands a call has, and the role of each dimension.

The dimension numbers of the inner matrix products give the layouts of queries, keys and values; all are converted to
[batch, heads, rows, columns]. Products with one batch dimension get a heads dimension of size 1. Source: XLA,
CudnnfMHABackendConfig; JAX, fused_attention_stablehlo.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from hloexec.core.ir import ArrayShape, Instruction
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import UnsupportedError
from hloexec.ops.common import require
from hloexec.ops.library_calls.attention import Band
from hloexec.ops.library_calls.backend_config import Fields, read_fields

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

    batch: tuple[int, ...]
    rows: int
    columns: int

    @property
    def order(self) -> tuple[int, ...]:
        return (*self.batch, self.rows, self.columns)

    def shape(self, array: ArrayShape, what: str) -> tuple[int, int, int, int]:
        """Batch, heads, rows and columns of an operand's shape."""
        require(array.rank == len(self.order), f"{what} must have {len(self.order)} dimensions, but is {array}")
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
