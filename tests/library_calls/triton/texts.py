"""Modules of kernels that are written in the tests, in Triton's dialect: as text, where Pallas has bytecode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import hloexec
from hloexec.core.dtypes import element_type_of


def shape_text(array: Any) -> str:
    return f"{element_type_of(array.dtype).name}[{','.join(map(str, array.shape))}]"


def module_of(kernel: str, operands: Sequence[Any], results: Sequence[Any], grid: Sequence[int] = (1, 1, 1)) -> Any:
    """The module that calls a kernel with operands of these shapes, for results of those."""
    escaped = "".join(
        letter if letter.isalnum() or letter in " ,:()=%" else f"\\{ord(letter):02X}" for letter in kernel
    )
    sizes = "".join(f"grid_{axis} = {size} : i32, " for axis, size in zip("xyz", grid, strict=True))
    names = ", ".join(f"p{number}" for number in range(len(operands)))
    parameters = [f"  p{number} = {shape_text(array)} parameter({number})" for number, array in enumerate(operands)]
    shape = ", ".join(map(shape_text, results))
    return hloexec.parse(
        "HloModule m\n\nENTRY e {\n"
        + "\n".join(parameters)
        + f'\n  ROOT r = ({shape}) custom-call({names}), custom_call_target="__gpu$xla.gpu.triton", '
        f"api_version=API_VERSION_TYPED_FFI, backend_config={{debug = false, {sizes}"
        f'ir = "{escaped}", name = "kernel", num_stages = 1 : i32, num_warps = 4 : i32}}\n}}\n'
    )


def elementwise(body: str, operands: Sequence[Any], result: Any, *types: str) -> Any:
    """What a body gives that makes `%r` of `%0`, `%1`…, tensors of all elements; the last type is that of the result."""
    size = result.size
    lines = [f"%range = tt.make_range {{end = {size} : i32, start = 0 : i32}} : tensor<{size}xi32>"]
    for number, item in enumerate(types):
        pointers = f"tensor<{size}x!tt.ptr<{item}>>"
        lines += [
            f"%s{number} = tt.splat %a{number} : !tt.ptr<{item}> -> {pointers}",
            f"%p{number} = tt.addptr %s{number}, %range : {pointers}, tensor<{size}xi32>",
        ]
        if number < len(operands):
            lines.append(f"%{number} = tt.load %p{number} : {pointers}")
    last = len(types) - 1
    lines += [body, f"tt.store %p{last}, %r : tensor<{size}x!tt.ptr<{types[-1]}>>"]
    (value,) = run(function("\n".join(lines), *types), operands, [result])
    return value


def function(body: str, *types: str) -> str:
    """A kernel of pointers `%a0`, `%a1`… to elements of these types."""
    arguments = ", ".join(f"%a{number}: !tt.ptr<{item}>" for number, item in enumerate(types))
    return f"module {{ tt.func public @kernel({arguments}) {{\n{body}\ntt.return\n}} }}"


def run(kernel: str, operands: Sequence[Any], results: Sequence[Any], grid: Sequence[int] = (1, 1, 1)) -> Any:
    return hloexec.run(module_of(kernel, operands, results, grid), *map(np.asarray, operands))
