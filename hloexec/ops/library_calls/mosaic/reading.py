"""From the backend_config of a `tpu_custom_call` to a `Kernel`: the bytecode is read by a process of its own.

The config is JSON, and its `custom_call_config` has the kernel as base64 of MLIR bytecode, in the dialects of Mosaic.
Versions that jaxlib knows are upgraded by it. Source: JAX, tpu_custom_call.py; MLIR, "MLIR Bytecode Format".
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from hloexec.core.structs import frozen
from hloexec.errors import UnsupportedError
from hloexec.ops.library_calls.configs import json_object
from hloexec.ops.library_calls.mosaic.ir import Elements, Kernel, Operation, Region, Text, parse_type
from hloexec.ops.library_calls.mosaic.reader import READER

_DAMAGED = "the bytecode of its kernel cannot be read, as it is damaged, or of a version that jaxlib does not know"
_Read = TypeVar("_Read")
_BODY = "its custom_call_config has no kernel, as base64 in `body`"


@frozen(eq=False)
class Call:
    """What a call says besides its operands."""

    kernel: Kernel
    has_communication: bool


@lru_cache(maxsize=256)
def read_call(backend_config: str) -> Call:
    """The kernel of a call; UnsupportedError says why it cannot be read."""
    config, bytecode = _config(backend_config)
    return Call(read_kernel(bytecode), config.get("has_communication") is True)


def bytecode_of(backend_config: str) -> bytes:
    """The kernel of a call, as bytecode; UnsupportedError where it has none."""
    return _config(backend_config)[1]


def _config(backend_config: str) -> tuple[dict[str, Any], bytes]:
    config = json_object(backend_config).get("custom_call_config")
    body = config.get("body") if isinstance(config, dict) else None
    if not isinstance(config, dict) or not isinstance(body, str):
        raise UnsupportedError(_BODY)
    try:
        bytecode = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnsupportedError(f"{_BODY} ({error})") from None
    return config, bytecode


@lru_cache(maxsize=256)
def read_kernel(bytecode: bytes) -> Kernel:
    """The kernel that bytecode holds; UnsupportedError without jaxlib, and where the bytecode cannot be read."""
    return _read(_answer(bytecode), _kernel)


def read_text(bytecode: bytes) -> str:
    """The kernel that bytecode holds, as MLIR writes it; UnsupportedError as of `read_kernel`."""
    return _read(_answer(bytecode, is_text=True), lambda module: str(module["mlir"]))


def _read(answer: Mapping[str, Any], made: Callable[[Mapping[str, Any]], _Read]) -> _Read:
    if "missing" in answer:
        raise UnsupportedError(f"reading its kernel needs jaxlib ({answer['missing']}): install hloexec[jax]")
    complaint = answer.get("error")
    if complaint is None:
        try:
            return made(answer["module"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            complaint = f"{type(error).__name__}: {error}"
    raise UnsupportedError(f"{_DAMAGED} ({' '.join(str(complaint).split())[:300]})")


def _answer(bytecode: bytes, *, is_text: bool = False) -> dict[str, Any]:
    """What the reader says, with attributes as those of `ir`; an error where it ended in the middle of it."""
    text = READER.answer(bytecode, is_text=is_text)
    try:
        answer: dict[str, Any] = {} if text is None else json.loads(text, object_hook=_attribute)
    except ValueError:
        answer = {}
    return answer or {"error": "its reader crashed, or took more than a minute"}


def _kernel(module: Mapping[str, Any]) -> Kernel:
    functions = [_operation(item) for item in module["operations"]]
    named = {str(item.attributes.get("sym_name")): item for item in functions if item.name.endswith(".func")}
    mains = [
        item
        for item in functions
        if "tpu.core_type" in item.attributes
        or "dimension_semantics" in item.attributes
        or (item.name == "tt.func" and item.attributes.get("sym_visibility") != "private")
    ]
    main = mains[0] if mains else next(iter(named.values()), None)
    if main is None or len(mains) > 1 or len(main.regions) != 1 or not main.regions[0].operations:
        raise UnsupportedError(f"its kernel has {len(mains)} functions that are bodies, but must have one")
    return Kernel(str(main.attributes.get("sym_name", "kernel")), main, named, _value_count(functions))


def _value_count(functions: list[Operation]) -> int:
    highest, pending = -1, list(functions)
    while pending:
        operation = pending.pop()
        highest = max((highest, *operation.results, *(n for region in operation.regions for n in region.arguments)))
        pending += [item for region in operation.regions for item in region.operations]
    return highest + 1


def _operation(fields: Mapping[str, Any]) -> Operation:
    return Operation(
        name=fields["name"].removeprefix("stable_mosaic."),
        operands=tuple(fields["operands"]),
        operand_types=tuple(map(parse_type, fields["types"])),
        results=tuple(number for number, _ in fields["results"]),
        result_types=tuple(parse_type(text) for _, text in fields["results"]),
        attributes={name: _fixed(value) for name, value in fields["attributes"].items()},
        regions=tuple(map(_region, fields["regions"])),
        source=fields["source"],
    )


def _region(blocks: list[Any]) -> Region:
    if len(blocks) > 1:
        raise UnsupportedError("its kernel jumps between blocks (cf.br); hloexec runs structured control flow (scf)")
    block = blocks[0] if blocks else {"arguments": [], "operations": []}
    return Region(
        tuple(number for number, _ in block["arguments"]),
        tuple(parse_type(text) for _, text in block["arguments"]),
        tuple(map(_operation, block["operations"])),
    )


def _fixed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _attribute(value: dict[str, Any]) -> Any:
    """An object of JSON as the attribute that it stands for; one that stands for an operation or a block as it is."""
    if "float" in value:
        return float.fromhex(value["float"])
    if "elements" in value:
        return Elements(parse_type(value["type"]), tuple(value["elements"]))
    if "text" in value:
        return Text(value["text"])
    return value.get("fields", value)
