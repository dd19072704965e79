"""`hx.capture`: calls of jitted functions, kept as goldens while a program runs.

This file says which calls are kept. One that is not takes some microseconds more, and waits for nothing; of one that
is, `captures` writes the folder.
"""

from __future__ import annotations

import functools
import itertools
import operator
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

from hloexec.core.arguments import byte_count, require_flags, require_integer, require_path
from hloexec.errors import InputError
from hloexec.jax import internals
from hloexec.jax.captures import Call, Captures
from hloexec.jax.lowering import is_traced


class capture:  # noqa: N801 - it is called as a function
    """Keep calls of jitted functions in `folder`: as a decorator those of one function, as a context all within.

        @hx.capture("captured", every=100)
        def step(state, batch): ...

        with hx.capture("captured", every=100): ...

    Of each function, every `every`-th call is kept, counted from 1 (None: none of these), those for which
    `when(result)` is true, and, with `on_exception`, those that fail. The folder takes at most `max_bytes`, a number of
    bytes or a text such as `"2G"`: what is in it already counts. A warning, and a line for each call in
    `not-kept-….txt`, say what was not kept and why. The function runs where it ran before, as fast; only a call that is
    kept waits for its result. What it donates is copied before such a call; with `when`, before each.

    A decorated function is jitted, if it is not yet, with the other `options`, those of `jax.jit`. A context keeps
    calls that its thread makes of functions of `jax.jit`, but for JAX's own. It needs a version of JAX and of Python
    whose inside it knows (`hloexec.jax.internals`): UnsupportedError says so of others. Several processes may write to
    one folder.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every: int | None = 1,
        when: Callable[[Any], Any] | None = None,
        on_exception: bool = True,
        max_bytes: int | str = 1 << 30,
        **options: Any,
    ) -> None:
        require_path("folder", folder)
        if every is not None:
            require_integer("every", every, 1)
        require_flags(on_exception=on_exception)
        if when is not None and not callable(when):
            raise InputError("when must be a function of the result of a call, which says whether to keep the call")
        internals.jax_version()
        self._every, self._when, self._on_exception, self._options = every, when, on_exception, options
        self._captures = Captures(Path(folder), byte_count("max_bytes", max_bytes))
        self._functions: WeakKeyDictionary[Any, _Function] = WeakKeyDictionary()
        self._entered: list[AbstractContextManager[None]] = []

    def __call__(self, function: Callable[..., Any]) -> Captured:
        """The function, of which calls are kept."""
        import jax

        if not callable(function):
            raise InputError(f"hx.capture keeps calls of a function of JAX, not of {type(function).__name__}")
        is_jitted = hasattr(function, "lower") and hasattr(function, "trace")
        jitted = function if is_jitted and not self._options else jax.jit(function, **self._options)
        return Captured(jitted, functools.partial(self._run, self._function(), operator.call, jitted))

    def __enter__(self) -> capture:
        context = internals.calls_seen(self._run_seen)
        context.__enter__()
        self._entered.append(context)
        return self

    def __exit__(self, *raised: Any) -> None:
        self._entered.pop().__exit__(*raised)

    def _function(self) -> _Function:
        return _Function(itertools.count(1), sys.maxsize if self._every is None else self._every)

    def _run_seen(self, run: internals.Run, jitted: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        function = self._functions.get(jitted)
        if function is None:
            function = self._functions.setdefault(jitted, self._function())
        return self._run(function, run, jitted, arguments, keywords)

    def _run(
        self,
        function: _Function,
        run: internals.Run,
        jitted: Any,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> Any:
        """Call a jitted function, and keep the call if it is one of those."""
        number = next(function.numbers)
        if (number >= function.due or self._when is not None) and not _is_traced(arguments, keywords):
            return self._keep(function, run, Call(jitted, number, arguments, keywords))
        try:
            return run(jitted, *arguments, **keywords)
        except Exception as error:
            if self._on_exception and not _is_traced(arguments, keywords):
                call = Call(jitted, number, arguments, keywords)
                self._captures.keep_failed(self._captures.prepared(call, is_over=True), error)
            raise

    def _keep(self, function: _Function, run: internals.Run, call: Call) -> Any:
        """Make a call that is kept if it is due, or if its result says so."""
        is_due = call.number >= function.due
        if is_due and self._every is not None:
            function.due = call.number - call.number % self._every + self._every
        call = self._captures.prepared(call)
        try:
            result = run(call.jitted, *call.arguments, **call.keywords)
        except Exception as error:
            if self._on_exception:
                self._captures.keep_failed(call, error)
            raise
        if is_due or (self._when is not None and self._when(result)):
            self._captures.keep(call, result, on_exception=self._on_exception)
        return result


class Captured:
    """A jitted function of which calls are kept; `capture` makes it. It is traced and lowered as the function is."""

    def __init__(self, jitted: Any, run: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> None:
        functools.update_wrapper(self, jitted)
        self._jitted, self._run = jitted, run

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function, and keep the call if it is one of those."""
        return self._run(arguments, keywords)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_jitted":
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        return getattr(self._jitted, name)


class _Function:
    """The calls of one function: their numbers, and from which number on the next is kept."""

    __slots__ = ("due", "numbers")

    def __init__(self, numbers: itertools.count[int], due: int) -> None:
        self.numbers, self.due = numbers, due


def _is_traced(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    """Whether a call is a part of another function, which JAX traces."""
    import jax

    return is_traced(jax.tree.leaves((arguments, keywords)))
