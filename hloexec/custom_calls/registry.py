"""The registry of library calls: one entry per target of `custom-call`.

An entry holds everything that hloexec knows of a target: what it computes, where that is written down, its kernel, and
which of its calls it cannot do. Users add their own, which win over the ones that are built in.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import attrs
import numpy as np

from hloexec.errors import EvaluationError, InputError, ShapeError, UnsupportedError
from hloexec.ir import ArrayShape, BufferShape, Computation, Instruction, Shape, TupleShape
from hloexec.ops.movement.copying import lies_in_order, row_major
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.traits import NO_TRAITS, Traits, traits_with_rules
from hloexec.values import Array

__all__ = [
    "CUSTOM_CALLS",
    "CustomCall",
    "add_custom_call",
    "custom_call",
    "find_custom_call",
    "register_custom_call",
    "unregister_custom_call",
]


@attrs.frozen
class CustomCall:
    """What hloexec knows of one target.

    `evaluate(*operands, …)` returns an array or a (nested) tuple of them. It takes, as keyword-only arguments and only
    where it declares them: `attributes` (a `CustomCallAttributes`), `backend_config` (the instruction's, verbatim, or
    None), `shape` (the declared result shape), `operand_shapes`, `numerics` (the policy). `infer(*operand_shapes, …)`
    takes the same but the policy, and returns the result shape or raises ShapeError; it is asked only about calls that
    can be run, of as many operands as `evaluate` takes. `supports(instruction)` gives the reason why a particular call
    cannot be run, as a clause, or raises UnsupportedError with it; None where it can. All may be absent,
    `evaluate` where no call can be run.

    A call that only hands values over has `forwards(computation, instruction)` instead of a kernel: the names of the
    instructions whose values its result begins with; whatever else it holds is state that means nothing.
    """

    target: str
    evaluate: Callable[..., Any] | None = None
    infer: Callable[..., Shape] | None = None
    supports: Callable[[Instruction], str | None] | None = None
    forwards: Callable[[Computation, Instruction], tuple[str, ...]] | None = None
    bind: Callable[..., Callable[..., Any] | None] | None = None
    """From `backend_config`, `shape` and `operand_shapes`, by keyword, a function of the operands alone that gives the
    first result as `evaluate` does under the `reference` policy, or None; all other results are then zeros."""
    traits: Traits = NO_TRAITS
    """What analyses know of it (`hloexec.ops.traits`)."""
    is_reproducible: bool = False
    """Whether results under the `exact` policy are the same bits on every machine."""
    documentation: str = ""
    """The formula and its source."""
    is_pure: bool = True
    """Whether a call computes the same whenever its operands are the same, and does nothing else."""

    @cached_property
    def evaluate_needs(self) -> frozenset[str]:
        return _keywords(self.evaluate)

    @cached_property
    def infer_needs(self) -> frozenset[str]:
        return _keywords(self.infer)

    @cached_property
    def minimum_operands(self) -> int:
        named = _parameters(self.evaluate or self.infer, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return sum(parameter.default is parameter.empty for parameter in named)

    @cached_property
    def maximum_operands(self) -> int | None:
        """None: any number."""
        function = self.evaluate or self.infer
        if function is None or _parameters(function, inspect.Parameter.VAR_POSITIONAL):
            return None
        return len(_parameters(function, inspect.Parameter.POSITIONAL_OR_KEYWORD))

    def result_shape(self, instruction: Instruction, operands: Sequence[Shape]) -> Shape | None:
        """The result shape that the entry infers; None where it has no rule, or cannot run the call in any case.

        Raises ShapeError where the call is ill-formed.
        """
        if self.reason_against(instruction) is not None:
            return None
        least, most = self.minimum_operands, self.maximum_operands
        if len(operands) < least or (most is not None and len(operands) > most):
            taken = f"{'' if most == least else 'at least '}{least} operand{'' if least == 1 else 's'}"
            raise ShapeError(f"it takes {taken}, but has {len(operands)}")
        if self.infer is None:
            return None
        given = {
            "attributes": instruction.attributes,
            "backend_config": instruction.backend_config,
            "shape": instruction.shape,
            "operand_shapes": tuple(operands),
        }
        return self.infer(*operands, **{name: given[name] for name in self.infer_needs})

    def reason_against(self, instruction: Instruction, numerics: NumericsPolicy = REFERENCE) -> str | None:
        """Why this call cannot be run under a policy, or None where it can."""
        try:
            reason = None if self.supports is None else self.supports(instruction)
        except UnsupportedError as error:
            return error.message
        if reason is None and numerics.is_exact and not self.is_reproducible:
            return _PROCESSOR
        return reason


_PROCESSOR = (
    "numerics=exact asks for the same bits on every processor, but hloexec computes it with code (BLAS, LAPACK or "
    "functions of NumPy's) that rounds as the processor's instructions have it"
)


class _BuiltInCalls(Mapping[str, CustomCall]):
    """Entries by target. The libraries are imported when one is first asked for: most modules call none."""

    def __init__(self) -> None:
        self._entries: dict[str, CustomCall] = {}

    def add(self, entry: CustomCall) -> None:
        if entry.target in self._entries:
            raise ValueError(f"custom-call target {entry.target} has two entries")
        self._entries[entry.target] = entry

    def _all(self) -> dict[str, CustomCall]:
        import hloexec.custom_calls.libraries  # noqa: F401 - adds the entries

        return self._entries

    def __getitem__(self, target: str) -> CustomCall:
        return self._all()[target]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


CUSTOM_CALLS = _BuiltInCalls()
"""The built-in entries by target."""

_user_calls: dict[str, CustomCall] = {}

_Entry = TypeVar("_Entry", bound=type)


def custom_call(*targets: str, is_reproducible: bool = False) -> Callable[[_Entry], _Entry]:
    """Register the decorated class as the entry of `targets`.

    The class's docstring gives the formula and its source; its static methods `evaluate` or `forwards` and (optional)
    `infer`, `supports`, `bind` and the rules of its traits (`hloexec.ops.traits`) are what they are called.
    `is_reproducible` says that the `exact` policy may run it.
    """

    def decorate(cls: _Entry) -> _Entry:
        names = ("evaluate", "infer", "supports", "forwards", "bind")
        rules: dict[str, Any] = {name: getattr(cls, name) for name in names if hasattr(cls, name)}
        rules["traits"] = traits_with_rules(NO_TRAITS, cls)
        rules["is_reproducible"] = is_reproducible or "forwards" in rules
        for target in targets:
            CUSTOM_CALLS.add(CustomCall(target, **rules, documentation=inspect.cleandoc(cls.__doc__ or "")))
        return cls

    return decorate


def add_custom_call(
    target: str,
    evaluate: Callable[..., Any] | None,
    *,
    infer: Callable[..., Shape] | None = None,
    supports: Callable[[Instruction], str | None] | None = None,
    documentation: str,
) -> None:
    """Add one built-in entry, for families whose entries are rows of a table."""
    CUSTOM_CALLS.add(CustomCall(target, evaluate, infer, supports, documentation=documentation))


def find_custom_call(target: str) -> CustomCall | None:
    """The entry of a target, the user's before the built-in one; None where there is none."""
    return _user_calls.get(target) or CUSTOM_CALLS.get(target)


def register_custom_call(target: str, function: Callable[..., Any]) -> None:
    """Let `function` stand for the library call `target`, in place of whatever stood for it before.

    It is called with one array per operand (a nested tuple of arrays for a tuple) and returns an array or a tuple, of
    the dimensions and element types that the instruction declares; it must not modify its operands. EvaluationError is
    raised at the instruction where the result does not fit.
    """
    if not callable(function):
        raise InputError(f"the implementation of custom call {target!r} must be a function, but is {function!r}")

    def evaluate(*operands: object, shape: Shape) -> Any:
        return _checked(function(*operands), shape, target)

    _user_calls[target] = CustomCall(
        target, evaluate, is_reproducible=True, documentation=inspect.getdoc(function) or "", is_pure=False
    )


def unregister_custom_call(target: str) -> None:
    """Forget what `register_custom_call` was given for a target, if anything."""
    _user_calls.pop(target, None)


def _parameters(function: Callable[..., Any] | None, kind: object) -> list[inspect.Parameter]:
    """A function's parameters of a kind; none where there is no function."""
    signature = inspect.signature(function) if function else inspect.Signature()
    return [parameter for parameter in signature.parameters.values() if parameter.kind is kind]


def _keywords(function: Callable[..., Any] | None) -> frozenset[str]:
    return frozenset(parameter.name for parameter in _parameters(function, inspect.Parameter.KEYWORD_ONLY))


def _checked(value: object, shape: Shape, target: str) -> Any:
    """What a user's function returned, as arrays of the declared shapes, or EvaluationError."""
    if isinstance(shape, TupleShape):
        if not isinstance(value, (tuple, list)) or len(value) != len(shape.elements):
            raise EvaluationError(
                f"the function registered for custom call {target!r} must return a tuple of {len(shape.elements)} "
                f"values, as the instruction's shape is {shape}, but returned {_described(value)}"
            )
        return tuple(_checked(part, element, target) for part, element in zip(value, shape.elements, strict=True))
    declared = shape.element if isinstance(shape, BufferShape) else shape
    array = np.asarray(value)
    if array.dtype != declared.element_type.storage or not _fits(array, declared):
        raise EvaluationError(
            f"the function registered for custom call {target!r} must return an array of {declared} "
            f"(NumPy type {declared.element_type.storage}), but returned {_described(value)}"
        )
    return array if lies_in_order(array) else row_major(array)


def _fits(array: Array, shape: ArrayShape) -> bool:
    dynamic = shape.dynamic_dimensions or (False,) * shape.rank
    return array.ndim == shape.rank and all(
        size == declared or (bounded and (size <= declared or declared < 0))
        for size, declared, bounded in zip(array.shape, shape.dimensions, dynamic, strict=True)
    )


def _described(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} and shape {list(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"a tuple of {len(value)} values"
    return f"a value of type {type(value).__name__}"
