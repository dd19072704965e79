"""A small module as StableHLO text, through jaxlib in a process of its own: what it cannot express may crash XLA."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

from hloexec.core.errors import UnsupportedError
from hloexec.core.ir import Module
from hloexec.language.text import format as format_module

_SECONDS = 60
_CONVERT = """
import sys
from jaxlib import _hlo, _jax
proto = _hlo.hlo_module_from_text(sys.stdin.read()).as_serialized_hlo_module_proto()
print(_jax.mlir.xla_computation_to_mlir_module(_hlo.XlaComputation(proto)))
"""


def stablehlo_text(module: Module) -> str:
    """The module as StableHLO; UnsupportedError without jaxlib, or where XLA does not convert it."""
    if find_spec("jaxlib") is None:
        raise UnsupportedError("jaxlib is not installed; install hloexec[jax]")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CONVERT],
            input=format_module(module),
            capture_output=True,
            text=True,
            encoding="utf-8",
            env=environment,
            check=False,
            timeout=_SECONDS,
        )
    except (subprocess.TimeoutExpired, UnicodeError) as error:
        raise UnsupportedError(f"XLA does not convert {module.name} to StableHLO: {error}") from error
    if done.returncode or "module" not in done.stdout:
        raise UnsupportedError(f"XLA does not convert {module.name} to StableHLO: {done.stderr.strip()[-200:]}")
    return done.stdout
