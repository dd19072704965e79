"""The registry of library calls: one entry per target of `custom-call`.

An entry holds everything that hloexec knows about a target: what it computes, the source for that, its kernel, and
which of its calls are not supported. Users can register their own entries, which override the built-in ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from hloexec.core.ir import Computation, Instruction, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.core.wording import counted
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.registry import Rule
from hloexec.ops.relations import RelateRule, Resizing
from hloexec.ops.traits import NO_TRAITS, Traits, traits_with_rules


@frozen
class CustomCall:
    """What hloexec knows of one target.

    `evaluate(*operands, …)` returns an array or a (nested) tuple of them. It takes, as keyword-only arguments and only
    where it declares them: `attributes` (a `CustomCallAttributes`), `backend_config` (the instruction's, verbatim, or
    None), `config` (what the entry's own `config` reads), `shape` (the declared result shape), `operand_shapes`,
    `numerics` (the policy). `infer(*operand_shapes, …)` takes the same but the policy, and returns the result shape or
    raises ShapeError; it is asked only about calls that can be run, of as many operands as `evaluate` takes.
    `supports(instruction)` gives the reason why a particular call cannot be run, as a clause, or raises
    UnsupportedError with it; None where it can. All may be absent, `evaluate` where no call can be run.

    A call that only hands values over has `forwards(computation, instruction)` instead of a kernel: the names of the
    instructions whose values its result begins with; whatever else it holds is state that means nothing. One that runs
    a computation on its operands has `invokes(instruction)`: the computation's name.
    """

    target: str
    evaluate: Callable[..., Any] | None = None
    infer: Callable[..., Shape] | None = None
    supports: Callable[[Instruction], str | None] | None = None
    forwards: Callable[[Computation, Instruction], tuple[str, ...]] | None = None
    invokes: Callable[[Instruction], str] | None = None
    bind: Callable[..., Callable[..., Any] | None] | None = None
    """From `backend_config`, `shape` and `operand_shapes`, by keyword, a function of the operands alone that gives the
    first result as `evaluate` does under the `reference` policy, or None; all other results are then zeros."""
    config: Callable[[Instruction], Any] | None = None
    """Reads what the config and the attributes of a call say; UnsupportedError or ShapeError for what cannot be run."""
    traits: Traits = NO_TRAITS
    """What analyses know of it (`ops.traits`)."""
    is_reproducible: bool = False
    """Whether results under the `exact` policy are the same bits on every machine."""
    documentation: str = ""
    """The formula and its source."""
    relate: RelateRule | None = None
    """How the dimensions of operands and results depend on one another (`ops.relations`); None: not known."""
    resize: Callable[[Resizing], str | None] | None = None
    """The `backend_config` for other sizes; None where it does not depend on them."""
    order: Rule[tuple[int, Array]] | None = None
    """Of calls that sort or choose, from the operands, the dimension along which they do so and the places, within that
    dimension, that the results' elements come from; its first results are those elements of the operands."""
    wider: str | None = None
    """The target of the same routine for floats of 64 bits, where that is another one."""
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
            taken = f"{'' if most == least else 'at least '}{counted(least, 'operand')}"
            raise ShapeError(f"it takes {taken}, but has {len(operands)}")
        if self.infer is None:
            return None
        given = {
            "attributes": instruction.attributes,
            "backend_config": instruction.backend_config,
            "shape": instruction.shape,
            "operand_shapes": tuple(operands),
        }
        if self.config is not None:
            given["config"] = self.config(instruction)
        return self.infer(*operands, **{name: given[name] for name in self.infer_needs})

    def reason_against(self, instruction: Instruction, numerics: NumericsPolicy = REFERENCE) -> str | None:
        """Why this call cannot be run under a policy, or None where it can."""
        try:
            if self.config is not None:
                self.config(instruction)
        except (UnsupportedError, ShapeError) as error:
            return error.message
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
        import hloexec.ops.library_calls.libraries  # noqa: F401 - adds the entries

        return self._entries

    def __getitem__(self, target: str) -> CustomCall:
        return self._all()[target]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


CUSTOM_CALLS = _BuiltInCalls()
"""The built-in entries by target."""

USER_CALLS: dict[str, CustomCall] = {}
"""Those of users (`library_calls.user_calls`)."""

_Entry = TypeVar("_Entry", bound=type)


def custom_call(
    *targets: str,
    config: Callable[[Instruction], Any] | None = None,
    is_reproducible: bool = False,
    traits: Traits = NO_TRAITS,
) -> Callable[[_Entry], _Entry]:
    """Register the decorated class as the entry of `targets`.

    The class's docstring gives the formula and its source; its static methods `evaluate`, `forwards` or `invokes` and
    (optional) `infer`, `supports`, `bind`, `relate`, `resize`, `order` and the rules of its traits
    (`ops.traits`) are what they are called, and so is `config`. `is_reproducible` says that the `exact` policy
    may run it, and `traits` are those that are not rules.
    """

    def decorate(cls: _Entry) -> _Entry:
        names = ("evaluate", "infer", "supports", "forwards", "invokes", "bind", "relate", "resize")
        rules: dict[str, Any] = {name: getattr(cls, name) for name in names if hasattr(cls, name)}
        if hasattr(cls, "order"):
            rules["order"] = Rule(cls.order)
        rules["traits"] = traits_with_rules(traits, cls)
        rules["is_reproducible"] = is_reproducible or not rules.keys().isdisjoint(("forwards", "invokes"))
        for target in targets:
            documentation = inspect.cleandoc(cls.__doc__ or "")
            CUSTOM_CALLS.add(CustomCall(target, **rules, config=config, documentation=documentation))
        return cls

    return decorate


def add_custom_call(
    target: str,
    evaluate: Callable[..., Any] | None,
    *,
    infer: Callable[..., Shape] | None = None,
    supports: Callable[[Instruction], str | None] | None = None,
    config: Callable[[Instruction], Any] | None = None,
    wider: str | None = None,
    documentation: str,
) -> None:
    """Add one built-in entry, for families whose entries are rows of a table."""
    CUSTOM_CALLS.add(
        CustomCall(target, evaluate, infer, supports, config=config, wider=wider, documentation=documentation)
    )


def refuse_custom_calls(*targets: str, reason: str, documentation: str) -> None:
    """Add built-in entries of calls that cannot be run, for a reason that is a clause."""
    for target in targets:
        add_custom_call(
            target, None, supports=lambda instruction: reason, documentation=inspect.cleandoc(documentation)
        )


def find_custom_call(target: str) -> CustomCall | None:
    """The entry of a target, the user's before the built-in one; None where there is none."""
    return USER_CALLS.get(target) or CUSTOM_CALLS.get(target)


def _parameters(function: Callable[..., Any] | None, kind: object) -> list[inspect.Parameter]:
    """A function's parameters of a kind; none where there is no function."""
    signature = inspect.signature(function) if function else inspect.Signature()
    return [parameter for parameter in signature.parameters.values() if parameter.kind is kind]


def _keywords(function: Callable[..., Any] | None) -> frozenset[str]:
    return frozenset(parameter.name for parameter in _parameters(function, inspect.Parameter.KEYWORD_ONLY))
