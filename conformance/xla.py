"""XLA as the oracle: runs HLO text on XLA:CPU through jaxlib, and prints modules the way XLA prints them.

jaxlib compiles StableHLO only, so a module goes text → XLA's own parser → HloModuleProto → StableHLO → XLA:CPU. Two
things follow. Layouts inside the module do not survive the import, so most bitcasts are rejected; and partitions are
refused unless XLA's partitioner runs, so a partitioned module runs as replicas. `equivalent_module` and
`conformance.devices` rewrite modules where that is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from conformance.devices import as_replicas, device_counts, with_result_extents
from conformance.hlo_text import without_header_fields

_FLAGS = {
    "xla_allow_excess_precision": "false",
    "xla_force_host_platform_device_count": "8",
}


def jaxlib_version() -> tuple[int, ...]:
    """The installed jaxlib's version, such as (0, 10, 2); () where none is installed."""
    try:
        return tuple(int(part) for part in metadata.version("jaxlib").split(".") if part.isdecimal())
    except metadata.PackageNotFoundError:
        return ()


COMPILED_SOONEST: Mapping[str, object] = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_parallel_codegen_split_count": 1,
} | ({"xla_cpu_use_fusion_emitters": False} if jaxlib_version() < (0, 11) else {})
"""Debug options with which a small module compiles in a third of the time: LLVM's passes are left out, and code is made
in one piece and, up to jaxlib 0.10, by XLA's older emitters, without MLIR. XLA's passes over HLO, but for those that
prepare fusions for the emitters, stay as they are. LLVM contracts products and sums, so results may have other last
bits than by default."""
LACKS_SYMBOLS = "Failed to materialize symbols"
"""How XLA:CPU says that it lacks functions which stand for instructions that the processor lacks."""
COMPILATION_FLAGS: dict[str, object] = {}
"""Debug options of every compilation, which those that a caller gives go before."""


def _prepare_environment() -> None:
    """XLA reads its flags once, when the first client is made; a flag that the user has set is left alone."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    present = {flag.lstrip("-").partition("=")[0] for flag in flags}
    flags += [f"--{name}={value}" for name, value in _FLAGS.items() if name not in present]
    os.environ["XLA_FLAGS"] = " ".join(flags)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


_prepare_environment()


class XlaError(RuntimeError):
    """What XLA said when it would not parse, compile or run a module."""


@cache
def available() -> bool:
    """Whether jaxlib is installed and has the entry points that this file uses."""
    try:
        import jax  # noqa: F401
        from jaxlib import _hlo, _jax
    except ImportError:
        return False
    return hasattr(_hlo, "hlo_module_from_text") and hasattr(_jax.mlir, "xla_computation_to_mlir_module")


@cache
def knows_latest_opcodes() -> bool:
    """Whether the installed jaxlib reads the opcodes of `ops.LATEST`."""
    return jaxlib_version() >= (0, 12)


@cache
def _client() -> Any:
    import jax

    return jax.local_devices(backend="cpu")[0].client


def parse_hlo(text: str) -> Any:
    """The `jaxlib._hlo.HloModule` that XLA's own parser makes of `text`; raises XlaError with XLA's message."""
    from jaxlib import _hlo

    try:
        return _hlo.hlo_module_from_text(text)
    except Exception as error:
        raise XlaError(str(error)) from error


def canonical_text(text_or_module: Any, **options: bool) -> str:
    """XLA's printed form of a module, with nothing left out: two texts that give the same string are the same module.

    `options` are attributes of `jaxlib._hlo.HloPrintOptions` (`print_metadata=False`, …).
    """
    from jaxlib import _hlo

    module = parse_hlo(text_or_module) if isinstance(text_or_module, str) else text_or_module
    print_options = _hlo.HloPrintOptions()
    everything = {
        "print_large_constants": True,
        "print_metadata": True,
        "print_backend_config": True,
        "print_operand_shape": True,
        "print_control_dependencies": True,
        "print_extra_attributes": True,
        "include_layout_in_shapes": True,
    }
    for name, value in (everything | options).items():
        setattr(print_options, name, value)
    return str(module.to_string(print_options))


def _printed(text: str) -> str:
    """The form that the rewrites read. Constants that the text elides stay elided: XLA would print its filler."""
    return canonical_text(
        text, print_large_constants="{...}" not in text, print_metadata=False, print_operand_shape=False
    )


def equivalent_module(text: str) -> str:
    """A module with the meaning of `text` that XLA:CPU can run, for a dump optimized for another backend.

    Raises XlaError for what has no equivalent (`hloexec.ops.equivalents`).
    """
    import hloexec
    from hloexec.ops.equivalents.modules import for_xla

    try:
        return hloexec.format(for_xla(hloexec.parse(text)))
    except hloexec.errors.UnsupportedError as error:
        raise XlaError(str(error)) from error


@dataclass(frozen=True)
class _Leaf:
    """One array (or token) of a flattened parameter or result."""

    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def _leaves(shape: Any) -> list[_Leaf]:
    if shape.is_tuple():
        return [leaf for element in shape.tuple_shapes() for leaf in _leaves(element)]
    if shape.is_token():
        return [_Leaf(None, ())]
    return [_Leaf(np.dtype(shape.numpy_dtype()), tuple(shape.dimensions()))]


class CompiledModule:
    """A module compiled for XLA:CPU on one device or several.

    Inputs and results are flat lists of arrays: tuples are flattened in order, tokens are left out of results.
    """

    def __init__(self, text: str, devices: int | None, spmd: bool, flags: Mapping[str, object]) -> None:
        from jaxlib import _hlo, _jax

        replicas, partitions = device_counts(text)
        if not spmd:
            if partitions > 1:
                text = as_replicas(_printed(text))
            replicas, partitions = (devices or replicas * partitions), 1
        elif devices is not None:
            partitions = devices // replicas
        self.devices = replicas * partitions
        client = _client()
        if self.devices > client.local_device_count():
            raise XlaError(
                f"the module wants {self.devices} devices, XLA:CPU is set up with {client.local_device_count()}: "
                "set XLA_FLAGS=--xla_force_host_platform_device_count"
            )
        if "input_output_alias" in text or "buffer_donor" in text:
            # An execution would use up its inputs, and could not be repeated.
            text = without_header_fields(_printed(text), "input_output_alias", "buffer_donor")
        computation = _hlo.XlaComputation(parse_hlo(text).as_serialized_hlo_module_proto())
        self._dynamic_dimensions = _dynamic_dimensions(computation.program_shape().result_shape())
        if self._dynamic_dimensions:
            module = parse_hlo(with_result_extents(_printed(text)))
            computation = _hlo.XlaComputation(module.as_serialized_hlo_module_proto())
        program_shape = computation.program_shape()
        self._parameters = [leaf for shape in program_shape.parameter_shapes() for leaf in _leaves(shape)]
        self._results = _leaves(program_shape.result_shape())

        options = _jax.CompileOptions()
        build = options.executable_build_options
        for holder in (options, build):
            holder.num_replicas = replicas
            holder.num_partitions = partitions
            holder.device_assignment = _jax.DeviceAssignment.create(
                np.arange(self.devices).reshape(replicas, partitions)
            )
        build.use_spmd_partitioning = spmd
        options.env_option_overrides = list({**COMPILATION_FLAGS, **flags}.items())
        self._device_list = client.local_devices()[: self.devices]
        try:
            stablehlo = _jax.mlir.xla_computation_to_mlir_module(computation)
            self._executable = client.compile_and_load(stablehlo, _jax.DeviceList(tuple(self._device_list)), options)
        except Exception as error:
            raise XlaError(str(error)) from error
        if spmd:
            # What was partitioned takes and gives shards.
            optimized = self._executable.hlo_modules()[0].as_serialized_hlo_module_proto()
            program_shape = _hlo.XlaComputation(optimized).program_shape()
            self._parameters = [leaf for shape in program_shape.parameter_shapes() for leaf in _leaves(shape)]
            self._results = _leaves(program_shape.result_shape())

    @property
    def optimized_text(self) -> str:
        """The module after XLA:CPU's optimization."""
        return canonical_text(self._executable.hlo_modules()[0])

    def run(self, *inputs: Any) -> list[np.ndarray]:
        """The result's leaves on one device; for several devices, `run_devices`."""
        if self.devices != 1:
            raise XlaError(f"the module was compiled for {self.devices} devices: use run_devices")
        return self.run_devices([inputs])[0]

    def run_devices(self, inputs_per_device: Sequence[Sequence[Any]]) -> list[list[np.ndarray]]:
        """One list of leaves per device; device `replica * num_partitions + partition` gets that list of inputs."""
        return self.fetch(self.execute(self.place(inputs_per_device)))

    def place(self, inputs_per_device: Sequence[Sequence[Any]]) -> list[Any]:
        """Puts inputs on the devices, so that `execute` alone can be timed."""
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        if len(inputs_per_device) != self.devices:
            raise XlaError(f"expected inputs for {self.devices} devices, got {len(inputs_per_device)}")
        per_device = [self._checked(inputs) for inputs in inputs_per_device]
        everywhere = NamedSharding(Mesh(np.array(self._device_list), ("device",)), PartitionSpec())
        placed = []
        with jax.enable_x64(True):
            for values in zip(*per_device, strict=True):
                arrays = [jax.device_put(v, device) for v, device in zip(values, self._device_list, strict=True)]
                # A "replicated" array whose copies differ: the runtime looks at each device's buffer only.
                placed.append(
                    arrays[0]
                    if self.devices == 1
                    else jax.make_array_from_single_device_arrays(arrays[0].shape, everywhere, arrays)
                )
        jax.block_until_ready(placed)
        return placed

    def execute(self, placed: Sequence[Any]) -> list[Any]:
        """Runs on placed inputs and waits for the results, which stay on the devices."""
        import jax

        try:
            results = self._executable.execute_sharded(list(placed)).disassemble_into_single_device_arrays()
            arrays = [a for a, leaf in zip(results, self._results, strict=True) if leaf.dtype is not None]
            jax.block_until_ready(arrays)
        except Exception as error:
            raise XlaError(str(error)) from error
        return arrays

    def fetch(self, results: Sequence[Any]) -> list[list[np.ndarray]]:
        """Copies executed results to NumPy, one list of leaves per device."""
        per_device = [[np.array(leaf[device]) for leaf in results] for device in range(self.devices)]
        return [self._cut_to_extents(values) for values in per_device]

    def _checked(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        """XLA looks at sizes in bytes only: a transposed or reinterpreted input would pass unnoticed."""
        values = [np.asarray(value) for value in inputs]
        if len(values) != len(self._parameters):
            raise XlaError(f"expected {len(self._parameters)} inputs, got {len(values)}")
        for index, (value, leaf) in enumerate(zip(values, self._parameters, strict=True)):
            if leaf.dtype != value.dtype or leaf.shape != value.shape:
                raise XlaError(f"input {index} is {value.dtype}{list(value.shape)}, the parameter is {leaf}")
        return values

    def _cut_to_extents(self, values: list[np.ndarray]) -> list[np.ndarray]:
        """A bounded-dynamic result comes back packed at the front of a buffer of the bound's size."""
        if not self._dynamic_dimensions:
            return values
        count = len(values) - len(self._dynamic_dimensions)
        extents = {where: int(n) for where, n in zip(self._dynamic_dimensions, values[count:], strict=True)}
        cut = []
        for index, value in enumerate(values[:count]):
            shape = tuple(extents.get((index, axis), size) for axis, size in enumerate(value.shape))
            cut.append(value.reshape(-1)[: int(np.prod(shape))].reshape(shape))
        return cut


def _dynamic_dimensions(result_shape: Any) -> list[tuple[int, int]]:
    """(leaf, axis) of each dynamic dimension of a result, in the order `with_result_extents` appends their sizes."""
    found: list[tuple[int, int]] = []
    position = 0

    def visit(shape: Any) -> None:
        nonlocal position
        if shape.is_tuple():
            for element in shape.tuple_shapes():
                visit(element)
        elif not shape.is_token():
            found.extend((position, axis) for axis in range(shape.rank()) if shape.is_dynamic_dimension(axis))
            position += 1

    visit(result_shape)
    return found


def compile_hlo(
    text: str, devices: int | None = None, *, spmd: bool = False, xla_flags: Mapping[str, object] | None = None
) -> CompiledModule:
    """Compiles HLO text for XLA:CPU.

    `devices` defaults to the header's `replica_count * num_partitions`. A partitioned module (the normal case) runs
    its partitions as replicas; `spmd=True` lets XLA's partitioner split a module that still carries shardings, and
    inputs and results are then shards. `xla_flags` are debug options for this compilation only, without the dashes:
    `{"xla_cpu_enable_fast_math": True}`.
    """
    return CompiledModule(text, devices, spmd, xla_flags or {})


def run_hlo(text: str, *inputs: Any, xla_flags: Mapping[str, object] | None = None) -> list[np.ndarray]:
    """Compiles and runs a one-device module; the flat leaves of its result."""
    return compile_hlo(text, 1, xla_flags=xla_flags).run(*inputs)


def run_hlo_devices(
    text: str, inputs_per_device: Sequence[Sequence[Any]], *, xla_flags: Mapping[str, object] | None = None
) -> list[list[np.ndarray]]:
    """Compiles a module for as many devices as there are lists of inputs, and runs it on them."""
    return compile_hlo(text, len(inputs_per_device), xla_flags=xla_flags).run_devices(inputs_per_device)


def run_hlo_isolated(
    text: str,
    *inputs: Any,
    xla_flags: Mapping[str, object] | None = None,
    timeout: float = 120.0,
) -> list[np.ndarray]:
    """`run_hlo` in a process of its own, since some modules abort the process or never end.

    `xla_flags` here may be any flag of XLA, process-wide ones included. Raises XlaError on a crash (with the last
    lines of stderr) and when `timeout` seconds have passed.
    """
    flags = " ".join(f"--{name}={str(value).lower()}" for name, value in (xla_flags or {}).items())
    environment = dict(os.environ)
    environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {flags}".strip()
    root = str(Path(__file__).resolve().parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder:
        source, request, reply = (Path(folder) / name for name in ("module.hlo", "inputs.npz", "outputs.npz"))
        source.write_text(text, encoding="utf-8")
        _save_arrays(request, [np.asarray(value) for value in inputs])
        command = [sys.executable, "-m", "conformance.xla", str(source), str(request), str(reply)]
        started = time.monotonic()
        try:
            done = subprocess.run(command, env=environment, capture_output=True, errors="replace", timeout=timeout)
        except subprocess.TimeoutExpired:
            raise XlaError(f"XLA had not finished after {time.monotonic() - started:.0f} s") from None
        if done.returncode != 0:
            tail = "\n".join(done.stderr.strip().splitlines()[-30:])
            raise XlaError(f"XLA's process ended with status {done.returncode}:\n{tail}")
        return _load_arrays(reply)


@cache
def fuses_multiply_add() -> bool:
    """Whether XLA:CPU rounds x · y + z once on this processor, as it does where there is an instruction for that."""
    text = """HloModule m

ENTRY e {
  x = f32[4] parameter(0)
  z = f32[4] parameter(1)
  product = f32[4] multiply(x, x)
  ROOT sum = f32[4] add(product, z)
}
"""
    # The last bit of the square is rounded away: once with the sum it stays.
    x, z = np.full(4, 1 + 2.0**-12, np.float32), np.full(4, -1 - 2.0**-11, np.float32)
    return bool(run_hlo(text, x, z)[0].all())


@cache
def compiles_f16() -> bool:
    """Whether XLA:CPU compiles conversions of f16: it does not for processors without instructions for them (F16C)."""
    try:
        run_hlo("HloModule m\nENTRY e { x = f32[4] parameter(0)\n ROOT y = f16[4] convert(x) }", np.ones(4, np.float32))
    except XlaError as error:
        if LACKS_SYMBOLS not in str(error):
            raise
        return False
    return True


def _save_arrays(path: Path, arrays: Sequence[np.ndarray]) -> None:
    """npz keeps only NumPy's own types, so arrays travel as bytes beside their type names and shapes."""
    index = json.dumps([[array.dtype.name, list(array.shape)] for array in arrays])
    raw = {str(i): np.frombuffer(array.tobytes(), np.uint8) for i, array in enumerate(arrays)}
    np.savez(path, index=np.array(index), **raw)  # type: ignore[arg-type]


def _load_arrays(path: Path) -> list[np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        arrays = []
        for position, (name, shape) in enumerate(json.loads(str(archive["index"]))):
            dtype = np.dtype(getattr(ml_dtypes, name, name))
            arrays.append(np.frombuffer(archive[str(position)].tobytes(), dtype).reshape(shape))
        return arrays


def _main(source: str, request: str, reply: str) -> None:
    try:
        results = run_hlo(Path(source).read_text(encoding="utf-8"), *_load_arrays(Path(request)))
    except XlaError as error:
        sys.exit(str(error))
    _save_arrays(Path(reply), results)


if __name__ == "__main__":
    _main(*sys.argv[1:])
