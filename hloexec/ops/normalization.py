"""Batch normalization."""

from __future__ import annotations

import attrs

from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.registry import opcode

__all__ = ["BatchNormAttributes"]


@attrs.frozen
class BatchNormAttributes:
    epsilon: float = attribute(Grammar.FLOAT)
    feature_index: int = attribute(Grammar.INT)


@opcode("batch-norm-training", operands=3, attributes=BatchNormAttributes)
class BatchNormTraining:
    """(normalized, mean, variance) of a batch (XLA: BatchNormTraining)."""


@opcode("batch-norm-inference", operands=5, attributes=BatchNormAttributes)
class BatchNormInference:
    """scale * (operand - mean) / sqrt(variance + epsilon) + offset (XLA: BatchNormInference)."""


@opcode("batch-norm-grad", operands=5, attributes=BatchNormAttributes)
class BatchNormGrad:
    """Gradients of operand, scale and offset (XLA: BatchNormGrad)."""
