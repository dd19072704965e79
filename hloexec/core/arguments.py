"""Checks of the arguments of public functions. `InputError` says which argument is invalid, what was given, and what is
expected.

Arguments are checked once, where they enter; functions behind the public ones rely on that.
"""

from __future__ import annotations

import inspect
import math
import os
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import Computation, Module
from hloexec.core.ir.metadata import ParameterNames
from hloexec.core.wording import argument, listing, natural_number, quoted, suggestion
from hloexec.errors import InputError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_BYTES = re.compile(r"(\d{1,19}(?:\.\d{1,19})?) *([KMGT]?)(?:i?B)?", re.IGNORECASE)


def described(value: object) -> str:
    """What was given, in words."""
    if type(value) is np.ndarray or isinstance(value, (np.memmap, np.generic)):
        try:
            name = element_type_of(value.dtype).name
        except KeyError:
            return f"an array of type {value.dtype} and shape {list(value.shape)}, which is not an HLO element type,"
        return f"{name}[{','.join(map(str, value.shape))}]"
    if value is None:
        return "None"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)} values"
    if isinstance(value, (bool, int, float, complex, str)):
        return f"the Python {type(value).__name__} {quoted(value)}"
    kind = type(value)
    # Since Python 3.13, a path is a pathlib._local.PosixPath.
    home = [part for part in kind.__module__.split(".") if not part.startswith("_")]
    if not home or home[0] in ("builtins", "hloexec"):
        return f"a {kind.__qualname__}"
    return f"a {'.'.join(home)}.{kind.__qualname__}"


def wrong(name: str, expected: str, value: object, advice: str = "") -> InputError:
    """The error for an argument that is not what it must be."""
    return InputError(f"{argument(name)} must be {expected}, but {described(value)} was given{advice and '; '}{advice}")


def require_module(value: object, name: str = "module") -> None:
    """InputError unless it is a module."""
    if isinstance(value, Module):
        return
    advice = "hloexec.load(path) reads one from a file, hloexec.parse(text) from HLO text"
    raise wrong(name, "a Module", value, jax_advice(value) or advice)


def jax_advice(value: object) -> str:
    """What makes a module of a function of JAX, or of a stage or an export of one; empty for anything else."""
    kind = type(value)
    is_of_jax = kind.__module__.partition(".")[0] in ("jax", "jaxlib") and not hasattr(value, "dtype")
    if not is_of_jax and not inspect.isroutine(value):
        return ""
    is_function = callable(value) and not hasattr(value, "out_tree")
    return f"hloexec.from_jax{'(function, *arguments)' if is_function else ''} makes a module of it"


def parameter_numbers(computation: Computation, keys: Iterable[object]) -> list[int]:
    """The numbers of the parameters that keys are for, each a number, a name, or the path that a name stands for.

    InputError for a key that is none of them, or may mean several.
    """
    numbers = {parameter.name: number for number, parameter in enumerate(computation.parameters)}
    names: ParameterNames | None = None
    parameters = []
    for key in keys:
        number = key
        near = ""
        if isinstance(key, str):
            name = key.removeprefix("%")
            number = numbers[name] if name in numbers else natural_number(name)
            if number is None:
                names = ParameterNames(computation.parameters) if names is None else names
                meant = names.whole(name)
                if len(meant) > 1:
                    raise InputError(f"{quoted(key)} may mean {names.listed(meant)}; give the number")
                number, near = (meant[0], "") if meant else (None, names.near(name))
        if not isinstance(number, (int, np.integer)) or isinstance(number, bool) or not 0 <= number < len(numbers):
            listed = f", numbered from 0 and named {listing(numbers, 20)}" if numbers else ""
            raise InputError(f"{computation.name} has no parameter {quoted(key)}, but {len(numbers)}{listed}{near}")
        parameters.append(int(number))
    return parameters


def named_computation(module: Module, name: str) -> Computation:
    """The computation of a name; InputError where there is none."""
    require_text("computation", name, "the name of a computation")
    computation = module.by_name.get(name.removeprefix("%"))
    if computation is None:
        near = suggestion(name, module.by_name, 3) or f"; there are {listing(module.by_name, 20)}"
        raise InputError(f"module {module.name} has no computation {name}{near}")
    return computation


def require_integer(name: str, value: object, least: int) -> None:
    """InputError unless it is an integer of Python's or NumPy's, and at least `least`."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise wrong(name, "an integer", value)
    if value < least:
        bound = f"be at least {least}" if least else "not be negative"
        raise InputError(f"{argument(name)} must {bound}, but is {value}")


def require_seed(value: object) -> None:
    """InputError unless it is a seed of random numbers."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not 0 <= value < 1 << 64:
        raise InputError(f"{argument('seed')} must be an integer from 0 to 2**64 - 1, but is {quoted(value)}")


def require_number(name: str, value: object, most: float = math.inf) -> None:
    """InputError unless it is a real number from 0 to `most`, which may be infinity."""
    if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
        raise wrong(name, "a number", value)
    if not 0 <= value <= most:
        bound = "not be negative or NaN" if most == math.inf else f"lie between 0 and {most:g}"
        raise InputError(f"{argument(name)} must {bound}, but is {value}")


def require_flags(**flags: object) -> None:
    """InputError unless all are True or False."""
    for name, value in flags.items():
        if not isinstance(value, (bool, np.bool_)):
            raise wrong(name, "True or False", value)


def require_text(name: str, value: object, subject: str = "a str", advice: str = "") -> None:
    """InputError unless it is a str."""
    if not isinstance(value, str):
        raise wrong(name, subject, value, jax_advice(value) or advice)


def require_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """InputError unless it is one of some words."""
    if not isinstance(value, str) or value not in choices:
        spelled = quoted(value, 200) if isinstance(value, str) else described(value)
        raise InputError(f"{argument(name)} must be one of {', '.join(choices)}, but is {spelled}")


def require_path(name: str, value: object) -> None:
    """InputError unless it is the path of a file or folder."""
    if not isinstance(value, (str, os.PathLike)):
        raise wrong(name, "a path, a str or an os.PathLike", value, jax_advice(value))


def listed(name: str, value: object, subject: str) -> list[Any]:
    """The items of a list or another iterable; InputError for anything else, including a str."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise wrong(name, f"a list of {subject}", value, "write it as [...], even where there is only one")
    return list(value)


def texts(name: str, value: object) -> tuple[str, ...]:
    """The words or patterns of a list."""
    words = tuple(listed(name, value, "str"))
    for entry in words:
        require_text(f"each of {name}", entry)
    return words


def byte_count(name: str, value: object) -> int:
    """A number of bytes: an integer, or a text such as `1500000`, `500M` or `8GiB` (K, M, G, T: powers of 1024)."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        if value < 0:
            raise InputError(f"{argument(name)} must not be negative, but is {value}")
        return int(value)
    match = _BYTES.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise wrong(name, "a number of bytes, such as 500_000_000, '500M' or '8G'", value)
    return int(float(match[1]) * _UNITS[match[2].upper()])


def shard_of(shard: object) -> tuple[int, int]:
    """The number of a part, from 0 on, and how many there are, of `I/N`; InputError where it is none."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", shard) if isinstance(shard, str) else None
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise InputError(f"{argument('shard')} must be I/N with I from 1 to N, such as 3/8, not {shard!r}")
    return int(match[1]) - 1, int(match[2])
