"""What `hloexec.jax` takes from inside JAX, where its public API has no way to it: all of it stands here.

`VERSIONS` are those that it was tried with. With others, a function that needs the inside says so where it fails to
find what it looks for; everything else stands on the public API.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

from hloexec.errors import UnsupportedError

VERSIONS = ("0.6.0", "0.12.0.1")
"""The oldest and the newest version that these were tried with."""

CALLBACKS = frozenset(
    f"xla_{kind}python_{platform}_callback"
    for kind in ("", "ffi_", "ffi_partitioned_", "buffer_")
    for platform in ("cpu", "gpu")
)
"""What calls back Python functions of the process that made a module."""
PARTITIONED = "CustomSPMDPartitioning"
"""What calls a function with a partitioning of its own, on several devices."""

_OPTIONS = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")


def jax_version() -> str:
    """The version of JAX; UnsupportedError without it."""
    try:
        import jax
    except ImportError as error:
        raise UnsupportedError(f"hloexec.jax needs JAX ({error}): install hloexec[jax]") from error
    return str(jax.__version__)


def missing(subject: str, error: Exception) -> UnsupportedError:
    """The error where JAX has not, or no longer, what is looked for inside of it."""
    return UnsupportedError(
        f"{subject} cannot be reached inside JAX {jax_version()} ({type(error).__name__}: {error}); it was tried with "
        f"{VERSIONS[0]} to {VERSIONS[1]}"
    )


def callbacks_of(lowered: Any) -> Sequence[Callable[..., Any]]:
    """The Python functions that a lowered function calls back, by the numbers that its text has for them."""
    try:
        return tuple(lowered._lowering.compile_args["host_callbacks"])
    except (AttributeError, KeyError, TypeError) as error:
        raise missing("the callbacks of a function", error) from error


def key_implementation(dtype: Any) -> str:
    """The name of the generator that typed keys of an element type are for, as `jax.random.wrap_key_data` takes it."""
    try:
        return str(dtype._impl.name)
    except AttributeError as error:
        raise missing("the generator of typed keys", error) from error


def unjitted(function: Any) -> tuple[Any, dict[str, Any]]:
    """What `jax.jit` was given: the function and its options; a function that is not jitted, with none."""
    import jax

    if not isinstance(function, type(jax.jit(len))):
        return function, {}
    try:
        info = function._jit_info
        options = {name: getattr(info, name) for name in _OPTIONS}
        for name in ("in_shardings", "out_shardings"):
            leaves, tree = getattr(info, f"{name}_leaves"), getattr(info, f"{name}_treedef")
            options[name] = jax.tree.unflatten(tree, leaves)
        if compiler_options := dict(getattr(info, "compiler_options_kvs", ())):
            options["compiler_options"] = compiler_options
        return function.__wrapped__, options
    except AttributeError as error:
        raise missing("the options of a jitted function", error) from error


def lower_unpartitioned(traced: Any) -> Any:
    """Lower a function with calls that have a partitioning of their own as what they compute on whole arrays."""
    try:
        from jax._src.custom_partitioning import custom_partitioning_p
        from jax._src.interpreters.mlir import LoweringParameters
    except ImportError as error:
        raise missing("custom_partitioning", error) from error
    from jax.extend.core import jaxpr_as_fun
    from jax.interpreters.mlir import lower_fun

    def inlined(context: Any, *values: Any, call: Any, **_: Any) -> Any:
        return lower_fun(jaxpr_as_fun(call), multiple_results=True)(context, *values)

    rules = ((custom_partitioning_p, inlined),)
    return traced.lower(_private_parameters=LoweringParameters(override_lowering_rules=rules))


@contextmanager
def shard_maps_over(mesh: Any) -> Iterator[None]:
    """Within it, each shard_map that is traced is one over `mesh`, whatever mesh it was written for.

    A function of shard_map keeps the mesh that its checks return, so that these must return its own.
    """
    try:
        primitive, checks = _shard_map_internals()
    except ImportError as error:
        raise missing("the mesh of shard_map", error) from error
    bind = primitive.bind
    check = getattr(checks, "_shmap_checks", None)

    def bind_over(*values: Any, **parameters: Any) -> Any:
        return bind(*values, **{**parameters, "mesh": mesh})

    def check_over(own: Any, *parameters: Any, **keywords: Any) -> Any:
        return (mesh if own is None else own, *check(mesh, *parameters, **keywords)[1:])  # type: ignore[misc]

    primitive.bind = bind_over
    if check is not None:
        checks._shmap_checks = check_over
    try:
        yield
    finally:
        del primitive.bind
        if check is not None:
            checks._shmap_checks = check


def _shard_map_internals() -> tuple[Any, Any]:
    """The primitive, which is given the mesh, and the module of what checks the mesh before."""
    try:
        from jax._src import shard_map
    except ImportError:  # before JAX 0.6.1, which checks nothing
        from jax.experimental import shard_map
    return shard_map.shard_map_p, shard_map


def is_reference(of_type: Any) -> bool:
    """Whether a type is that of a mutable array."""
    return hasattr(of_type, "inner_aval")


def written_by(lowered: Any) -> tuple[int, ...]:
    """The parameters of a lowered function, mutable arrays, that its last results are written to."""
    try:
        return tuple(number for number in lowered._lowering.compile_args["mut"].out_mut if number is not None)
    except (AttributeError, KeyError, TypeError) as error:
        raise missing("which mutable arrays a function writes", error) from error


def weakly_typed(array: Any) -> Any:
    """The array, with a type that gives way to that of what it meets, as if made of numbers of Python."""
    try:
        from jax._src.lax.lax import _convert_element_type
    except ImportError as error:
        raise missing("weak types", error) from error
    return _convert_element_type(array, weak_type=True)


Run: TypeAlias = Callable[..., Any]
"""Runs a function: it takes the function and its arguments."""
Watch: TypeAlias = Callable[[Run, Any, tuple[Any, ...], dict[str, Any]], Any]
"""Takes what runs a function that is called, the function, and the arguments; returns what the call is to return."""

_watch: ContextVar[Watch | None] = ContextVar("_watch", default=None)
_lock = threading.Lock()
_SEEN = object()
_TAKES_CALLS_DIRECTLY = 1 << 11
"""CPython's flag Py_TPFLAGS_HAVE_VECTORCALL: calls of an object go past `__call__` of its type."""
_FLAGS_AT = 21 * ctypes.sizeof(ctypes.c_void_p)
"""Where `tp_flags` is in CPython's PyTypeObject."""


@contextmanager
def calls_seen(watch: Watch) -> Iterator[None]:
    """Have `watch` see each call of a jitted function within, and make it: calls of this thread and of tasks that it
    begins, but not those that such a call makes, those of functions that are JAX's own, or those within another
    `calls_seen`.

    JAX runs what it has compiled before from C++, where nothing of Python's is asked; so this replaces `__call__` of
    the type of its jitted functions, as long as anything is watched. UnsupportedError where that has no effect.
    """
    calls = _Calls.of_jax()
    with _lock:
        calls.replace()
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)
        with _lock:
            calls.restore()


class _Calls:
    """`__call__` of the type of JAX's jitted functions: what it is, and how many want it replaced."""

    def __init__(self) -> None:
        import jax

        self._probe = jax.jit(lambda: None)
        self._type = type(self._probe)
        try:
            self._original = self._type.__dict__["__call__"]
            self._flags = ctypes.c_ulong.from_address(id(self._type) + _FLAGS_AT)
            if self._flags.value != self._type.__flags__:
                raise TypeError("flags of types are elsewhere")
        except (KeyError, TypeError) as error:
            raise missing("calls of jitted functions", error) from error
        self._was_direct = self._flags.value & _TAKES_CALLS_DIRECTLY
        self._users = 0

    @staticmethod
    @functools.cache
    def of_jax() -> _Calls:
        """The only one."""
        return _Calls()

    def replace(self) -> None:
        """Let watches see calls; UnsupportedError where they do not."""
        self._users += 1
        if self._users > 1:
            return
        original, probe = self._original, self._probe

        def call(function: Any, /, *arguments: Any, **keywords: Any) -> Any:
            if function is probe:
                return _SEEN
            watch = _watch.get()
            if watch is None or _is_of_jax(function):
                return original(function, *arguments, **keywords)
            token = _watch.set(None)
            try:
                return watch(original, function, arguments, keywords)
            finally:
                _watch.reset(token)

        try:
            self._type.__call__ = call
            # From Python 3.12 on, the line above has cleared the flag.
            self._flags.value &= ~_TAKES_CALLS_DIRECTLY
            if probe() is not _SEEN:
                raise TypeError("they do not reach __call__")
        except TypeError as error:
            self.restore()
            raise missing("calls of jitted functions", error) from error

    def restore(self) -> None:
        """Where nobody else wants to see calls, all is as it was."""
        self._users -= 1
        if not self._users:
            self._type.__call__ = self._original
            self._flags.value |= self._was_direct


def _is_of_jax(function: Any) -> bool:
    """Whether JAX has made a jitted function for its own use: an operation such as jnp.sin, or what runs the inside of
    another function, which wraps none."""
    return not hasattr(function, "__wrapped__") or str(function.__module__).startswith("jax.")
