"""The folder of `hx.capture`, and what is kept of a call.

A captured call is a folder that all commands read (`hloexec.tools.golden.recording`), with two more files:

- `optimized.hlo`: the module after optimization, as it ran;
- `capture.json`: the function, the number of the call, versions, flags and the kind of device, names of the inputs.

A call that failed is a folder without a result, `NAME.failed`: `error.txt` says why, and `module.before.hlo`,
`module.after.hlo` and `module.inputs.npz` are what it was to compute.

The texts of modules are kept once each, in `.modules`; folders have links to them. A folder takes its name only when it
is whole, so that a program that is killed leaves whole ones. What a call needs before it runs is `prepared`; everything
else waits until it has run. No error in here is one of the program: a file notes it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import compress
from pathlib import Path
from typing import Any

import attrs

from hloexec.core.files import link_or_copy, open_atomically, require_room, whole_folder
from hloexec.core.ir import Module, TupleShape, flat_shapes
from hloexec.core.structs import frozen
from hloexec.core.values import TOKEN, Array, Value, arrays_of
from hloexec.engine.devices.topology import topology_of
from hloexec.errors import HloError, InputError, warn
from hloexec.jax import internals
from hloexec.jax.lowering import Program, lower
from hloexec.language import literals
from hloexec.language.interop.through_jaxlib import from_jax
from hloexec.tools.golden.recording import MODULE, SUFFIX, Golden, module_text, new_golden, text_hash, versions

OPTIMIZED, CAPTURE, ERROR, MODULES = "optimized.hlo", "capture.json", "error.txt", ".modules"
_UNUSUAL = re.compile(r"[^\w.-]+")
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE")
_CONFIGURATION = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_use_shardy_partitioner",
)


@frozen(eq=False)
class Signature:
    """A function for one structure and type of its arguments: the module that runs for them."""

    program: Program
    """The module; its types are those of the arrays that it takes."""
    is_taken: tuple[bool, ...]
    """Which leaves of the arguments the module takes: JAX drops those that nothing uses."""
    is_donated: tuple[bool, ...]
    """Which leaves of the arguments a call may overwrite."""
    names: tuple[str, ...]
    """What the leaves of the arguments are called."""
    before: bytes
    """The text of the module."""
    after: bytes | None
    """Its text after optimization; None where the device does not tell it."""
    facts: Mapping[str, Any]
    """What is known of all its calls."""


@frozen(eq=False)
class Call:
    """A call of a jitted function."""

    jitted: Any
    number: int
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    signature: Signature | None = None
    """None before it is prepared, and where that fails."""
    leaves: tuple[Any, ...] = ()
    """The leaves of its arguments that are not static; copies of those that it may overwrite."""
    problem: Exception | None = None
    """Why it could not be prepared."""

    @property
    def name(self) -> str:
        """The name of the function."""
        return getattr(self.jitted, "__name__", "function")

    def __str__(self) -> str:
        return f"call {self.number} of {self.name}"


class Captures:
    """The folder into which calls are written, and how much it may take."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        if path.exists() and not path.is_dir():
            raise InputError(f"{str(path)!r} is a file; hx.capture keeps calls in a folder")
        self._path, self._max_bytes = path, max_bytes
        self._taken: int | None = None
        self._signatures: dict[Any, Signature] = {}
        self._has_warned = False
        self._lock = threading.Lock()

    def prepared(self, call: Call, *, is_over: bool = False) -> Call:
        """A call with its signature and leaves; `is_over` where it has run already, and nothing can be copied."""
        try:
            signature, leaves = self._signature(call)
            if not is_over:
                pairs = zip(leaves, signature.is_donated, strict=True)
                leaves = [_copy(leaf) if is_donated else leaf for leaf, is_donated in pairs]
        except Exception as error:
            return attrs.evolve(call, problem=error)
        return attrs.evolve(call, signature=signature, leaves=tuple(leaves))

    def keep(self, call: Call, result: Any, *, on_exception: bool) -> None:
        """Write the golden of a prepared call that has run, and wait for its result."""
        import jax

        try:
            if call.signature is None:
                self._note(call, call.problem)
                return
            arrays = call.signature.program.arrays(result)
        except jax.errors.JaxRuntimeError as error:  # It fails where its result is waited for.
            if on_exception:
                self.keep_failed(call, error)
            return
        except Exception as error:
            self._note(call, error)
            return
        try:
            self._write(call, call.signature, arrays)
        except Exception as error:
            self._note(call, error)

    def keep_failed(self, call: Call, error: Exception) -> None:
        """Write what a prepared call was to compute, and why it failed; nothing where JAX has refused to trace it."""
        if call.signature is None:
            return
        try:
            self._write_failed(call, call.signature, error)
        except Exception as problem:
            self._note(call, problem)

    def _write(self, call: Call, signature: Signature, arrays: Sequence[Array]) -> None:
        inputs = _inputs(call, signature)
        expected = _as_result(signature.program.lowered, arrays)
        golden = _golden(self._place(call, SUFFIX), call, signature)
        self._require_room(signature, [*arrays_of((inputs, expected))])
        with new_golden(golden, [inputs], expected) as folder:
            self._add(call, signature, folder, (MODULE, OPTIMIZED))
        self._count(golden.folder)

    def _write_failed(self, call: Call, signature: Signature, error: Exception) -> None:
        gone = [name for name, leaf in zip(signature.names, call.leaves, strict=True) if _is_deleted(leaf)]
        text = "".join(traceback.format_exception_only(error))
        if gone:
            text += f"\nIts inputs are not kept: it was not one to be copied, and had donated {', '.join(gone)}.\n"
        inputs = () if gone else _inputs(call, signature)
        self._require_room(signature, arrays_of(inputs))
        target = self._place(call, ".failed")
        with whole_folder(target) as folder:
            if not gone:
                literals.save(folder / "module.inputs.npz", inputs)
            (folder / ERROR).write_text(text, encoding="utf-8")
            self._add(call, signature, folder, ("module.before.hlo", "module.after.hlo"))
        self._count(target)

    def _signature(self, call: Call) -> tuple[Signature, list[Any]]:
        """The signature of a call, and its leaves that are not static."""
        traced = call.jitted.trace(*call.arguments, **call.keywords)
        infos = _infos(traced)
        leaves = _leaves(call, len(infos))
        key = (traced.jaxpr, tuple(getattr(leaf, "sharding", None) for leaf in leaves))
        if key not in self._signatures:
            self._signatures[key] = _lower(traced, infos)
        return self._signatures[key], leaves

    def _place(self, call: Call, suffix: str) -> Path:
        """The folder of a call, which no other call of any process has."""
        name = _UNUSUAL.sub("_", call.name)[:80]
        return self._path / f"{name}-{call.number:06d}-{os.getpid()}-{secrets.token_hex(3)}{suffix}"

    def _require_room(self, signature: Signature, arrays: Iterable[Array]) -> None:
        """InputError or ResourceError where a call would take more than the folder, or the disk, may."""
        with self._lock:
            if self._taken is None:
                self._taken = _bytes_in(self._path)
        needed = sum(array.nbytes for array in arrays)
        texts = [text for text in (signature.before, signature.after) if text is not None]
        needed += sum(len(text) for text in texts if not self._shared(text).exists())
        left = max(0, self._max_bytes - self._taken)
        require_room(self._path, needed, left, "its arrays and new modules", "give a larger max_bytes")

    def _add(self, call: Call, signature: Signature, folder: Path, names: tuple[str, str]) -> None:
        """Add the texts of the modules, and what is known of the call, to its folder."""
        for text, name in zip((signature.before, signature.after), names, strict=True):
            if text is not None:
                self._link(text, folder / name)
        record = {"function": _qualified(call.jitted), "call": call.number, **signature.facts}
        (folder / CAPTURE).write_text(json.dumps(record, indent=2, default=str) + "\n", encoding="utf-8")

    def _link(self, text: bytes, path: Path) -> None:
        """A link to the only file that has the text, which nobody may write to; or a copy where there are no links."""
        shared = self._shared(text)
        if not shared.exists():
            shared.parent.mkdir(parents=True, exist_ok=True)
            with open_atomically(shared) as file:
                file.write(text)
            shared.chmod(0o444)
            self._count(shared)
        link_or_copy(shared, path)

    def _shared(self, text: bytes) -> Path:
        return self._path / MODULES / f"{text_hash(text)}.hlo"

    def _count(self, path: Path) -> None:
        """Add what has been written, but for links to modules."""
        files = [path] if path.is_file() else [file for file in path.iterdir() if file.suffix != ".hlo"]
        with self._lock:
            self._taken = (self._taken or 0) + sum(file.stat().st_size for file in files)

    def _note(self, call: Call, error: Exception | None) -> None:
        """Say what was not kept, in a line of a file, and the first time in a warning; the program goes on."""
        reason = str(error) if isinstance(error, HloError) else f"{type(error).__name__}: {error}"
        path = self._path / f"not-kept-{os.getpid()}.txt"
        if not self._has_warned:
            self._has_warned = True
            warn(f"{call} is not kept: {reason}. {str(path)!r} lists all calls that are not")
        # Where this cannot be written, the warning has said it.
        with suppress(OSError):
            self._path.mkdir(parents=True, exist_ok=True)
            with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{call}: {' '.join(reason.split())}\n")


def _lower(traced: Any, infos: Sequence[Any]) -> Signature:
    program = lower(traced)
    lowered = traced.lower()
    compiled = lowered.compile()
    # JAX has no sharding for what it drops.
    is_taken = tuple(one is not None for one in lowered.in_tree.flatten_up_to(compiled.input_shardings))
    own, others = program.in_types[: len(infos)], program.in_types[len(infos) :]
    program = attrs.evolve(program, in_types=(*compress(own, is_taken), *others))
    if program.written:
        raise InputError(f"{program.lowered.name} writes to mutable arrays, of which hx.capture keeps no calls")
    arrays = sum(shape.is_array for shape in flat_shapes(*program.lowered.entry.parameter_shapes))
    if arrays != len(program.in_types):
        raise InputError(f"{program.lowered.name} takes {arrays} arrays, but its calls have {len(program.in_types)}")
    names, is_donated = tuple(_names(traced)), tuple(bool(info.donated) for info in infos)
    facts = {
        **_facts(program.lowered, compiled),
        "inputs": list(compress(names, is_taken)),
        "donated": list(compress(names, is_donated)),
    }
    if program.module is not program.lowered:
        facts["note"] = "it calls back Python functions of the program, without which hloexec does not run it"
    return Signature(program, is_taken, is_donated, names, module_text(program.lowered), _text_after(compiled), facts)


def _text_after(compiled: Any) -> bytes | None:
    try:
        return module_text(from_jax(compiled))
    except HloError:
        return None


def _qualified(function: Any) -> str:
    """Its name with those of its module and class."""
    module, name = (getattr(function, attribute, "") for attribute in ("__module__", "__qualname__"))
    return f"{module}.{name}".strip(".")


def _infos(traced: Any) -> list[Any]:
    """What JAX says of the leaves of arguments that are not static: whether each is donated."""
    import jax

    infos: list[Any] = jax.tree.leaves(traced.args_info, is_leaf=_is_info)
    return infos


def _is_info(node: Any) -> bool:
    return hasattr(node, "donated")


def _names(traced: Any) -> Iterator[str]:
    """What leaves of arguments are called: the number or the name of the argument, and the way from there."""
    from jax.tree_util import keystr, tree_flatten_with_path

    for (_, root, *within), _ in tree_flatten_with_path(traced.args_info, is_leaf=_is_info)[0]:
        yield f"{getattr(root, 'key', getattr(root, 'idx', root))}{keystr(tuple(within))}"


def _leaves(call: Call, count: int) -> list[Any]:
    """The leaves of a call's arguments that are not static, of which there are so many."""
    import jax

    leaves: list[Any] = jax.tree.leaves((call.arguments, call.keywords))
    if len(leaves) != count:
        options = internals.unjitted(call.jitted)[1]
        numbers, names = set(options["static_argnums"]), set(options["static_argnames"])
        arguments = tuple(value for number, value in enumerate(call.arguments) if number not in numbers)
        leaves = jax.tree.leaves((arguments, {name: call.keywords[name] for name in call.keywords.keys() - names}))
    if len(leaves) != count:
        raise InputError(f"{call} has {len(leaves)} arrays, but JAX has traced it with {count}")
    return leaves


def _copy(leaf: Any) -> Any:
    import jax

    return leaf.copy() if isinstance(leaf, jax.Array) else leaf


def _is_deleted(leaf: Any) -> bool:
    import jax

    return isinstance(leaf, jax.Array) and leaf.is_deleted()


def _inputs(call: Call, signature: Signature) -> tuple[Value, ...]:
    """What the module takes; waits for it."""
    return signature.program.inputs(list(compress(call.leaves, signature.is_taken)))


def _as_result(module: Module, arrays: Sequence[Array]) -> Value:
    """The module's result, with tokens where it has some."""
    shape = module.entry.result_shape
    if not isinstance(shape, TupleShape):
        return arrays[0]
    left = iter(arrays)
    return tuple(next(left) if leaf.is_array else TOKEN for leaf in flat_shapes(shape))


def _golden(folder: Path, call: Call, signature: Signature) -> Golden:
    module = signature.program.lowered
    topology = topology_of(module)
    return Golden(
        folder,
        module.name,
        text_hash(signature.before),
        replicas=topology.replicas,
        partitions=topology.partitions,
        results_per_device=1,
        inputs_source=str(call),
        expected_source=f"JAX on {signature.facts['device_kind']}",
        versions=versions(),
    )


def _facts(module: Module, compiled: Any) -> dict[str, Any]:
    """What a reader wants to know of where a function runs."""
    import jax
    import jaxlib

    shardings = jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))
    devices = [device for sharding in shardings for device in sharding.device_set] or jax.devices()
    return {
        "process": jax.process_index(),
        "platform": devices[0].platform,
        "platform_version": str(getattr(devices[0].client, "platform_version", "")),
        "device_kind": devices[0].device_kind,
        "device_count": module.replica_count * module.num_partitions,
        "versions": {**versions(), "jax": jax.__version__, "jaxlib": jaxlib.__version__},
        "flags": {name: os.environ[name] for name in _FLAGS if name in os.environ},
        **{name: getattr(jax.config, name) for name in _CONFIGURATION if hasattr(jax.config, name)},
    }


def _bytes_in(folder: Path) -> int:
    """What the files in a folder take, each once whatever names it has."""
    sizes = {}
    for place, _, names in os.walk(folder):
        for name in names:
            # Another process may rename or remove it meanwhile.
            with suppress(OSError):
                status = os.stat(os.path.join(place, name))
                sizes[status.st_dev, status.st_ino] = status.st_size
    return sum(sizes.values())
