"""Which element types each opcode takes, found by asking its shape rule with tiny programs.

The registry has no list of them: an opcode's rule says what it refuses, and a list beside it could only disagree.
"""

from __future__ import annotations

from hloexec.dtypes import ELEMENT_TYPES, ElementType
from hloexec.errors import HloError
from hloexec.ir import ArrayShape
from hloexec.ops.registry import Opcode

__all__ = ["accepted_element_types"]

_REDUCER = "c { x = T[] parameter(0) y = T[] parameter(1) ROOT r = T[] copy(y) }"
_CHOICE = "s { x = T[] parameter(0) y = T[] parameter(1) ROOT r = pred[] compare(x, y), direction=GE }"
_ORDER = _CHOICE.replace("s {", "c {", 1)
_STEP = "c { x = T[2] parameter(0) y = T[2] parameter(1) ROOT r = (T[2], T[2]) tuple(x, y) }"
_NORMALIZED = ("T[2,3]", *["T[3]"] * 4)

_PROGRAMS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "bitcast": ("T[2] bitcast(a0)", ("T[2]",), ""),
    "broadcast": ("T[3,2] broadcast(a0), dimensions={1}", ("T[2]",), ""),
    "concatenate": ("T[4] concatenate(a0, a1), dimensions={0}", ("T[2]", "T[2]"), ""),
    "copy": ("T[2] copy(a0)", ("T[2]",), ""),
    "iota": ("T[2] iota(), iota_dimension=0", (), ""),
    "pad": ("T[4] pad(a0, a1), padding=1_1", ("T[2]", "T[]"), ""),
    "reshape": ("T[2,1] reshape(a0)", ("T[2]",), ""),
    "reverse": ("T[2] reverse(a0), dimensions={0}", ("T[2]",), ""),
    "slice": ("T[1] slice(a0), slice={[0:1]}", ("T[2]",), ""),
    "transpose": ("T[3,2] transpose(a0), dimensions={1,0}", ("T[2,3]",), ""),
    "get-dimension-size": ("s32[] get-dimension-size(a0), dimensions={0}", ("T[2]",), ""),
    "set-dimension-size": ("T[<=2] set-dimension-size(a0, a1), dimensions={0}", ("T[2]", "s32[]"), ""),
    "dynamic-reshape": ("T[2] dynamic-reshape(a0, a1)", ("T[2]", "s32[]"), ""),
    "dynamic-slice": ("T[1] dynamic-slice(a0, a1), dynamic_slice_sizes={1}", ("T[2]", "s32[]"), ""),
    "dynamic-update-slice": ("T[2] dynamic-update-slice(a0, a1, a2)", ("T[2]", "T[1]", "s32[]"), ""),
    "gather": (
        "T[2] gather(a0, a1), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
        "slice_sizes={1}",
        ("T[3]", "s32[2,1]"),
        "",
    ),
    "scatter": (
        "T[3] scatter(a0, a1, a2), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
        "index_vector_dim=1, to_apply=c",
        ("T[3]", "s32[2,1]", "T[2]"),
        _REDUCER,
    ),
    "dot": ("T[2,2] dot(a0, a1), lhs_contracting_dims={1}, rhs_contracting_dims={0}", ("T[2,3]", "T[3,2]"), ""),
    "ragged-dot": (
        "T[2,2] ragged-dot(a0, a1, a2), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, "
        "rhs_group_dims={0}",
        ("T[2,3]", "T[1,3,2]", "s32[1]"),
        "",
    ),
    "scaled-dot": (
        "f32[2,2] scaled-dot(a0, a1, a2, a3), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        ("T[2,4]", "T[4,2]", "f8e8m0fnu[2,2]", "f8e8m0fnu[2,2]"),
        "",
    ),
    "convolution": ("T[2,4] convolution(a0, a1), dim_labels=bf_io->bf", ("T[2,3]", "T[3,4]"), ""),
    "reduce": ("T[] reduce(a0, a1), dimensions={0}, to_apply=c", ("T[2]", "T[]"), _REDUCER),
    "reduce-window": ("T[2] reduce-window(a0, a1), window={size=1}, to_apply=c", ("T[2]", "T[]"), _REDUCER),
    "map": ("T[2] map(a0, a1), dimensions={0}, to_apply=c", ("T[2]", "T[2]"), _REDUCER),
    "scan": ("(T[3,2], T[2]) scan(a0, a1), dimensions={0}, num_carries=1, to_apply=c", ("T[3,2]", "T[2]"), _STEP),
    "select-and-scatter": (
        "T[2] select-and-scatter(a0, a1, a2), window={size=1}, select=s, scatter=c",
        ("T[2]", "T[2]", "T[]"),
        f"{_CHOICE}\n{_REDUCER}",
    ),
    "sort": ("T[2] sort(a0), dimensions={0}, to_apply=c", ("T[2]",), _ORDER),
    "topk": ("(T[2,1], s32[2,1]) topk(a0), k=1", ("T[2,3]",), ""),
    "cholesky": ("T[2,2] cholesky(a0), lower=true", ("T[2,2]",), ""),
    "triangular-solve": (
        "T[2,1] triangular-solve(a0, a1), left_side=true, transpose_a=NO_TRANSPOSE", ("T[2,2]", "T[2,1]"), ""
    ),
    "batch-norm-training": (
        "(T[2,3], T[3], T[3]) batch-norm-training(a0, a1, a2), epsilon=0, feature_index=1", _NORMALIZED[:3], ""
    ),
    "batch-norm-inference": (
        "T[2,3] batch-norm-inference(a0, a1, a2, a3, a4), epsilon=0, feature_index=1", _NORMALIZED, ""
    ),
    "batch-norm-grad": (
        "(T[2,3], T[3], T[3]) batch-norm-grad(a0, a1, a2, a3, a4), epsilon=0, feature_index=1",
        (*_NORMALIZED[:4], "T[2,3]"),
        "",
    ),
    "rng": ("T[2] rng(a0, a1), distribution=rng_uniform", ("T[]", "T[]"), ""),
    "rng-bit-generator": ("(u64[2], T[2]) rng-bit-generator(a0), algorithm=rng_default", ("u64[2]",), ""),
    "rng-get-and-update-state": ("T[2] rng-get-and-update-state(), delta=1", (), ""),
    "compare": ("pred[2] compare(a0, a1), direction=EQ", ("T[2]", "T[2]"), ""),
    "reduce-precision": ("T[2] reduce-precision(a0), exponent_bits=5, mantissa_bits=2", ("T[2]",), ""),
    "select": ("T[2] select(a0, a1, a2)", ("pred[2]", "T[2]", "T[2]"), ""),
    "stochastic-convert": ("s8[2] stochastic-convert(a0, a1)", ("T[2]", "U[2]"), ""),
    "bitcast-convert": ("T[2] bitcast-convert(a0)", ("T[2]",), ""),
    "convert": ("T[2] convert(a0)", ("T[2]",), ""),
}  # fmt: skip
"""Of opcodes whose rules need attributes or several shapes: the instruction, its operands, what it calls."""


def accepted_element_types(entry: Opcode) -> tuple[ElementType, ...] | None:
    """The element types of an opcode's first operand (of its result, where it has no such operand) that verify.

    None for opcodes that have no rule about them: control flow, tuples, and what moves values between devices.
    """
    arrays = [element_type for element_type in ELEMENT_TYPES.values() if element_type.is_array]
    if entry.name in _PROGRAMS:
        return tuple(element_type for element_type in arrays if _verifies(*_PROGRAMS[entry.name], element_type))
    if entry.name == "fft":
        return tuple(ELEMENT_TYPES[name] for name in ("f32", "f64", "c64", "c128"))
    if not entry.is_elementwise or entry.infer is None:
        return None
    return tuple(element_type for element_type in arrays if _infers(entry, element_type))


def _infers(entry: Opcode, element_type: ElementType) -> bool:
    assert entry.infer is not None
    try:
        entry.infer(*[ArrayShape(element_type, (2,))] * entry.minimum_operands)
    except HloError:
        return False
    return True


def _verifies(instruction: str, operands: tuple[str, ...], computations: str, element_type: ElementType) -> bool:
    from hloexec.text import parse
    from hloexec.verifier import verify

    lines = [f"a{number} = {shape} parameter({number})" for number, shape in enumerate(operands)]
    body = " ".join([*lines, f"ROOT r = {instruction}"])
    text = f"HloModule m\n{computations}\nENTRY e {{ {body} }}\n"
    bits = f"u{element_type.bits}"
    text = text.replace("T[", f"{element_type.name}[").replace("U[", f"{bits if bits in ELEMENT_TYPES else 'u64'}[")
    try:
        verify(parse(text))
    except HloError:
        return False
    return True
