"""`hx.check`: a function that stays on its device; at the first NaN or infinity that it makes, hloexec runs the same
call, and says where it comes from.

One reduction per array of the result tells whether there is a NaN or an infinity. If so, `find_nan` goes through the
module of the call. An infinity that no instruction made of finite numbers is a constant's (a mask) or the arguments':
it is no alarm, and is looked for no longer in this array.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

from hloexec.core.ir import Module
from hloexec.core.values import Array, Value, arrays_of
from hloexec.core.wording import listing, number_text, on_devices, plural
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.exec.running import RunOptions, resolve_options, run_with
from hloexec.errors import HloError, InputError, warn
from hloexec.jax import internals
from hloexec.jax.lowering import DONATED, Lowering, is_traced, replaying
from hloexec.language.origins import SourceLine, scope_of
from hloexec.ops.common import is_inexact, wide

if TYPE_CHECKING:
    from hloexec.tools.nan_search import NanSearch
    from hloexec.tools.nan_search.findings import Finding


class NonFiniteError(HloError, FloatingPointError):
    """A checked function gave a NaN or an infinity; the message says where it comes from.

    `call` is the number of the call, counted from 1; `outputs` are the arrays of the result that have some, by their
    paths; `search` is what `find_nan` found, with `search.finding` None if hloexec itself gives finite numbers there;
    `module` and `inputs` are what it ran; `result` is what the device gave.
    """

    call: int
    outputs: tuple[str, ...]
    search: NanSearch
    module: Module
    inputs: tuple[Value, ...]
    result: tuple[Array, ...]


def check(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """A function of JAX that runs where it ran before; the first NaN or infinity that it makes raises NonFiniteError.

    `function` is one of `jax.jit`, or is jitted with those of `options` that `jax.jit` takes; the others are those of
    `hloexec.run_devices` for the search. Without a function, it is a decorator.

    After each call, one reduction per array of the result waits for it, and tells whether there is a NaN or an
    infinity. If so, hloexec runs the call's module on its arguments. The error names the instruction that made it, the
    line of the program, the path through scan, while, shard_map and vmap with iterations, the device, and the values.
    If hloexec itself gets finite numbers, the difference is the finding, and the error says so. NaN and infinities of
    constants (masks) and of the arguments are no alarm; of the arguments' NaN, an HloWarning tells once.

    Arguments that the function donates are kept until the result is checked, so that it takes their memory again.
    Raises UnsupportedError without JAX.
    """
    if function is None:
        return functools.partial(check, **options)
    if not callable(function):
        raise InputError(f"hx.check needs a function of JAX, not {type(function).__name__}")
    return Checked(function, options)


class Checked:
    """A function whose results are checked; `check` makes it."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        internals.jax_version()
        import jax

        self._run_options = {name: options.pop(name) for name in RunOptions.__annotations__ if name in options}
        self._resolved = resolve_options("check", self._run_options)
        inner, its_options = internals.unjitted(function)
        of_jit = {name: value for name, value in {**its_options, **options}.items() if name not in DONATED}
        donates = any({**its_options, **options}.get(name) for name in DONATED)
        self._jitted = function if its_options and not options and not donates else jax.jit(inner, **of_jit)
        self._lowering = Lowering(inner, of_jit)
        self._ignored: frozenset[int] = frozenset()
        self._calls = 0

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function, and check its result."""
        result = self._jitted(*arguments, **keywords)
        is_finite = _is_finite()(result, self._ignored)
        self._calls += 1
        if is_finite or is_traced([is_finite]):
            return result
        self._examine(result, arguments, keywords)
        return result

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def _examine(self, result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Find out where what is not finite comes from; NonFiniteError unless it is of constants or arguments."""
        import jax

        from hloexec.tools.nan_search import find_nan

        program = self._lowering.program(arguments, keywords)
        inputs = program.inputs(self._lowering.leaves(arguments, keywords))
        theirs = tuple(program.arrays(result))
        bad = [number for number, leaf in enumerate(theirs) if number not in self._ignored and not _all_finite(leaf)]
        paths = jax.tree_util.tree_leaves_with_path(result)
        names = tuple(jax.tree_util.keystr(paths[number][0]) for number in bad)
        with replaying():
            search = find_nan(program.module, inputs, **self._run_options)
        if search.finding is None:
            with replaying():
                ours = arrays_of(run_with(program.module, inputs, self._resolved)[0])
            differing = [number for number in bad if _is_bad_alone(theirs[number], ours[number])]
            if not differing:
                self._ignore(bad, search)
                return
        name = getattr(self, "__name__", "the function")
        error = NonFiniteError(_message(name, self._calls, names, search, program.module))
        error.call, error.outputs, error.search = self._calls, names, search
        error.module, error.inputs, error.result = program.module, inputs, theirs
        raise error

    def _ignore(self, numbers: Sequence[int], search: NanSearch) -> None:
        if search.nan_inputs:
            warn(
                f"arguments hold NaN ({listing(search.nan_inputs, 3)}), and the result has them; they are looked for "
                f"no longer in {plural(len(numbers), 'array')} of it"
            )
        self._ignored |= {*numbers}


@functools.cache
def _is_finite() -> Callable[[Any, frozenset[int]], Any]:
    """Whether all numbers of a result are finite, one reduction an array, but for those with some numbers."""
    import jax
    import jax.numpy as jnp

    def is_finite(result: Any, ignored: frozenset[int]) -> Any:
        checks = [
            jnp.max(jnp.abs(leaf), initial=0) < jnp.inf  # NaN is what max gives if there is one, and not below ∞
            for number, leaf in enumerate(jax.tree.leaves(result))
            if number not in ignored and jnp.issubdtype(leaf.dtype, jnp.inexact)
        ]
        return functools.reduce(jnp.logical_and, checks, jnp.bool_(True))

    jitted: Callable[[Any, frozenset[int]], Any] = jax.jit(is_finite, static_argnums=1)
    return jitted


def _all_finite(array: Array) -> bool:
    return not is_inexact(array) or bool(np.isfinite(wide(array)).all())


def _is_bad_alone(theirs: Array, ours: Array) -> bool:
    """Whether an element is finite in ours and not in theirs."""
    return bool((np.isfinite(wide(ours)) & ~np.isfinite(wide(theirs))).any())


def _message(name: str, call: int, outputs: Sequence[str], search: NanSearch, module: Module) -> str:
    where = listing((output or "its result" for output in outputs), 4)
    head = f"call {call} of {name} gave NaN or infinities in {where}"
    finding = search.finding
    if finding is None:
        return (
            f"{head}\nhloexec gets finite numbers there: what the device computed differs. Save the call, as in "
            "error.save('call.golden'), and see hloexec isolate"
        )
    iteration = f" in iteration {finding.iteration}" if finding.iteration is not None else ""
    devices = on_devices(finding.devices) if topology_of(module, None, None).count > 1 else ""
    lines = [
        head,
        f"%{finding.instruction} in {finding.computation}{iteration}{devices}: {finding.reason}, {finding.bad} of "
        f"{plural(finding.count, 'element')}",
        *(f"  {line}" for line in _lines_of_program(finding)[:4]),
        f"  {scope_of(module, finding.name)}",
    ]
    return "\n".join([*lines, *_values(finding)])


def _lines_of_program(finding: Finding) -> list[SourceLine]:
    """The source lines, but those from the one on at which hloexec calls the function."""
    own = os.path.dirname(__file__)
    return list(itertools.takewhile(lambda line: not line.file.startswith(own), finding.source))


def _values(finding: Finding) -> list[str]:
    """The first elements that went bad, with those that they were computed from."""
    lines = []
    for element in finding.elements[:3]:
        place = f"[{', '.join(map(str, element.index))}]" if element.index else ""
        operands = "" if element.operands is None else f"({', '.join(map(_text, element.operands))})"
        lines.append(f"  {finding.opcode}{place}{operands} = {_text(element.value)}")
    return lines


def _text(number: float | int | complex) -> str:
    return str(number) if isinstance(number, complex) else number_text(number)
