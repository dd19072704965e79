"""The operations: one entry per opcode, one package or module per family.

`MODULES` says which module holds the entries of which opcodes, so that the registry can import a module when one of its
opcodes is first asked for: most programs use a few families only.
"""

__all__ = ["FORMER", "LATEST", "LIBRARIES", "MODULES"]

MODULES = {
    "elementwise.functions": (
        "real imag complex acos acosh asin asinh atanh cosine cosh exponential exp2 exponential-minus-one log log2 "
        "log-plus-one logistic rsqrt sine sinh sqrt tan tanh cbrt erf ceil floor round-nearest-afz round-nearest-even "
        "abs negate sign is-finite"
    ),
    "elementwise.arithmetic": (
        "and or xor not shift-left shift-right-arithmetic shift-right-logical mulhi popcnt count-leading-zeros add "
        "subtract multiply divide remainder power atan2 maximum minimum"
    ),
    "collective.groups": (
        "all-gather all-gather-start all-gather-done all-reduce all-reduce-start all-reduce-done collective-reduce "
        "reduce-scatter"
    ),
    "collective.sending": (
        "all-to-all ragged-all-to-all collective-broadcast collective-permute collective-permute-start "
        "collective-permute-done partition-id replica-id"
    ),
    "elementwise.selection": "convert reduce-precision stochastic-convert map compare clamp select",
    "contraction.dot": "dot",
    "contraction.blocked_dot": "ragged-dot scaled-dot",
    "control.asynchronous": (
        "async-start async-update async-done copy-start copy-done send send-done recv recv-done infeed outfeed"
    ),
    "control.flow": (
        "parameter constant tuple get-tuple-element call fusion while conditional custom-call domain opt-barrier "
        "add-dependency after-all"
    ),
    "convolution.convolution": "convolution",
    "indexing.dynamic_slice": "dynamic-slice dynamic-update-slice",
    "indexing.gather": "gather",
    "sorting": "sort topk",
    "indexing.scatter": "scatter",
    "linalg": "fft cholesky triangular-solve",
    "movement.assembly": "concatenate pad iota shuffle",
    "movement.strided": "broadcast reshape transpose slice reverse copy",
    "movement.bitcast": "bitcast bitcast-convert",
    "movement.dynamic_shapes": "get-dimension-size set-dimension-size dynamic-reshape",
    "random": "rng-bit-generator rng-get-and-update-state rng",
    "reduction.batch_norm": "batch-norm-training batch-norm-inference batch-norm-grad",
    "reduction.reduce": "reduce",
    "reduction.reduce_window": "reduce-window",
    "reduction.scan": "scan",
    "reduction.select_and_scatter": "select-and-scatter",
}
"""The modules of this package that register opcodes, and which; an opcode that is not listed is never found."""

LIBRARIES = "library_calls.libraries"
"""The module that imports all that register library calls: most programs have none."""

FORMER: dict[str, tuple[str, dict[str, str]]] = {
    "equal-to": ("compare", {"direction": "EQ"}),
    "not-equal-to": ("compare", {"direction": "NE"}),
    "greater-than": ("compare", {"direction": "GT"}),
    "greater-than-or-equal-to": ("compare", {"direction": "GE"}),
    "less-than": ("compare", {"direction": "LT"}),
    "less-than-or-equal-to": ("compare", {"direction": "LE"}),
    "generate-token": ("after-all", {}),
}
"""Opcodes of XLA before 2020: those that stand for them since, with the attributes that say what the old name said."""

LATEST = frozenset({"collective-reduce", "exp2", "log2", "shuffle"})
"""Opcodes that XLA has had since jaxlib 0.12: earlier ones do not read them."""
