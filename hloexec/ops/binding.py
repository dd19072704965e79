"""Binding: the entry of an instruction becomes a kernel, for attributes, shapes and a numerics policy.

A kernel is a function from one array (or token) per operand to an array, or a (nested) tuple of them. Nothing of what
it was made of is looked at again when it runs. It is the entry's definition (`evaluate`), or a fast variant of that
with the same bits (`bind`), which is chosen here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hloexec.core.ir import ArrayShape, Instruction, Shape, flat_shapes, parts_of
from hloexec.core.structs import define
from hloexec.ops.attributes import computation_names
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.registry import Callee, Entry, Role, Rule

Kernel = Callable[..., Any]
"""It may have more than `__call__`: `quick`, a function with the same bits that does less before it computes;
`overwrites`, the operand whose array may be given as `out`, to be written to; `first`, the kernel of the first result
alone; `of_scalars` (`elementwise.fast.formulas`) and `of_each` (`policies.random_rounding`)."""


@define(eq=False)
class Site:
    """An instruction of which a kernel is made, and what is known of it before it runs."""

    entry: Entry
    instruction: Instruction
    operand_shapes: tuple[Shape, ...]
    """Those that are declared."""
    callee: Callable[[str], Callee] | None = None
    """A called computation as kernels see it, by its name."""
    numerics: NumericsPolicy = REFERENCE

    def given(self, rule: Rule[Any]) -> dict[str, Any]:
        """What a rule asks for besides operands."""
        return {name: self._known(name) for name in rule.needs}

    def _known(self, name: str) -> Any:
        if name in ("operand_shapes", "numerics"):
            return getattr(self, name)
        if name == "computations":
            assert self.callee is not None
            return tuple(map(self.callee, computation_names(self.instruction.attributes)))
        if name == "config" and self.entry.config is not None:
            return self.entry.config(self.instruction)
        return getattr(self.instruction, name)

    def bound(self, rule: Rule[Any]) -> Kernel:
        """A rule with all that it asks for."""
        return rule.bound(self.given(rule))

    def kernel(self, operands: Sequence[Shape] | None = None) -> Kernel | None:
        """The fast variant, where there is one, or the definition; `operands` are the shapes of what is met where they
        are not those that are declared. None where there is no kernel."""
        return self.fast(operands) or (None if self.entry.evaluate is None else self.bound(self.entry.evaluate))

    def fast(self, operands: Sequence[Shape] | None = None) -> Kernel | None:
        """The fast variant, where there is one."""
        bind = self.entry.fast.bind
        if bind is None or not self._is_decided(self.operand_shapes if operands is None else operands):
            return None
        return bind(**self.given(bind))

    def _is_decided(self, operands: Sequence[Shape]) -> bool:
        """Whether element types, shapes and policy decide how a value is computed.

        They do not where extents are dynamic, where an operand is not of the type that it is declared to have, and
        under policies that have formulas of their own.
        """
        numerics, shape = self.numerics, self.instruction.shape
        if numerics.replaces_formulas:
            return False
        if not self.entry.is_elementwise and numerics.contraction_operand_mantissa_bits is not None:
            return False
        results = flat_shapes(shape)[:1] if self.entry.role is Role.LIBRARY else parts_of(shape)
        for declared, met in zip((*self.operand_shapes, *results), (*operands, *results), strict=True):
            if (
                not isinstance(declared, ArrayShape)
                or not isinstance(met, ArrayShape)
                or declared.element_type is not met.element_type
                or declared.dynamic_dimensions
                or met.dynamic_dimensions
            ):
                return False
        return True
