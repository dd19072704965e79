"""What the backend_config of a matrix product says: XLA's GemmBackendConfig, with cuBLASLt's epilogues."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from hloexec.core.structs import frozen
from hloexec.errors import UnsupportedError
from hloexec.ops.attributes import PRECISIONS
from hloexec.ops.contraction.algorithms import DOT_ALGORITHMS
from hloexec.ops.contraction.dot import DotAttributes
from hloexec.ops.library_calls.activations import ACTIVATIONS, Activation
from hloexec.ops.library_calls.backend_config import Fields, backend_config_field, enumerator, known_fields


@frozen
class Epilogue:
    """What is done to a product before it is rounded."""

    has_bias: bool = False
    activation: Activation | None = None
    has_auxiliary: bool = False
    """Whether what the activation was applied to is a second result."""


# XLA has an auxiliary result with GELU alone; cuBLASLt's of RELU would be a mask of bits.
EPILOGUES = {"DEFAULT": Epilogue(), "BIAS": Epilogue(has_bias=True)} | {
    f"{prefix}{name}{suffix}": Epilogue(bool(prefix), activation, bool(suffix))
    for prefix in ("", "BIAS_")
    for name, activation in ACTIVATIONS.items()
    for suffix in (("", "_AUX") if name == "GELU" else ("",))
}

_NUMBERED_EPILOGUES = "DEFAULT BIAS RELU BIAS_RELU GELU GELU_AUX BIAS_GELU BIAS_GELU_AUX".split()

GEMM_FIELDS = (
    "alpha_real alpha_imag beta dot_dimension_numbers precision_config epilogue damax_output scale_mode "
    # Without influence: which of several kernels runs, in how much memory, at what cost; what the operands' shapes say
    # already; and whether XLA made the call for a gradient.
    "selected_algorithm autotune_workspace_size reification_cost batch_size lhs_stride rhs_stride is_fp8 grad_x grad_y"
).split()


@frozen
class GemmConfig:
    """What a `gemm_backend_config` says about values."""

    dimension_numbers: DotAttributes
    alpha: complex
    beta: float
    epilogue: Epilogue
    has_largest: bool = False
    """Whether the largest magnitude of the result, before its scale, is a result, too."""
    scale_mode: int = 0
    """What operands of eight bits are scaled by: 1, a number for each tensor; 2, one for each block of it."""

    @property
    def operand_count(self) -> int:
        """lhs and rhs, then the addend where `beta` is not 0, then the bias."""
        return 2 + (self.beta != 0) + self.epilogue.has_bias

    @property
    def is_plain(self) -> bool:
        """Whether the result is the product, and nothing else."""
        return self.alpha == 1 and self.beta == 0 and self.epilogue == Epilogue()


@lru_cache(maxsize=1024)
def gemm_config(backend_config: str | None) -> GemmConfig:
    """Read either spelling of the config; UnsupportedError says what cannot be done."""
    found = backend_config_field(backend_config, "gemm_backend_config")
    return read_gemm_config(known_fields(found, GEMM_FIELDS, "gemm_backend_config"))


def read_gemm_config(fields: Fields) -> GemmConfig:
    """Read a GemmBackendConfig; UnsupportedError says what cannot be done."""
    for name in ("alpha_real", "dot_dimension_numbers"):
        if name not in fields.values:
            raise UnsupportedError(f"its backend_config lacks {name}")
    epilogue = enumerator(fields.values.get("epilogue", 0), _NUMBERED_EPILOGUES)
    if epilogue not in EPILOGUES:
        raise UnsupportedError(f"it has epilogue {epilogue!r}; known are {', '.join(EPILOGUES)}")
    numbers, precision = fields.values["dot_dimension_numbers"], fields.values.get("precision_config", {})
    if not isinstance(numbers, dict) or not isinstance(precision, dict):
        raise UnsupportedError("dot_dimension_numbers and precision_config of its backend_config must be objects")
    return GemmConfig(
        dimension_numbers=_dimension_numbers(Fields(numbers), precision),
        alpha=complex(fields.number("alpha_real"), fields.number("alpha_imag")),
        beta=fields.number("beta"),
        epilogue=EPILOGUES[epilogue],
        has_largest=bool(fields.values.get("damax_output", False)),
        scale_mode=int(fields.word("scale_mode", ("0", "1", "2"))),
    )


def _dimension_numbers(numbers: Fields, precision: Mapping[str, object]) -> DotAttributes:
    algorithm = enumerator(precision.get("algorithm", 0), DOT_ALGORITHMS).removeprefix("ALG_").lower()
    if algorithm not in DOT_ALGORITHMS:
        raise UnsupportedError(f"it has the algorithm {algorithm}; known are {', '.join(DOT_ALGORITHMS)}")
    words = precision.get("operand_precision") or []
    if not isinstance(words, list):
        raise UnsupportedError("operand_precision of its backend_config must be a list of words")
    operand_precision = tuple(enumerator(word, PRECISIONS).lower() for word in words)
    return DotAttributes(
        lhs_batch_dims=numbers.whole_list("lhs_batch_dimensions"),
        lhs_contracting_dims=numbers.whole_list("lhs_contracting_dimensions"),
        rhs_batch_dims=numbers.whole_list("rhs_batch_dimensions"),
        rhs_contracting_dims=numbers.whole_list("rhs_contracting_dimensions"),
        operand_precision=operand_precision if set(operand_precision) - {"default"} else (),
        algorithm=algorithm,
    )
