"""The kernels of a module, as people read them: MLIR, whatever compiler they are for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from hloexec.core.ir import Instruction, Module
from hloexec.errors import UnsupportedError
from hloexec.ops.library_calls.mosaic.reading import bytecode_of, read_text
from hloexec.ops.library_calls.triton.calls import bytecode_of as bytecode_of_triton
from hloexec.ops.registry import Role, role_of

_BYTECODE: Mapping[str, Callable[[str], bytes]] = {
    "tpu_custom_call": bytecode_of,
    "__gpu$xla.gpu.triton": bytecode_of_triton,
}


def kernel_texts(module: Module) -> Iterator[tuple[Instruction, str]]:
    """The library calls that run kernels, with these as MLIR writes them, or with a comment that says why not."""
    for computation in module:
        for instruction in computation:
            if role_of(instruction) in (Role.LIBRARY, Role.CUSTOM_CALL):
                read = _BYTECODE.get(instruction.attributes.custom_call_target)
                if read is not None:
                    yield instruction, _text(instruction, read)


def _text(instruction: Instruction, read: Callable[[str], bytes]) -> str:
    try:
        return read_text(read(instruction.backend_config or "")).rstrip() + "\n"
    except UnsupportedError as error:
        return f"// {error}\n"
