"""Reading a SPEC, the word for a counterpart."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec

from hloexec.core.arguments import wrong
from hloexec.core.wording import argument, natural_number
from hloexec.errors import InputError, UnsupportedError
from hloexec.ops.policies.policy import POLICIES, NumericsPolicy, numerics_policy
from hloexec.tools.counterparts.answers import Counterpart
from hloexec.tools.counterparts.elsewhere import Elsewhere
from hloexec.tools.counterparts.forms import forms
from hloexec.tools.counterparts.own import PolicyRun, counterpart_of_file

_XLA_CPU = "xla-cpu"
"""The short form of `xla:cpu`; the policy of that name is called `policy:xla-cpu`."""
_POLICY = ("policy", "hloexec")
_WITH_COLON = (*_POLICY, "xla", "python", "call")
_WITHOUT = ("hloexec", "xla", _XLA_CPU)
_MOST_DEVICES = 1024
_WORD = re.compile(r"[a-zA-Z][\w-]*")


def counterpart(against: object) -> Counterpart:
    """What a SPEC stands for, a text or a numerics policy; what is a counterpart already stays as it is.

    - `hloexec:POLICY`, `policy:POLICY` or the bare name of a policy: the module itself, under that policy;
    - `xla:PLATFORM:COUNT`: XLA through jaxlib, on so many devices of any platform that JAX has here; without them, on
      as many as the module is for, of JAX's default platform. `xla-cpu` is short for `xla:cpu`;
    - `python:PATH:PLATFORM`: the same by the Python of another environment, which has jaxlib and NumPy;
    - `call:MODULE:FUNCTION`: a function that is called with the module's text and a list of arrays for each device, and
      returns the outputs: a list of arrays, or one for each device if there are several;
    - the path of a file: another module, which runs on the same inputs; a golden; or arrays.

    XLA and functions run in processes that stay for the next module. What becomes of these is an `Answer`, too, which
    says why it has no result. Raises InputError or UnsupportedError for what is none of these, or cannot be read.
    """
    return counterpart_of(against)


def counterpart_of(
    spec: object, name: str = "against", *, file: str = "MODULE", instead: str = "", is_result: bool = False
) -> Counterpart:
    """The same for an argument of a name, where messages call the file of the module that is compared `file`.

    Where `instead` says what to give in its place, it may be no file; where `is_result`, a snapshot is read for the
    result in it.
    """
    if isinstance(spec, NumericsPolicy):
        return PolicyRun(spec)
    if not isinstance(spec, str):
        if all(hasattr(spec, method) for method in ("require", "run")):
            return spec  # type: ignore[return-value]
        raise wrong(name, forms(may_be_file=not instead), spec)
    kind, _, rest = spec.partition(":")
    if kind in ("xla", _XLA_CPU) and find_spec("jax") is None:
        raise UnsupportedError(f"{argument(name)} {spec} needs jax, which is not installed; install hloexec[jax]")
    try:
        if not names_file(spec):
            read = {"xla": _xla, _XLA_CPU: _xla, "python": _python, "call": _call}.get(kind, _policy)
            return read(spec, rest)
        if instead or not os.path.lexists(spec):
            return PolicyRun(numerics_policy(spec))
    except (InputError, UnsupportedError) as error:
        problem, advice = f"{argument(name)} is {spec!r}, but {error.message}", f"; {instead}" if instead else ""
        if names_file(spec) and not instead:
            problem = f"{argument(name)}: there is no file {spec!r}, and no numerics policy of that name"
        raise InputError(f"{problem}; it must be {forms(may_be_file=not instead)}{advice}") from error
    return counterpart_of_file(spec, file, is_result=is_result)


def names_file(spec: str) -> bool:
    """Whether a SPEC is none of the forms that are no file."""
    kind, colon, _ = spec.partition(":")
    return kind not in (_WITH_COLON if colon else _WITHOUT) and spec not in POLICIES


def _policy(spec: str, rest: str) -> PolicyRun:
    kind = spec.partition(":")[0]
    return PolicyRun(numerics_policy(spec if kind not in _POLICY else rest if kind != spec else "reference"))


def _xla(spec: str, rest: str) -> Elsewhere:
    platform, colon, text = ("cpu", "", "") if spec == _XLA_CPU else rest.partition(":")
    count = natural_number(text)
    if spec != "xla" and not _WORD.fullmatch(platform):
        raise InputError(f"{platform!r} is no platform")
    if colon and not 0 < (count or 0) <= _MOST_DEVICES:
        raise InputError(f"{text!r} is no number of devices")
    return Elsewhere(spec, f"XLA:{platform.upper()}" if platform else "XLA", platform=platform or None, count=count)


def _python(spec: str, rest: str) -> Elsewhere:
    path, _, platform = rest.rpartition(":")
    # A path may have a colon of its own.
    if not path or not _WORD.fullmatch(platform):
        path, platform = rest, "cpu"
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        raise InputError(f"{path!r} is no program that can be run")
    return Elsewhere(spec, spec, python=path, platform=platform)


def _call(spec: str, rest: str) -> Elsewhere:
    words = rest.split(":")
    if len(words) != 2 or not all(part.isidentifier() for word in words for part in word.split(".")):
        raise InputError(f"{rest!r} is no MODULE:FUNCTION")
    return Elsewhere(spec, spec, function=rest)
