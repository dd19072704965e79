"""The process that has the GPU: lowers, compiles and runs one program after another, and hands back what is kept.

Only JAX, NumPy and ml_dtypes are imported here, so that a bare machine with JAX on CUDA is enough.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import os
import platform
import re
import time
from typing import Any

import numpy as np

_MESSAGE = 400
_PACKAGES = re.compile(r"jax|jaxlib|numpy|ml[-_]dtypes|nvidia[-_].*|jax[-_]cuda.*|jax[-_]rocm.*|triton")
_STORED = {
    "bfloat16": ("bf16", np.uint16),
    "float8_e4m3fn": ("f8e4m3fn", np.uint8),
    "float8_e5m2": ("f8e5m2", np.uint8),
    "float8_e8m0fnu": ("f8e8m0fnu", np.uint8),
}
"""What `hloexec.literals` calls these types in its files, and the integers in which their bits lie there."""


def serve(connection: Any, log: str) -> None:
    """Answers "machine" with what it is, and a program's name with its recording, until nobody asks any more."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_TRUNC), 2)
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            connection.send((True, _machine() if request == "machine" else _record(request)))
        except Exception as error:  # whatever it is, the other side has to hear of it
            connection.send((False, _first_words(error)))


def _first_words(error: Exception) -> str:
    """The beginning of a message, without the paths of this machine."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    said = re.sub(r"(/[\w.+-]+){2,}/?", "…", " ".join(lines[:3]))
    return f"{type(error).__name__}: {said[:_MESSAGE]}"


def _machine() -> dict[str, Any]:
    """The device and every version that can matter; nothing that names the machine itself."""
    import jax

    device = jax.devices()[0]
    installed = {str(found.metadata["Name"]).lower(): found.version for found in importlib.metadata.distributions()}
    return {
        "platform": device.platform,
        "device_kind": device.device_kind,
        "compute_capability": str(getattr(device, "compute_capability", "")) or None,
        "platform_version": str(getattr(device.client, "platform_version", "")),
        "python": platform.python_version(),
        "packages": {name: installed[name] for name in sorted(installed) if _PACKAGES.fullmatch(name)},
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "nvidia_tf32_override": os.environ.get("NVIDIA_TF32_OVERRIDE"),
    }


def policy_of(machine: dict[str, Any], precision: str | None) -> str:
    """The policy of hloexec under which products of f32 round as they do on this machine.

    GPUs of NVIDIA's Ampere and later multiply f32 in TF32 unless a program asks for more, or the environment forbids.
    """
    capability = machine["compute_capability"]
    has_tf32 = machine["platform"] in ("gpu", "cuda") and re.match(r"([89]|\d\d)\.\d", capability or "") is not None
    forbidden = machine["nvidia_tf32_override"] == "0" or precision not in (None, "default", "tensorfloat32")
    return "tf32" if has_tf32 and not forbidden else "reference"


def _record(name: str) -> dict[str, Any]:
    """The two texts, the inputs and the outputs of a program, and how it was compiled."""
    import jax

    from conformance.gpu_programs import PROGRAMS

    program = PROGRAMS[name]
    arguments = program.arguments()
    precision = program.precision
    started = time.monotonic()
    with jax.default_matmul_precision(precision) if precision else contextlib.nullcontext():
        lowered = jax.jit(program.function, keep_unused=True).lower(*arguments)
        before = _text(lowered.compiler_ir("hlo").get_hlo_module())
        compiled, refused = _compiled(lowered, dict(program.options))
        modules = compiled.runtime_executable().hlo_modules()
        if len(modules) != 1:
            raise RuntimeError(f"it was compiled to {len(modules)} modules; one is recorded")
        outputs = [np.asarray(leaf) for leaf in jax.tree.leaves(compiled(*arguments))]
    optimized = _text(modules[0])
    return {
        "before": before,
        "optimized": optimized,
        "inputs": stored_values([np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]),
        "outputs": stored_values(outputs),
        "options_refused": refused,
        "custom_calls": sorted(set(re.findall(r'custom_call_target="([^"]*)"', optimized))),
        "seconds": round(time.monotonic() - started, 2),
    }


def _compiled(lowered: Any, options: dict[str, Any]) -> tuple[Any, list[str]]:
    """The executable, and the options that this version of XLA does not know and that were left out."""
    refused: list[str] = []
    while True:
        try:
            return lowered.compile(options or None), refused
        except Exception as error:
            unknown = [name for name in options if name in str(error)]
            if not unknown or "No such compile option" not in str(error):
                raise
            refused.append(unknown[0])
            del options[unknown[0]]


def _text(module: Any) -> str:
    """The whole text of an HLO module but for where its lines came from."""
    try:
        from jaxlib import _hlo
    except ImportError:
        # Where older versions have it.
        from jaxlib import xla_extension as _hlo
    options = _hlo.HloPrintOptions()
    wanted = {
        "print_large_constants": True,
        "print_metadata": False,
        "print_backend_config": True,
        "print_control_dependencies": True,
        "print_extra_attributes": True,
        "include_layout_in_shapes": True,
    }
    for name, value in wanted.items():
        setattr(options, name, value)
    return str(module.to_string(options))


def stored_values(leaves: list[np.ndarray[Any, Any]]) -> bytes:
    """A compressed `.npz` file of arrays, numbered from 0, as `hloexec.literals` reads them."""
    entries = {}
    for number, leaf in enumerate(leaves):
        if leaf.dtype.isbuiltin == 1:
            entries[str(number)] = leaf
        elif leaf.dtype.name in _STORED:
            type_name, bits = _STORED[leaf.dtype.name]
            entries[f"{number}:{type_name}"] = np.ascontiguousarray(leaf).reshape(leaf.shape).view(bits)
        else:
            raise ValueError(f"an argument or a result is {leaf.dtype.name}, which is not recorded")
    file = io.BytesIO()
    np.savez_compressed(file, **entries)
    return file.getvalue()
