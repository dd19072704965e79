"""MLIR bytecode as JSON: the program of the process that reads kernels, started by `reader` with this file's path.

Damaged bytecode can corrupt the memory of the process that reads it, so that it is not the user's. This file imports
nothing of hloexec, and from jaxlib only the bindings of MLIR.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

_VERSION = "stable_mosaic.version"
_PLACE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')
_UPGRADE = "builtin.module(mosaic-serde{serialize=false})"


def module_of(bytecode: bytes, is_text: bool) -> dict[str, Any]:
    """A module of Mosaic (any version that jaxlib reads) or Triton, as lists, dictionaries, numbers and texts; or as
    MLIR writes it."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.passmanager import PassManager
    from jaxlib.mosaic.python import tpu

    with ir.Context() as context:
        tpu.register_dialect(context)
        _register_triton(context)
        context.allow_unregistered_dialects = True
        module = ir.Module.parse(bytecode)
        attributes = module.operation.attributes
        version = attributes[_VERSION] if _VERSION in attributes else None  # noqa: SIM401  # older ones have no get
        if version is not None:
            try:
                PassManager.parse(_UPGRADE).run(module.operation)
            except Exception as error:
                if "version" in str(error).lower():
                    raise
                # jaxlib does not upgrade all that it has written: the oldest forms are run as they are.
                module = ir.Module.parse(bytecode)
        if is_text:
            return {"mlir": str(module)}
        writer = _Writer(ir)
        operations = [writer.operation(item.operation) for item in module.body.operations]
        return {"operations": operations, "version": None if version is None else ir.IntegerAttr(version).value}


def _register_triton(context: Any) -> None:
    """Register Triton's dialect, which older versions of jaxlib do not have."""
    try:
        from jaxlib.triton import dialect
    except ImportError:
        return
    dialect.register_dialect(context)


class _Writer:
    """Numbers values in the order in which they are defined."""

    def __init__(self, ir: Any) -> None:
        self._ir = ir
        self._numbers: dict[Any, int] = {}

    def operation(self, operation: Any) -> dict[str, Any]:
        operands = [self._numbers[item] for item in operation.operands]
        attributes = {name: self._attribute(operation.attributes[name]) for name in operation.attributes}
        return {
            "name": operation.name,
            "operands": operands,
            "types": [str(item.type) for item in operation.operands],
            "results": [self._defined(item) for item in operation.results],
            "attributes": attributes,
            "regions": [self._region(region) for region in operation.regions],
            "source": _source(str(operation.location)),
        }

    def _region(self, region: Any) -> list[Any]:
        return [
            {
                "arguments": [self._defined(item) for item in block.arguments],
                "operations": [self.operation(item.operation) for item in block.operations],
            }
            for block in region.blocks
        ]

    def _defined(self, value: Any) -> list[Any]:
        self._numbers[value] = len(self._numbers)
        return [self._numbers[value], str(value.type)]

    def _attribute(self, attribute: Any) -> Any:
        """Numbers, texts and lists as they are; floats in hexadecimal, so that no bit is lost; all others as text."""
        ir = self._ir
        for kind, written in (
            (ir.BoolAttr, lambda item: bool(item.value)),
            (ir.IntegerAttr, lambda item: int(item.value)),
            (ir.FloatAttr, lambda item: {"float": float(item.value).hex()}),
            (ir.StringAttr, lambda item: str(item.value)),
            (ir.FlatSymbolRefAttr, lambda item: str(item.value)),
            (ir.DenseBoolArrayAttr, lambda item: [bool(part) for part in item]),
            (ir.DenseI32ArrayAttr, list),
            (ir.DenseI64ArrayAttr, list),
            (ir.ArrayAttr, lambda item: [self._attribute(part) for part in item]),
            (ir.DictAttr, lambda item: {"fields": {part.name: self._attribute(part.attr) for part in item}}),
            (ir.DenseElementsAttr, self._elements),
        ):
            if _is(attribute, kind):
                return written(kind(attribute))
        return {"text": str(attribute)}

    def _elements(self, attribute: Any) -> dict[str, Any]:
        """All elements in row-major order, or the only one where they are equal."""
        ir = self._ir
        if attribute.is_splat:
            elements = [self._attribute(attribute.get_splat_value())]
        elif _is(attribute, ir.DenseFPElementsAttr):
            elements = [{"float": float(item).hex()} for item in ir.DenseFPElementsAttr(attribute)]
        else:
            elements = [int(item) for item in ir.DenseIntElementsAttr(attribute)]
        return {"type": str(attribute.type), "elements": elements}


def _source(location: str) -> str:
    """`file:line:column` of the innermost frame of a location as MLIR writes it, all of which can be long."""
    match = _PLACE.search(location)
    return "" if match is None else ":".join(match.groups())


def _is(attribute: Any, kind: Any) -> bool:
    """Whether an attribute is one of a kind, in older bindings and in newer ones, whose classes are Python's."""
    return bool(kind.isinstance(attribute)) if hasattr(kind, "isinstance") else isinstance(attribute, kind)


def answer_to(bytecode: bytes, is_text: bool) -> dict[str, Any]:
    """`{"module": …}`, `{"missing": …}` without jaxlib, or `{"error": …}` with its complaint."""
    try:
        return {"module": module_of(bytecode, is_text)}
    except ImportError as error:
        return {"missing": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Answers each message on standard input, on standard output: its length in eight bytes, and what it says. What is
    asked has, behind its length, a byte that is not zero where text is wanted."""
    asked, answered = sys.stdin.buffer, sys.stdout.buffer
    while header := asked.read(9):
        bytecode = asked.read(int.from_bytes(header[:8], "little"))
        answer = json.dumps(answer_to(bytecode, is_text=header[8] != 0)).encode()
        answered.write(len(answer).to_bytes(8, "little") + answer)
        answered.flush()


if __name__ == "__main__":
    main()
