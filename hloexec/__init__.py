"""hloexec: run XLA HLO on NumPy.

    module = hloexec.load("module.txt")
    inputs = hloexec.random_inputs(module)
    output = hloexec.run(module, *inputs)

Names are imported on first use, so that `import hloexec` and the command line start fast.
"""

from __future__ import annotations

import importlib

from hloexec import errors as errors
from hloexec.core.version import __version__ as __version__

TYPE_CHECKING = False  # importing it from typing would take most of the time of `import hloexec`
if TYPE_CHECKING:
    from typing import Any


def _exported(path: str) -> dict[str, str]:
    """The public names, with the modules that have them: what type checkers read in a file, and in those whose names it
    hands on."""
    homes: dict[str, str] = {}
    for line in __spec__.loader.get_data(path).decode().splitlines():
        words = line.split() if " import " in line else ()
        if len(words) == 6 and words[3] == words[5]:
            homes[words[3]] = words[1]
        elif len(words) == 4 and words[3] == "*":
            homes |= _exported(f"{path.rpartition('hloexec')[0]}{words[1].replace('.', '/')}.py")
    return homes


_HOMES = _exported(f"{__file__.removesuffix('c')}i")
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home, last = _HOMES.get(name), name
    if home is None:
        home, last = _registered(name)
    module = importlib.import_module(home)
    value = globals()[name] = getattr(module, last, None) or importlib.import_module(f"{home}.{last}")
    return value


def _registered(name: str) -> tuple[str, str]:
    """The module that has a name of a tool that was registered, and what it is called there."""
    from hloexec.tools.registration import TOOLS

    for tool in TOOLS.values():
        for full_name in tool.names:
            home, _, last = full_name.rpartition(".")
            if last == name:
                return home, last
    raise AttributeError(f"module 'hloexec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
