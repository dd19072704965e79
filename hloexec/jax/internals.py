"""What `hloexec.jax` takes from inside JAX, where its public API has no way to it: all of it stands here.

`VERSIONS` are those that it was tried with. With others, a function that needs the inside says so where it fails to
find what it looks for; everything else stands on the public API.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

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

_ASKED = ("_python_pjit_helper", "_trace_for_jit", "_infer_params")
"""What Python is asked first for the result of a jitted function, in one version of JAX or another."""
_NO_JAXPR = SimpleNamespace(effects=(), consts=())


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


@contextmanager
def calls_seen(call: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> Iterator[None]:
    """Within it, calls of jitted functions are what `call(function, arguments, keywords)` returns, but for those of
    JAX's own and those that are made while one is.

    C++ calls what is compiled for a jitted function as soon as Python has told what that is. Here it is not told, and
    asks Python each time; `call` is given the same function once more, with a memory of its own for what is compiled.
    """
    try:
        from jax._src import pjit

        seen = _Calls(pjit, call)
    except (ImportError, AttributeError, StopIteration) as error:
        raise missing("calls of jitted functions", error) from error
    try:
        for name, function in seen.replacements.items():
            setattr(pjit, name, function)
        seen.forget()
        yield
    finally:
        for name, function in seen.originals.items():
            setattr(pjit, name, function)
        seen.forget()


class _Calls:
    """What takes the place of functions of `jax._src.pjit` while calls are seen."""

    def __init__(self, pjit: Any, call: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        import jax

        self._pjit, self._call = pjit, call
        self._state = threading.local()
        self._functions: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
        self._caches = (pjit._cpp_pjit_cache_fun_only, pjit._cpp_pjit_cache_explicit_attributes)
        self._cache = getattr(pjit, "make_jit_cpp_cache", type(self._caches[0]))(capacity=8192)
        names = inspect.unwrap(jax.jit(len)._cache_miss).__code__.co_names
        self._asked = next(name for name in _ASKED if name in names)
        self.replacements = {self._asked: self._answer, "_get_fastpath_data": self._fast_path}
        if "_run_python_pjit" in names:
            self.replacements["_run_python_pjit"] = self._run
        self.originals = {name: getattr(pjit, name) for name in (*self.replacements, "_get_cpp_global_cache")}

    def forget(self) -> None:
        """Have C++ ask again."""
        for cache in self._caches:
            cache.clear()

    def _answer(self, function: Any, info: Any, *arguments: Any, **keywords: Any) -> Any:
        """The first that Python is asked: in some versions for the result, in others for what `_run` is given."""
        if getattr(self._state, "is_busy", False) or not _is_call_of(function, sys._getframe(1)):
            return self.originals[self._asked](function, info, *arguments, **keywords)
        if self._asked == "_python_pjit_helper":
            return self._result(function, info, arguments, keywords)
        return self._result(function, info, *arguments), None

    def _result(self, function: Any, info: Any, arguments: Any, keywords: Any) -> _Answer:
        self._state.is_busy = True
        try:
            result = self._call(self._once_more(function, info), arguments, keywords)
        finally:
            self._state.is_busy = False
        return _Answer((result, None, None, None, _NO_JAXPR, None, None, None))

    def _run(self, parameters: Any, *others: Any) -> Any:
        return (
            parameters if isinstance(parameters, _Answer) else self.originals["_run_python_pjit"](parameters, *others)
        )

    def _fast_path(self, executable: Any, tree: Any, *others: Any) -> Any:
        return None if tree is None else self.originals["_get_fastpath_data"](executable, tree, *others)

    def _once_more(self, function: Any, info: Any) -> Any:
        entry = self._functions.get((id(function), id(info)))
        if entry is None:
            self._pjit._get_cpp_global_cache = lambda *_: self._cache
            try:
                entry = (self._pjit._cpp_pjit(function, info), function, info)
            finally:
                self._pjit._get_cpp_global_cache = self.originals["_get_cpp_global_cache"]
            self._functions[id(function), id(info)] = entry
        return entry[0]


class _Answer(tuple[Any, ...]):
    """What a call of a jitted function has come to, as C++ is told it."""


def _is_call_of(function: Any, caller: Any) -> bool:
    """Whether a program calls its own function, and no other part of JAX looks at one."""
    return caller.f_code.co_name == "cache_miss" and not str(getattr(function, "__module__", "")).startswith("jax.")
