"""Running a module on XLA:CPU with jaxlib, if it is installed, to compare results with hloexec's.

jaxlib compiles only StableHLO. A module is therefore parsed by XLA, converted to StableHLO and compiled for XLA:CPU.
What StableHLO cannot express (fusions, most library calls, layouts within a module) is refused by XLA or crashes it.
XLA therefore runs in a separate process, which receives the text and the bytes of the inputs, and returns those of the
result.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any, BinaryIO

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape, Literal, Module, Shape, flat_shapes
from hloexec.core.values import TOKEN, Array, Token, Value, arrays_of
from hloexec.errors import UnsupportedError
from hloexec.language.text import format as format_module
from hloexec.language.text import parse

_PRECISION_FLAG = "xla_allow_excess_precision"
_ANSWER = "from hloexec.language.interop.xla_cpu import answer; answer()"
_REFUSED = 3


def run_on_xla_cpu(module: Module, inputs: Sequence[Value]) -> list[Array | Token]:
    """The leaves of what XLA:CPU gives for a module of one device on these inputs, one value per parameter.

    bf16 and the like are rounded where the text says so (`xla_allow_excess_precision=false`), unless XLA_FLAGS says
    otherwise. Raises UnsupportedError where jax is not installed, or XLA:CPU cannot run the module.
    """
    require_runnable(module)
    # An execution would use up the inputs that the result may alias.
    text = format_module(attrs.evolve(module, input_output_alias=(), buffer_donor=()))
    arrays = arrays_of(tuple(inputs))
    numbers = iter(_executed_apart(text, arrays, module))
    leaves = flat_shapes(module.entry.result_shape)
    return [next(numbers) if leaf.is_array else TOKEN for leaf in leaves]


def _executed_apart(text: str, arrays: Sequence[Array], module: Module) -> list[Array]:
    """What `executed` gives for the text of a module, in a process of its own."""
    size = len(text.encode()).to_bytes(8, "little")
    question = b"".join([size, text.encode(), *(array.tobytes() for array in arrays)])
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", _ANSWER]
    done = subprocess.run(command, input=question, capture_output=True, env=environment, check=False)
    if done.returncode:
        complaint = done.stderr.decode("utf-8", "replace").partition("*** ")[0].strip()
        how = "cannot run" if done.returncode == _REFUSED else "crashes on"
        raise UnsupportedError(f"XLA:CPU {how} {module.name}: {complaint or f'exit code {done.returncode}'}")
    return _arrays(done.stdout, [module.entry.result_shape])


def answer() -> None:
    """Read a module and its inputs from standard input, and write what XLA:CPU gives to standard output."""
    data = sys.stdin.buffer.read()
    size = int.from_bytes(data[:8], "little")
    text = data[8 : 8 + size].decode()
    entry = parse(text).entry
    try:
        results = executed(text, _arrays(data[8 + size :], entry.parameter_shapes), entry.result_shape)
    except Exception as error:
        print(str(error) or type(error).__name__, file=sys.stderr)
        sys.exit(_REFUSED)
    _write(sys.stdout.buffer, results)


def executed(text: str, arrays: Sequence[Array], shape: Shape) -> list[Array]:
    """The arrays of a result of this shape that XLA:CPU gives; raises what jaxlib raises."""
    import jax
    from jaxlib import _hlo, _jax

    if "custom_call_target" in text:
        from jaxlib.lapack import prepare_lapack_call

        # Until it has been called once, jaxlib's calls of LAPACK are calls of null pointers. It imports SciPy.
        prepare_lapack_call("potrf_ffi", np.dtype(np.float32))
    device = jax.local_devices(backend="cpu")[0]
    options = _jax.CompileOptions()
    if _PRECISION_FLAG not in os.environ.get("XLA_FLAGS", ""):
        options.env_option_overrides = [(_PRECISION_FLAG, False)]
    proto = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    stablehlo = _jax.mlir.xla_computation_to_mlir_module(_hlo.XlaComputation(proto))
    executable = device.client.compile_and_load(stablehlo, _jax.DeviceList((device,)), options)
    with jax.enable_x64(True):
        placed = [jax.device_put(array, device) for array in arrays]
        results = executable.execute_sharded(placed).disassemble_into_single_device_arrays()
        leaves = zip(results, _leaves(shape), strict=True)
        return [np.array(result[0]) for result, leaf in leaves if leaf.is_array]


def _write(stream: BinaryIO, arrays: Sequence[Array]) -> None:
    for array in arrays:
        stream.write(array.tobytes())
    stream.flush()


def _arrays(data: bytes, shapes: Sequence[Shape]) -> list[Array]:
    """The arrays of shapes' leaves, whose bytes lie one after the other."""
    arrays, start = [], 0
    for leaf in _array_leaves(shapes):
        count = leaf.element_count
        arrays.append(np.frombuffer(data, leaf.element_type.storage, count, start).reshape(leaf.dimensions))
        start += leaf.byte_size
    return arrays


def _array_leaves(shapes: Sequence[Shape]) -> Iterator[ArrayShape]:
    return (leaf for leaf in _leaves(*shapes) if leaf.is_array)


def _leaves(*shapes: Shape) -> Iterator[ArrayShape]:
    return (leaf.array_shape for leaf in flat_shapes(*shapes))


def require_runnable(module: Module) -> None:
    """UnsupportedError for what XLA would run otherwise than it is meant."""
    reason = None
    if find_spec("jax") is None:
        reason = "jax is not installed; install hloexec[jax]"
    elif module.replica_count * module.num_partitions > 1:
        reason = "it is for several devices"
    elif any(leaf.is_token for leaf in _leaves(*module.entry.parameter_shapes)):
        reason = "it takes tokens"
    elif any(leaf.is_dynamic for leaf in _array_leaves([*module.entry.parameter_shapes, module.entry.result_shape])):
        reason = "sizes of its arrays are known only at run time"
    elif any(_is_elided(instruction.attributes) for computation in module for instruction in computation):
        reason = "the text elides constants"
    if reason is not None:
        raise UnsupportedError(f"{module.name} cannot be run on XLA:CPU: {reason}")


def _is_elided(attributes: Any) -> bool:
    literal = getattr(attributes, "literal", None)
    return isinstance(literal, Literal) and literal.is_elided
