"""`hx.check`: a function that stays on its device; at the first NaN or infinity that it makes, hloexec runs the same
call, and says where it comes from.

One reduction per array of the result tells whether there is a NaN or an infinity. If so, `find_nan` goes through the
module of the call. What no instruction made of finite numbers is a constant's (a mask) or the arguments': it is no
alarm, and is looked for no longer in this array, where infinities alone are meant for NaN still.
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
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Value, arrays_of
from hloexec.core.wording import listing, number_text, on_devices, plural
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.exec.running import RunOptions, resolve_options, run_with
from hloexec.errors import HloError, InputError, warn
from hloexec.jax import internals
from hloexec.jax.finiteness import are_finite_in_host_memory
from hloexec.jax.lowering import DONATED, Lowering, is_traced, replaying
from hloexec.language.origins import SourceLine, scope_of
from hloexec.ops.common import is_inexact, wide

if TYPE_CHECKING:
    from hloexec.tools.golden import Golden
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

    def save(self, folder: str | os.PathLike[str], *, replace: bool = False) -> Golden:
        """Write the call as a golden (see `hloexec.record_golden`), with what the device gave as the expected result,
        for `hloexec isolate`, `explain`, `golden check` and the other tools that read one.

        Raises InputError if `folder` does not end in `.golden`, exists and is not to be replaced, or cannot be written.
        """
        from hloexec.tools.golden import record_golden
        from hloexec.tools.golden.recording import shapes_by_label

        devices = topology_of(self.module, None, None).count
        expected = dict(zip(shapes_by_label(self.module, devices), self.result * devices, strict=True))
        with replaying():
            return record_golden(
                self.module,
                self.inputs,
                folder,
                expected=expected,
                inputs_source=f"the arguments of call {self.call}",
                expected_source="the device that JAX ran on",
                replace=replace,
            )


def check(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """A function of JAX that runs where it ran before; the first NaN or infinity that it makes raises NonFiniteError.

    `function` is one of `jax.jit`, or is jitted with those of `options` that `jax.jit` takes; the others are those of
    `hloexec.run_devices` for the search. Without a function, it is a decorator.

    After each call, one reduction per array of the result waits for it, and tells whether there is a NaN or an
    infinity. If so, hloexec runs the call's module on its arguments. The error names the instruction that made it, the
    line of the program, the path through scan, while, shard_map and vmap with iterations, the device, and the values.
    If hloexec itself gets finite numbers, the difference is the finding, and the error says so. Infinities of constants
    (masks), and NaN and infinities of the arguments, are no alarm; of the arguments' NaN, an HloWarning tells once. A
    NaN that is selected from a constant is one: JAX marks by it what went wrong (cholesky, an index out of range).

    Within other functions of JAX (`jax.jit`, `jax.grad`, `jax.vmap`), it is the function alone: nothing is checked.

    Arguments that the function donates are kept until the result is checked, so that it takes their memory again.
    Raises UnsupportedError without JAX.
    """
    if function is None:
        return functools.partial(check, **options)
    if not callable(function):
        raise InputError(f"hx.check needs a function of JAX, not {type(function).__name__}")
    return Checked(function, options)


@frozen
class Meant:
    """What a result may hold: numbers of its arrays in which infinities, or NaN and infinities, are no alarm."""

    infinities: frozenset[int] = frozenset()
    nan: frozenset[int] = frozenset()

    def alarming(self, number: int, array: Array) -> Array:
        """Which elements of an array are an alarm, as preds."""
        if number in self.nan or not is_inexact(array):
            return np.zeros(array.shape, np.bool_)
        values = wide(array)
        return np.isnan(values) if number in self.infinities else ~np.isfinite(values)

    def also(self, numbers: Sequence[int], arrays: Sequence[Array]) -> Meant:
        """The same, and what these arrays hold."""
        with_nan = {number for number in numbers if np.isnan(wide(arrays[number])).any()}
        return Meant(self.infinities | {*numbers}, self.nan | with_nan)


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
        self._meant: dict[Any, Meant] = {}
        self._calls = 0

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function, and check its result."""
        import jax

        result = self._jitted(*arguments, **keywords)
        leaves, tree = jax.tree.flatten(result)
        if is_traced(leaves):
            return result
        self._calls += 1
        meant = self._meant.get(tree)
        is_quiet = meant is None and are_finite_in_host_memory(leaves)
        if not is_quiet and not _reduction(meant or Meant())(leaves):
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
        paths, tree = jax.tree_util.tree_flatten_with_path(result)
        meant = self._meant.get(tree, Meant())
        bad = [number for number, array in enumerate(theirs) if meant.alarming(number, array).any()]
        names = tuple(jax.tree_util.keystr(paths[number][0]) for number in bad)
        with replaying():
            search = find_nan(program.module, inputs, **self._run_options)
            if search.finding is not None and _may_be_meant(search, [theirs[number] for number in bad]):
                search = find_nan(program.module, inputs, to_result=True, **self._run_options)
        if search.finding is None:
            with replaying():
                ours = arrays_of(run_with(program.module, inputs, self._resolved)[0])
            differing = [number for number in bad if _is_bad_alone(theirs[number], ours[number])]
            if not differing:
                _warn_of_arguments(search, len(bad))
                self._meant[tree] = meant.also(bad, theirs)
                return
        name = getattr(self, "__name__", "the function")
        error = NonFiniteError(_message(name, self._calls, names, search, program.module))
        error.call, error.outputs, error.search = self._calls, names, search
        error.module, error.inputs, error.result = program.module, inputs, theirs
        raise error


def _may_be_meant(search: NanSearch, arrays: Sequence[Array]) -> bool:
    """Whether constants or arguments may have brought what an array has: what `find_nan` blames for a loop's state
    need not be what has reached the result."""
    has_source_of_nan = bool(search.nan_inputs or search.nan_constants)
    return any(has_source_of_nan or not np.isnan(wide(array)).any() for array in arrays)


def _warn_of_arguments(search: NanSearch, count: int) -> None:
    if search.nan_inputs:
        warn(
            f"arguments hold NaN ({listing(search.nan_inputs, 3)}), and the result has them; they are looked for "
            f"no longer in {plural(count, 'array')} of it"
        )


@functools.cache
def _reduction(meant: Meant) -> Callable[[Sequence[Any]], Any]:
    """Whether there is no alarm in arrays: a function of JAX.

    x · 0 is 0 where x is finite and NaN elsewhere, and so is the sum of these products; a maximum would do as well, but
    that of XLA:CPU passes NaN over (`xla_cpu_enable_fast_min_max`).
    """
    import jax
    import jax.numpy as jnp

    def is_quiet(arrays: Sequence[Any]) -> Any:
        sums = []
        for number, array in enumerate(arrays):
            if number in meant.nan or not jnp.issubdtype(array.dtype, jnp.inexact):
                continue
            parts = [array.real, array.imag] if jnp.iscomplexobj(array) else [array]
            for part in parts:
                part = part.astype(jnp.float32) if part.dtype.itemsize == 1 else part
                part = jnp.where(jnp.isinf(part), 0, part) if number in meant.infinities else part
                sums.append(jnp.sum(part * 0) == 0)
        return functools.reduce(jnp.logical_and, sums, jnp.bool_(True))

    jitted: Callable[[Sequence[Any]], Any] = jax.jit(is_quiet)
    return jitted


def _is_bad_alone(theirs: Array, ours: Array) -> bool:
    """Whether an element is finite in ours and not in theirs, or NaN in theirs alone."""
    ours, theirs = wide(ours), wide(theirs)
    return bool((np.isfinite(ours) & ~np.isfinite(theirs) | np.isnan(theirs) & ~np.isnan(ours)).any())


def _message(name: str, call: int, outputs: Sequence[str], search: NanSearch, module: Module) -> str:
    where = listing((output or "its result" for output in outputs), 4)
    head = f"In call {call}, {name} gave NaN or infinities in {where}"
    finding = search.finding
    if finding is None:
        return (
            f"{head}\nhloexec does not get them there: what the device computed differs. Save the call, as in "
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
