"""`hx.capture`: calls of jitted functions, kept as goldens while a program runs.

A captured call is a folder that all commands read (`hloexec.tools.golden.recording`), with two more files:

- `optimized.hlo`: the module after optimization, as it ran;
- `capture.json`: the function, the number of the call, versions, flags and the kind of device.

A call that failed is a folder without a result, `NAME.failed`: `error.txt` says why, and `module.before.hlo`,
`module.after.hlo` and `module.inputs.npz` are what it was to compute.

The texts of modules are kept once each, in `.modules`; folders have links to them. A folder takes its name only when it
is whole, so that a program that is killed leaves whole ones.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import secrets
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MethodType
from typing import Any

import attrs

from hloexec.core.arguments import require_integer, require_path
from hloexec.core.files import open_atomically, whole_folder
from hloexec.core.ir import Module, TupleShape, flat_shapes
from hloexec.core.structs import frozen
from hloexec.core.values import TOKEN, Array, Value, arrays_of
from hloexec.core.wording import byte_text
from hloexec.engine.devices.topology import topology_of
from hloexec.errors import InputError, warn
from hloexec.jax import internals
from hloexec.jax.lowering import DONATED, Lowering, is_traced
from hloexec.language import literals
from hloexec.language.interop.through_jaxlib import from_jax
from hloexec.tools.golden.recording import MODULE, SUFFIX, Golden, module_text, new_golden, text_hash, versions

OPTIMIZED, CAPTURE, ERROR, MODULES = "optimized.hlo", "capture.json", "error.txt", ".modules"
_UNUSUAL = re.compile(r"[^\w.-]+")


@frozen
class _Rule:
    """Which calls are kept."""

    every: int | None
    when: Callable[[Any], Any] | None
    on_exception: bool

    def is_due(self, number: int) -> bool:
        return self.every is not None and number % self.every == 0


class capture:  # noqa: N801 - it is called as a function
    """Keep calls of jitted functions in `folder`: as a decorator those of one function, as a context all within.

        @hx.capture("captured", every=100)
        def step(state, batch): ...

        with hx.capture("captured", every=100): ...

    Of each function, every `every`-th call is kept, counted from 1 (None: none of these), those for which
    `when(result)` is true, and, with `on_exception`, those that fail. All together take at most `max_bytes`, a number
    of bytes; a warning says what was not kept. The function runs where it ran before, as fast; only a call that is kept
    waits for its result. What it donates is copied before such a call; with `when`, before each.

    A decorated function is jitted, if it is not yet, with the other `options`, those of `jax.jit`. A context keeps
    calls that Python makes of functions of `jax.jit`, but for JAX's own and those within another context, and needs a
    version of JAX whose inside it knows (`hloexec.jax.internals`): UnsupportedError says so of others. Several
    processes may write to one folder.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every: int | None = 1,
        when: Callable[[Any], Any] | None = None,
        on_exception: bool = True,
        max_bytes: int = 1 << 30,
        **options: Any,
    ) -> None:
        require_path("folder", folder)
        if every is not None:
            require_integer("every", every, 1)
        require_integer("max_bytes", max_bytes, 0)
        if when is not None and not callable(when):
            raise InputError("when must be a function of the result of a call, which says whether to keep the call")
        internals.jax_version()
        self._rule, self._options = _Rule(every, when, on_exception), options
        self._folder = _Folder(Path(folder), max_bytes)
        self._functions: dict[int, Captured] = {}
        self._entered: list[AbstractContextManager[None]] = []

    def __call__(self, function: Callable[..., Any]) -> Captured:
        """The function, of which calls are kept."""
        import jax

        if not callable(function):
            raise InputError(f"hx.capture keeps calls of a function of JAX, not of {type(function).__name__}")
        is_jitted = internals.unjitted(function)[0] is not function
        jitted = function if is_jitted and not self._options else jax.jit(function, **self._options)
        return Captured(jitted, self._rule, self._folder)

    def __enter__(self) -> capture:
        context = internals.calls_seen(self._call)
        context.__enter__()
        self._entered.append(context)
        return self

    def __exit__(self, *raised: Any) -> None:
        self._entered.pop().__exit__(*raised)

    def _call(self, jitted: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        function = self._functions.get(id(jitted))
        if function is None:
            function = self._functions[id(jitted)] = Captured(jitted, self._rule, self._folder)
        return function(*arguments, **keywords)


class Captured:
    """A jitted function of which calls are kept; `capture` makes it."""

    def __init__(self, jitted: Any, rule: _Rule, folder: _Folder) -> None:
        functools.update_wrapper(self, jitted)
        self._jitted, self._rule, self._folder = jitted, rule, folder
        self._name = getattr(jitted, "__name__", "function")
        self._donates = any(internals.unjitted(jitted)[1].get(name) for name in DONATED)
        self._lowering = Lowering(jitted, {})
        self._numbers = itertools.count(1)
        self._every = 1 if rule.when is not None else rule.every or sys.maxsize
        self._optimized: dict[Any, bytes | None] = {}

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function, and keep the call if it is one of those."""
        number = next(self._numbers)
        if number % self._every == 0:
            return self._watched(number, arguments, keywords)
        try:
            return self._jitted(*arguments, **keywords)
        except Exception as error:
            self._keep_failed(number, arguments, keywords, error)
            raise

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def _watched(self, number: int, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if is_traced(self._lowering.leaves(arguments, keywords)):
            return self._jitted(*arguments, **keywords)  # a part of another function
        kept: tuple[Any, Any] = _copied(arguments, keywords) if self._donates else (arguments, keywords)
        try:
            result = self._jitted(*arguments, **keywords)
        except Exception as error:
            self._keep_failed(number, *kept, error)
            raise
        if self._rule.is_due(number) or (self._rule.when is not None and self._rule.when(result)):
            with _told(f"call {number} of {self._name}"):
                self._keep(number, *kept, result)
        return result

    def _keep_failed(self, number: int, arguments: Any, keywords: Any, error: Exception) -> None:
        if self._rule.on_exception and not is_traced(self._lowering.leaves(arguments, keywords)):
            with _told(f"call {number} of {self._name}"):
                self._keep(number, arguments, keywords, None, error)

    def _keep(self, number: int, arguments: Any, keywords: Any, result: Any, error: Exception | None = None) -> None:
        import jax

        program = self._lowering.program(arguments, keywords)
        module = program.lowered
        before, topology = module_text(module), topology_of(module, None, None)
        golden = Golden(
            self._name,
            module.name,
            text_hash(before),
            replicas=topology.replicas,
            partitions=topology.partitions,
            inputs_source=f"call {number} of {self._name}",
            expected_source=f"JAX on {jax.devices()[0].device_kind}",
            inputs_per_device=1,
            versions=versions(),
        )
        call = _Call(
            f"{_UNUSUAL.sub('_', self._name)}-{number:06d}-{secrets.token_hex(3)}",
            None if error else golden,
            before,
            self._text_after(module, arguments, keywords),
            program.inputs(self._lowering.leaves(arguments, keywords)),
            () if error else _expected(module, program.arrays(result), topology.count),
            _record(self._name, number),
            f"{type(error).__name__}: {error}\n",
        )
        self._folder.write(call)

    def _text_after(self, module: Module, arguments: Any, keywords: Any) -> bytes | None:
        """The text of the module after optimization; none where it was not compiled."""
        if id(module) not in self._optimized:
            try:
                optimized = from_jax(self._jitted.trace(*arguments, **keywords).lower().compile())
                if len(optimized.entry.parameters) != len(module.entry.parameters):  # it drops what it does not use
                    traced = self._lowering.jitted.trace(*arguments, **keywords)
                    optimized = from_jax(traced.lower().compile())
                self._optimized[id(module)] = module_text(optimized)
            except Exception:
                self._optimized[id(module)] = None
        return self._optimized[id(module)]


@frozen
class _Call:
    """What is kept of a call."""

    name: str
    golden: Golden | None
    """How its result is checked; none where the call failed."""
    before: bytes
    after: bytes | None
    """The texts of the module, before and after optimization."""
    inputs: tuple[Value, ...]
    expected: Value
    record: Mapping[str, Any]
    error: str

    @property
    def byte_count(self) -> int:
        """What its arrays take."""
        return sum(array.nbytes for array in arrays_of((self.inputs, self.expected)))


class _Folder:
    """The folder into which calls are written, and how much it may take."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path, self._left = path, max_bytes
        self._lock = threading.Lock()

    def write(self, call: _Call) -> None:
        """Write a call; InputError where there is no room for it, or the disk takes no more."""
        with self._lock:
            if call.byte_count > self._left:
                raise InputError(f"it takes {byte_text(call.byte_count)}, and max_bytes leaves {byte_text(self._left)}")
            self._left -= call.byte_count
        if call.golden is None:
            with whole_folder(self._path / f"{call.name}.failed") as folder:
                literals.save(folder / "module.inputs.npz", call.inputs)
                (folder / ERROR).write_text(call.error, encoding="utf-8")
                self._add(call, folder, "module.before.hlo", "module.after.hlo")
        else:
            golden = attrs.evolve(call.golden, folder=self._path / f"{call.name}{SUFFIX}")
            with new_golden(golden, [call.inputs], call.expected) as folder:
                self._add(call, folder, MODULE, OPTIMIZED)

    def _add(self, call: _Call, folder: Path, before: str, after: str) -> None:
        self._link(call.before, folder / before)
        if call.after is not None:
            self._link(call.after, folder / after)
        (folder / CAPTURE).write_text(json.dumps(call.record, indent=2) + "\n", encoding="utf-8")

    def _link(self, text: bytes, path: Path) -> None:
        """A link to the only file that has the text, or a copy where there are no links."""
        shared = self._path / MODULES / f"{text_hash(text)}.hlo"
        if not shared.exists():
            shared.parent.mkdir(parents=True, exist_ok=True)
            with open_atomically(shared) as file:
                file.write(text)
        try:
            os.link(shared, path)
        except OSError:
            shutil.copyfile(shared, path)


@contextmanager
def _told(subject: str) -> Iterator[None]:
    """The program goes on where a call cannot be kept; a warning says so."""
    try:
        yield
    except Exception as error:
        warn(f"{subject} is not kept: {error or type(error).__name__}")


def _copied(arguments: Any, keywords: Any) -> Any:
    """Arguments that a function may overwrite, as copies."""
    import jax

    return jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else leaf, (arguments, keywords))


def _expected(module: Module, arrays: Sequence[Array], devices: int) -> Value:
    """The module's result, of each device where there are several: each has the whole arrays."""
    shape = module.entry.result_shape
    if not isinstance(shape, TupleShape):
        result: Value = arrays[0]
    else:
        left = iter(arrays)
        result = tuple(next(left) if leaf.is_array else TOKEN for leaf in flat_shapes(shape))
    return tuple(result for _ in range(devices)) if devices > 1 else result


def _record(name: str, number: int) -> dict[str, Any]:
    """What a reader wants to know of where a call was made."""
    import jax
    import jaxlib

    device = jax.devices()[0]
    return {
        "function": name,
        "call": number,
        "process": jax.process_index(),
        "platform": device.platform,
        "device_kind": device.device_kind,
        "device_count": jax.device_count(),
        "versions": {**versions(), "jax": jax.__version__, "jaxlib": jaxlib.__version__},
        "flags": {name: os.environ[name] for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS") if name in os.environ},
        "jax_enable_x64": bool(jax.config.jax_enable_x64),
        "jax_default_matmul_precision": jax.config.jax_default_matmul_precision,
    }
