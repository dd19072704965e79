"""Library calls that users implement."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from hloexec.core.arguments import described, require_text, wrong
from hloexec.core.arrays import as_array
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.core.tree import rebuilt
from hloexec.core.values import TOKEN
from hloexec.errors import EvaluationError, HloError, InputError, ShapeError
from hloexec.ops.common import lies_in_order, row_major
from hloexec.ops.registry import USER_CALLS, Entry, Role, Rule

IMPLEMENTATIONS: dict[str, Any] = {}
"""By their targets, what was registered: a function or a class, or `MODULE:FUNCTION` where that is how it was named."""
_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])
_UNSET: Any = object()
_OF_KERNELS = ("attributes", "backend_config", "shape", "operand_shapes", "numerics")
_OF_SHAPE_RULES = _OF_KERNELS[:-1]


@overload
def register_custom_call(target: str) -> Callable[[_Kernel], _Kernel]: ...
@overload
def register_custom_call(target: str, function: _Kernel) -> _Kernel: ...
def register_custom_call(target: str, function: Any = _UNSET) -> Any:
    """Implement the library call `target` with a function or a class, replacing any earlier implementation.

    Without `function` it is a decorator:

        @hloexec.register_custom_call("scale")
        def scale(x, *, backend_config):
            return x * np.float32(json.loads(backend_config)["factor"])

    The function is called with one array per operand (a nested tuple of arrays for a tuple), and returns an array or a
    tuple with the dimensions and element types that the instruction declares (anything for a token). It must not modify
    its operands. It may declare any of these keyword-only arguments: `attributes` (all attributes of the instruction),
    `backend_config` (its text, verbatim, or None), `shape` (the declared `Shape` of the result), `operand_shapes` (a
    tuple of shapes) and `numerics` (the `NumericsPolicy` of the run).

    A class has the function as the static method `evaluate`, and may have two more: `infer(*operand_shapes)`, which
    returns the `Shape` of the result or raises `hloexec.ShapeError` if the operands are invalid (it may declare the
    same keyword-only arguments except `numerics`); and `supports(instruction)`, which returns why a call cannot be run,
    or None.

    Returns its argument. Raises InputError if that is not such a function or class. If a result does not match the
    instruction's declared shape, or the function raises, the run ends with an EvaluationError that names the
    instruction.
    """
    require_text("target", target, "the target of a custom call")
    if function is not _UNSET:
        USER_CALLS[target] = _entry(target, function)
        IMPLEMENTATIONS[target] = function
        return function
    return lambda decorated: register_custom_call(target, decorated)


def unregister_custom_call(target: str) -> None:
    """Remove the implementation that `register_custom_call` has set for a target, if any."""
    require_text("target", target, "the target of a custom call")
    USER_CALLS.pop(target, None)


def _entry(target: str, given: Any) -> Entry:
    name = f"the implementation of custom call {target!r}"
    if not callable(given):
        raise wrong(name, "a function or a class", given)
    rules: dict[str, Any] = {"evaluate": given}
    if isinstance(given, type):
        rules = {rule: _static_method(given, rule, name) for rule in ("evaluate", "infer", "supports")}
        if rules["evaluate"] is None:
            raise InputError(f"{name}, class {given.__qualname__}, must have a static method evaluate")
    infer, supports = rules.get("infer"), rules.get("supports")
    evaluate, operands = _adapted(
        rules["evaluate"], _OF_KERNELS, name, lambda value, shape: _checked(value, shape, target)
    )
    return Entry(
        name=target,
        role=Role.LIBRARY,
        operands=operands,
        evaluate=evaluate,
        infer=infer and _adapted(_refusing(infer, "infer"), _OF_SHAPE_RULES, name, _checked_shape)[0],
        supports=supports and _checked_reason(supports, target),
        documentation=inspect.getdoc(given) or "",
        is_pure=False,
    )


def _static_method(owner: type, name: str, subject: str) -> Callable[..., Any] | None:
    if not hasattr(owner, name):
        return None
    if not isinstance(inspect.getattr_static(owner, name), (staticmethod, classmethod)):
        raise InputError(f"{name} of {subject}, class {owner.__qualname__}, must be a static method")
    method: Callable[..., Any] = getattr(owner, name)
    return method


def _adapted(
    function: Callable[..., Any], names: Sequence[str], name: str, checked: Callable[[Any, Shape], Any]
) -> tuple[Rule[Any], tuple[int, int | None]]:
    """A user's function as entries have them, which gets of the `names` arguments those that it takes, and how many
    operands that may be."""
    kinds = inspect.Parameter
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some that are written in C do not say what they take
        parameters = [kinds("operands", kinds.VAR_POSITIONAL)]
    takes_all = any(parameter.kind is kinds.VAR_KEYWORD for parameter in parameters)
    wanted = {parameter.name: parameter for parameter in parameters if parameter.kind is kinds.KEYWORD_ONLY}
    unknown = [key for key, parameter in wanted.items() if key not in names and parameter.default is kinds.empty]
    if unknown:
        unmet, available = ", ".join(unknown), ", ".join(names)
        raise InputError(f"{name} takes the keyword {unmet}, but can be given {available} only")
    taken = [key for key in names if takes_all or key in wanted]

    def adapted(*operands: object, shape: Shape, **others: object) -> Any:
        keywords = {key: shape if key == "shape" else others[key] for key in taken}
        return checked(function(*operands, **keywords), shape)

    operands = [each for each in parameters if each.kind not in (kinds.KEYWORD_ONLY, kinds.VAR_KEYWORD)]
    is_any = any(each.kind is kinds.VAR_POSITIONAL for each in operands)
    least = sum(each.default is kinds.empty and each.kind is not kinds.VAR_POSITIONAL for each in operands)
    return Rule(adapted, frozenset((*taken, "shape"))), (least, None if is_any else len(operands))


def _refusing(function: Callable[..., Any], rule: str) -> Callable[..., Any]:
    """Exceptions of a user's rule are raised as ShapeError."""

    @functools.wraps(function)
    def refusing(*given: object, **keywords: object) -> Any:
        try:
            return function(*given, **keywords)
        except HloError:
            raise
        except Exception as error:
            raise ShapeError(f"the {rule} of its implementation raised {type(error).__name__}: {error}") from error

    return refusing


def _checked_shape(value: Any, _: Shape) -> Shape:
    if not isinstance(value, (ArrayShape, TupleShape)):
        raise ShapeError(f"the infer of its implementation must return a Shape, but returned {described(value)}")
    return value


def _checked_reason(supports: Callable[[Instruction], Any], target: str) -> Callable[[Instruction], str | None]:
    def checked(instruction: Instruction) -> str | None:
        reason = _refusing(supports, "supports")(instruction)
        if reason is not None and not isinstance(reason, str):
            raise InputError(
                f"the supports of the implementation of custom call {target!r} must return a text or None, but "
                f"returned {described(reason)}"
            )
        return reason

    return checked


def _checked(value: object, shape: Shape, target: str) -> Any:
    """What a user's function returned, as arrays of the declared shapes, or EvaluationError."""
    subject = f"the function registered for custom call {target!r} must return"

    def parts(node: tuple[Any, Shape]) -> list[tuple[Any, Shape]] | None:
        part, declared = node
        if not isinstance(declared, TupleShape):
            return None
        if not isinstance(part, (tuple, list)) or len(part) != len(declared.elements):
            raise EvaluationError(
                f"{subject} a tuple of {len(declared.elements)} values, as the instruction's shape is {declared}, but "
                f"returned {described(part)}"
            )
        return list(zip(part, declared.elements, strict=True))

    def leaf(node: tuple[Any, Any]) -> Any:
        part, declared = node[0], node[1].array_shape
        if declared.is_token:
            return TOKEN
        array = as_array(part)
        if array.dtype != declared.element_type.storage or not declared.has_room_for(array.shape):
            raise EvaluationError(
                f"{subject} an array of {declared} (NumPy type {declared.element_type.storage}), but returned "
                f"{described(part)}"
            )
        return array if lies_in_order(array) else row_major(array)

    return rebuilt((value, shape), parts, leaf)
