"""The registry of MLIR operations: one entry each, which is bound to an operation of a kernel before it runs.

`bind(operation, scope)` gives the kernel: a function from the values of the operands to that of the result, or a tuple
where there are several. Vectors are arrays; scalars are Python's integers and booleans, and arrays without dimensions
for floats; memrefs are `memory.Ref`. Operations that touch memory, control flow or the grid take the machine first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any, Protocol

from hloexec.core.structs import frozen
from hloexec.ops.library_calls.mosaic.ir import Operation, Region
from hloexec.ops.policies.policy import NumericsPolicy

Kernel = Callable[..., Any]


class Block(Protocol):
    """A region that is ready to run: with values for its arguments it gives those of what ends it."""

    def __call__(self, machine: Any, *arguments: Any) -> tuple[Any, ...]: ...


class Scope(Protocol):
    """What binding may ask for."""

    numerics: NumericsPolicy

    def block(self, region: Region) -> Block:
        """A region of the operation that is bound."""

    def function(self, name: str) -> Block:
        """A function of the kernel, by its symbol."""


Bind = Callable[[Operation, Scope], Kernel]
Refusal = Callable[[Operation], "str | None"]


@frozen(eq=False)
class Entry:
    """What hloexec knows of one MLIR operation."""

    name: str
    bind: Bind
    is_machine: bool
    """Whether its kernels take the machine before the operands."""
    refuses: Refusal | None
    """Why one cannot be run, as a clause; None where it can."""
    documentation: str


class Registry:
    """The operations of one compiler's kernels; its families are modules, imported when they are first asked for."""

    def __init__(self, package: str, families: str, shared: Callable[[], Mapping[str, Entry]] = dict) -> None:
        self._modules = [f"{package}.{family}" for family in families.split()]
        self._shared = shared
        self._entries: dict[str, Entry] = {}

    def operation(
        self, *names: str, is_machine: bool = False, refuses: Refusal | None = None
    ) -> Callable[[Bind], Bind]:
        """Register the decorated function as what binds operations of these names; its docstring is the definition."""

        def decorate(bind: Bind) -> Bind:
            for name in names:
                self.add(name, bind, bind.__doc__ or "", is_machine=is_machine, refuses=refuses)
            return bind

        return decorate

    def add(
        self, name: str, bind: Bind, documentation: str, *, is_machine: bool = False, refuses: Refusal | None = None
    ) -> None:
        """Add one entry, for families whose entries are rows of a table."""
        if name in self._entries:
            raise ValueError(f"{name} has two entries")
        self._entries[name] = Entry(name, bind, is_machine, refuses, inspect.cleandoc(documentation))

    def own(self) -> Mapping[str, Entry]:
        """The entries that are of this compiler's kernels alone, by name."""
        for module in self._modules:
            import_module(module)
        return self._entries

    @cached_property
    def all(self) -> Mapping[str, Entry]:
        """All entries by name, those that it shares with other compilers included."""
        return {**self._shared(), **self.own()}


MOSAIC = Registry(
    "hloexec.ops.library_calls.mosaic.operations",
    "arithmetic vectors lanes products accesses transfers control",
)
operation, add_operation, operations = MOSAIC.operation, MOSAIC.add, MOSAIC.own
