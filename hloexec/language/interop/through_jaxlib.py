"""Conversion of formats that only XLA reads to HLO text, by jaxlib if it is installed.

The text includes everything that affects a run: whole constants (with NaN payloads and negative zeros), layouts,
metadata and configurations.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from typing import Any

from hloexec.errors import InputError, UnsupportedError

_WHOLE = {
    "print_large_constants": True,
    "print_metadata": True,
    "print_backend_config": True,
    "print_control_dependencies": True,
    "print_extra_attributes": True,
    "include_layout_in_shapes": True,
}
_UNKNOWN_SIZE = re.compile(r"\w\[(?:[<=\d]+,)*\?")

_READ_BYTECODE = """
import sys
from hloexec.language.interop.through_jaxlib import computation_of, text_of_module
sys.stdout.buffer.write(text_of_module(computation_of(sys.stdin.buffer.read()).get_hlo_module()).encode())
"""


def text_of_mlir(mlir: str | bytes, what: str) -> str:
    """The HLO text of a StableHLO or MHLO module in MLIR text, or in bytecode that is known to be whole."""
    _libraries(what)
    try:
        return text_of_module(computation_of(mlir if isinstance(mlir, bytes) else mlir.encode()).get_hlo_module())
    except Exception as error:
        raise _refusal(what, error) from error


def text_of_bytecode(bytecode: bytes, what: str) -> str:
    """The HLO text of a StableHLO or MHLO module in MLIR bytecode, portable artifacts included.

    A process of its own reads it: damaged bytecode can corrupt the memory of the process that does.
    """
    _libraries(what)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", _READ_BYTECODE]
    done = subprocess.run(command, input=bytecode, capture_output=True, env=environment, check=False)
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1] if done.returncode > 0 and lines else "its reader crashed"
        raise InputError(f"XLA cannot read {what}: {reason}")
    return done.stdout.decode()


def computation_of(mlir: bytes) -> Any:
    """XLA's computation of a StableHLO or MHLO module, text or bytecode.

    In one that calls an exported function of symbolic sizes, they become what its parameters say, as when JAX compiles
    it; the sizes of the function itself stay unknown, for a run to say.
    """
    from jaxlib import _jax

    library, options = _jax.mlir, {"use_tuple_args": False, "return_tuple": False}
    found = library.mlir_module_to_xla_computation(mlir, **options)
    if has_unknown_sizes(found.as_hlo_text()):
        with suppress(Exception):
            mlir = library.refine_polymorphic_shapes(
                mlir, enable_shape_assertions=True, validate_static_shapes=True, enable_shardy=True
            )
            return library.mlir_module_to_xla_computation(mlir, **options)
    return found


def has_unknown_sizes(text: str) -> bool:
    """Whether a shape in HLO text has a dimension without a bound."""
    return _UNKNOWN_SIZE.search(text) is not None


def text_of_module(module: Any) -> str:
    """The whole HLO text of a `jaxlib._hlo.HloModule`."""
    from jaxlib import _hlo

    options = _hlo.HloPrintOptions()
    for name, value in _WHOLE.items():
        setattr(options, name, value)
    return str(module.to_string(options))


def _refusal(what: str, error: Exception) -> InputError:
    """XLA's complaint without the stack trace that may follow it."""
    complaint = str(error).partition("*** Begin stack trace")[0].strip()
    return InputError(f"XLA cannot read {what}: {complaint or type(error).__name__}")


def _libraries(what: str) -> tuple[Any, Any]:
    """jaxlib's modules for HLO and for MLIR."""
    try:
        from jaxlib import _hlo, _jax
    except ImportError as error:
        raise UnsupportedError(
            f"reading {what} needs jaxlib ({error}): install hloexec[jax], or give the module as HLO text"
        ) from error
    return _hlo, _jax.mlir
