"""What a process beside hloexec runs: it compiles and runs modules by XLA, or calls a user's function for them.

It runs as a script, in any Python from 3.10 on that has jaxlib from 0.4.30 on and NumPy, and imports nothing of
hloexec. Questions come on standard input, answers go to what was standard output when it began: each is a mark, a
length of eight bytes, a header of JSON of that length, and the bytes of arrays.

As `run.py` in a folder of `hloexec extract --outputs` it is not asked: `python run.py [PLATFORM]` runs the module in
that folder, and writes its results to `result.npz`, the values to `values.npz` (`result.0.npz`, … of several devices).
"""

import contextlib
import functools
import importlib.util
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, BinaryIO

MARK = b"hloexec answers\n"
NEXT = b"\0"
"""Stands between what is printed for one question and for the next."""
_PRECISION = "xla_allow_excess_precision"
_COUNT = "xla_force_host_platform_device_count"
_MOST_KEPT = 1 << 16
"""Letters of the text of a module that stays compiled: longer ones may hold large constants."""
_MEMORY = ("RESOURCE_EXHAUSTED", "bad_alloc", "out of memory")

Header = dict[str, Any]
Row = list[Any]
"""The arrays of a device."""
Run = Callable[[Header, list[Row], Header], Sequence[Row]]
"""Takes the header of a question, the inputs of each device, and the answer's header, and gives the outputs of each."""


def write_message(stream: BinaryIO, header: Any, arrays: Sequence[Any] = ()) -> None:
    """Write a question or an answer."""
    data = json.dumps(header).encode()
    stream.write(MARK + len(data).to_bytes(8, "little") + data)
    for array in arrays:
        stream.write((array if array.flags.c_contiguous else array.copy()).reshape(-1).view("u1"))
    stream.flush()


def read_message(stream: BinaryIO) -> tuple[Header, list[list[bytearray]]]:
    """A header and, for each device, the bytes of its arrays; EOFError or ValueError, with what it begins with, where
    it is none."""
    mark = _read(stream, len(MARK))
    if mark != MARK:
        raise ValueError(bytes(mark))
    header = json.loads(_read(stream, int.from_bytes(_read(stream, 8), "little")))
    return header, [[_read(stream, leaf["bytes"]) for leaf in row] for row in header.get("arrays", ())]


def _read(stream: BinaryIO, size: int) -> bytearray:
    data = bytearray(size)
    count = stream.readinto(data)  # type: ignore[attr-defined]
    if count < size:
        raise EOFError(bytes(data[:count]))
    return data


def described(array: Any) -> Header:
    """What a header says of an array."""
    return {"type": array.dtype.name, "shape": list(array.shape), "bytes": array.nbytes}


def main() -> None:
    """Answer questions until standard input ends."""
    settings = json.loads(sys.argv[1])
    # The folder of this script is none to import from; functions may be in the working folder.
    sys.path[:1] = [os.getcwd()] if settings["function"] else []
    answers = os.fdopen(os.dup(1), "wb")
    # What is printed must not get among the answers.
    os.dup2(2, 1)
    questions: queue.Queue[tuple[Header, list[list[bytearray]]]] = queue.Queue()
    threading.Thread(target=_read_questions, args=(sys.stdin.buffer, questions), daemon=True).start()
    try:
        run = _calling(settings["function"]) if settings["function"] else _compiling(**settings)
    except BaseException as error:
        write_message(answers, _refusal(error))
        return
    write_message(answers, {})
    begun = _bytes_now()
    while True:
        header, data = questions.get()
        os.write(2, NEXT)
        reply: Header = {}
        try:
            _limit(begun, header["memory"])
            rows = [[_contiguous(leaf) for leaf in row] for row in run(header, _arrays(header, data), reply)]
            reply["arrays"] = [list(map(described, row)) for row in rows]
        except BaseException as error:
            reply, rows = _refusal(error), []
        _limit(begun, None)
        write_message(answers, reply, [leaf for row in rows for leaf in row])


def run_folder(folder: str, platform: Any) -> None:
    """Run the module of a folder that `hloexec extract --outputs` has written, and write what it gives."""
    import numpy as np

    def turned(array: Any, to: str) -> Any:
        return array.astype(_dtype(to)) if "int" in to and "int" in array.dtype.name else array.view(_dtype(to))

    with open(os.path.join(folder, "outputs.json")) as file:
        plan = json.load(file)
    rows, runs = [], []
    for name in plan["inputs"]:
        with np.load(os.path.join(folder, name)) as stored:
            rows.append([turned(stored[key], memory) for key, _, memory in plan["leaves"]])
    count = plan["replicas"] * plan["partitions"]
    # Without JAX, there is the CPU alone.
    run = _compiling(None, platform or ("cpu" if importlib.util.find_spec("jax") is None else None), count)
    for name, kept in (("xla.hlo", plan["kept"]), ("unchanged.hlo", plan["own_kept"])):
        with open(os.path.join(folder, name)) as file:
            header = {**plan, "text": file.read(), "kept": kept, "without": [], "dump": "", "is_told": False}
        runs.append(run(header, rows if len(rows) == count else rows * count, {}))
    own, same = sum(plan["own_kept"]), 0
    for device, (row, unchanged) in enumerate(zip(*runs, strict=True)):
        arrays = [(key, turned(leaf, kind)) for leaf, (key, kind, _) in zip(row, plan["outputs"], strict=True)]
        same += sum(ours.tobytes() == theirs.tobytes() for ours, theirs in zip(row[:own], unchanged, strict=True))
        end = f".{device}.npz" if count > 1 else ".npz"
        np.savez(os.path.join(folder, "result" + end), **dict(arrays[:own]))
        np.savez(os.path.join(folder, "values" + end), **dict(arrays[own:]))
    print(f"wrote {len(arrays) - own} values of {count} device{'s' * (count > 1)} to {folder}")
    print(f"{same} of {own * count} results of the module have the bits that they have without further outputs")


def _read_questions(stream: BinaryIO, questions: Any) -> None:
    """Queue what is asked, and end the process when nothing more can be: whoever asks is gone."""
    with contextlib.suppress(Exception):
        while True:
            questions.put(read_message(stream))
    os._exit(0)


def _refusal(error: BaseException) -> Header:
    text = str(error) or type(error).__name__
    is_memory = isinstance(error, MemoryError) or any(word in text for word in _MEMORY)
    return {"outcome": "out of memory" if is_memory else "refused", "reason": text}


def _bytes_now() -> int:
    """What the process has of the memory that the system limits, as far as it says so."""
    with contextlib.suppress(OSError), open("/proc/self/status") as status:
        return next((int(line.split()[1]) << 10 for line in status if line.startswith("VmData")), 0)
    return 0


def _limit(begun: int, memory: Any) -> None:
    """Let a module take so many bytes more than the process has begun with, where the system limits that."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        limit = most if memory is None else begun + memory
        resource.setrlimit(resource.RLIMIT_DATA, (limit if most < 0 else min(limit, most), most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _arrays(header: Header, data: Sequence[Sequence[bytearray]]) -> list[Row]:
    import numpy as np

    def read(leaf: Header, part: bytearray) -> Any:
        return np.frombuffer(part, _dtype(leaf["type"])).reshape(leaf["shape"])

    return [[read(*pair) for pair in zip(*row, strict=True)] for row in zip(header["arrays"], data, strict=True)]


def _dtype(name: str) -> Any:
    """The NumPy type of a name, which may be one of ml_dtypes."""
    import numpy as np

    with contextlib.suppress(TypeError):
        return np.dtype(name)
    import ml_dtypes

    if not hasattr(ml_dtypes, name):
        raise TypeError(f"ml_dtypes {ml_dtypes.__version__} has no {name}")
    return np.dtype(getattr(ml_dtypes, name))


def _contiguous(array: Any) -> Any:
    import numpy as np

    return np.array(array, order="C")


def _calling(place: str) -> Run:
    """What calls a user's function with the module's text and the inputs, a list of arrays for each device."""
    module, _, name = place.partition(":")
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)

    def run(header: Header, inputs: list[Row], _: Header) -> Sequence[Row]:
        outputs = function(header["text"], inputs)
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        # One device's outputs need not be in a list of devices.
        is_nested = len(outputs) == 1 and isinstance(outputs[0], (list, tuple))
        rows = outputs if len(inputs) > 1 or is_nested else [outputs]
        return [[*row] if isinstance(row, (list, tuple)) else [row] for row in rows]

    return run


def _compiling(function: None, platform: Any, count: int) -> Run:
    """What compiles and runs modules on so many devices of a platform."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    if not any(_PRECISION in flag for flag in flags):
        flags.append(f"--{_PRECISION}=false")
    if count > 1:
        flags.append(f"--{_COUNT}={count}")
    os.environ["XLA_FLAGS"] = " ".join(flags)
    if platform == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    devices = _devices(platform)
    if len(devices) < count:
        raise RuntimeError(f"there are {len(devices)} devices of {platform or devices[0].platform}, not {count}")
    return lambda header, inputs, reply: _run(devices[: len(inputs)], header, inputs, reply)


def _devices(platform: Any) -> list[Any]:
    """The devices of a platform, which only JAX finds if it is not the CPU."""
    try:
        import jax
    except ImportError:
        if platform != "cpu":
            raise RuntimeError(f"jax is not installed there, which finds the devices of {platform}") from None
    else:
        jax.config.update("jax_enable_x64", True)
        return list(jax.local_devices(backend=platform))
    from jaxlib import xla_client

    # What JAX says of itself; without it, older jaxlibs end the process.
    state = _of_jaxlib("jax_jit")
    if hasattr(state, "set_thread_local_state_initialization_callback"):
        state.set_thread_local_state_initialization_callback(lambda: None)
    for name, value in (("enable_memories", False), ("enable_x64", True)):
        if hasattr(state, "global_state") and hasattr(state.global_state(), name):
            setattr(state.global_state(), name, value)
    return list(xla_client.make_cpu_client().local_devices())


def _of_jaxlib(name: str) -> Any:
    """What a name stands for, which has moved between jaxlib's modules."""
    for home in ("_hlo", "_jax", "xla_extension", "xla_client"):
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(f"jaxlib.{home}"), name)
    raise RuntimeError(f"this jaxlib has no {name}")


def _run(devices: list[Any], header: Header, inputs: list[Row], reply: Header) -> Sequence[Row]:
    text, dump = header["text"], header["dump"]
    compiled = _compiled if len(text) < _MOST_KEPT and not dump else _compiled.__wrapped__
    executable = compiled(text, tuple(devices), tuple(header["without"]), dump)
    if header["is_told"]:
        reply["compiled"] = [_printed(optimized) for optimized in executable.hlo_modules()]
    placed = [_placed(leaves, devices) for leaves in zip(*inputs, strict=True)]
    results = executable.execute_sharded(placed).disassemble_into_single_device_arrays()
    kept = [leaves for leaves, is_kept in zip(results, header["kept"], strict=True) if is_kept]
    return [[_fetched(leaves[number]) for leaves in kept] for number in range(len(devices))]


@functools.lru_cache(512)
def _compiled(text: str, devices: Sequence[Any], without: Sequence[str], dump: str | None) -> Any:
    """A module that is ready to run, kept for when it is asked for again."""
    client, options = devices[0].client, _options(devices, without, dump)
    if "custom_call_target" in text:
        _prepare_lapack()
    module = _of_jaxlib("hlo_module_from_text")(text)
    computation = _of_jaxlib("XlaComputation")(module.as_serialized_hlo_module_proto())
    stablehlo = _of_jaxlib("mlir").xla_computation_to_mlir_module(computation)
    if hasattr(client, "compile_and_load"):
        return client.compile_and_load(stablehlo, _of_jaxlib("DeviceList")(devices), options)
    return client.compile(stablehlo, options)


def _options(devices: Sequence[Any], without: Sequence[str], dump: str | None) -> Any:
    """Those of a module whose replicas are these devices."""
    import numpy as np

    options = _of_jaxlib("CompileOptions")()
    grid = np.array([[device.id] for device in devices])
    for holder in (options, options.executable_build_options):
        holder.num_replicas, holder.num_partitions = len(devices), 1
        holder.device_assignment = _of_jaxlib("DeviceAssignment").create(grid)
    debugging = options.executable_build_options.debug_options
    # Those that XLA_FLAGS name stay so.
    passes = [*debugging.xla_disable_hlo_passes.split(","), *without]
    debugging.xla_disable_hlo_passes = ",".join(filter(None, passes))
    if dump:
        debugging.xla_dump_to, debugging.xla_dump_hlo_pass_re = dump, ".*"
        debugging.xla_dump_hlo_as_text = debugging.xla_dump_hlo_as_long_text = True
    return options


def _printed(module: Any) -> str:
    """The text of a module, its constants in full."""
    options = _of_jaxlib("HloPrintOptions")()
    options.print_large_constants = True
    return str(module.to_string(options))


@functools.cache
def _prepare_lapack() -> None:
    """Let jaxlib look up LAPACK's functions in SciPy: until then, its calls of them are calls of null pointers."""
    import numpy as np

    with contextlib.suppress(ImportError):
        from jaxlib import lapack, xla_client

        if "jax" not in sys.modules and hasattr(lapack, "registrations"):
            for platform, calls in lapack.registrations().items():
                for name, function, version in calls:
                    xla_client.register_custom_call_target(name, function, platform=platform, api_version=version)
        if hasattr(lapack, "prepare_lapack_call"):
            lapack.prepare_lapack_call("potrf_ffi", np.dtype(np.float32))
        else:
            lapack._lapack.initialize()


def _placed(arrays: Sequence[Any], devices: list[Any]) -> Any:
    """One array with a part on each device, as if all had the same: XLA looks at what each device has alone."""
    shape = SimpleNamespace(shape=arrays[0].shape, dtype=arrays[0].dtype, weak_type=False)
    put, sharding = _of_jaxlib("batched_device_put"), _of_jaxlib("GSPMDSharding")
    replicated = _of_jaxlib("HloSharding").replicate()
    parts = []
    for array, device in zip(arrays, devices, strict=True):
        try:
            part = put(shape, sharding([device], replicated), [array], [device], enable_x64=True)
        except TypeError:
            part = put(shape, sharding([device], replicated), [array], [device])
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    return _of_jaxlib("ArrayImpl")(shape, sharding(devices, replicated), parts, True, True)


def _fetched(array: Any) -> Any:
    if hasattr(array, "_single_device_array_to_np_array_did_copy"):
        return array._single_device_array_to_np_array_did_copy()[0]
    return array._single_device_array_to_np_array()


if __name__ == "__main__":
    if os.path.basename(__file__) == "run.py":
        run_folder(os.path.dirname(os.path.abspath(__file__)), sys.argv[1] if len(sys.argv) > 1 else None)
    else:
        main()
