"""A module as a function of JAX: its StableHLO in the place of what `jax.export` makes of a function of the same
types."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import attrs

from hloexec.core.arguments import require_module
from hloexec.core.ir import ArrayShape, Module, Shape, TupleShape
from hloexec.core.ir.editing import map_instructions
from hloexec.engine.devices.equivalents import compiled_by_xla
from hloexec.engine.devices.topology import topology_of
from hloexec.errors import UnsupportedError
from hloexec.jax import internals
from hloexec.language.interop.through_jaxlib import of_jaxlib
from hloexec.language.text import format as format_module


def to_jax(module: Module) -> Callable[..., Any]:
    """A module for one device as a function of JAX, through StableHLO.

    The function takes one array per parameter, and returns an array or a tuple of arrays, as the module does. It can be
    jitted, and called by other functions of JAX; it has no gradient, and no rule for vmap. Of a module after
    optimization, it computes the same in operations that StableHLO has.

    Raises UnsupportedError without JAX, and for a module that is for several devices, has parameters or results that
    are no arrays, has types of 64 bits where JAX has them switched off, or has what StableHLO cannot express.
    """
    require_module(module)
    internals.jax_version()
    import jax
    import jax.export

    devices = topology_of(module, None, None).count
    if devices > 1:
        raise UnsupportedError(
            f"{module.name} is for {devices} devices; a function of JAX is made of one for one device"
        )
    parameters = [_type(shape, module) for shape in module.entry.parameter_shapes]
    result = module.entry.result_shape
    elements = result.elements if isinstance(result, TupleShape) else (result,)
    results = [_type(shape, module) for shape in elements]

    def typed(*_: Any) -> Any:
        arrays = tuple(jax.numpy.zeros(each.shape, each.dtype) for each in results)
        return arrays if isinstance(result, TupleShape) else arrays[0]

    exported = jax.export.export(jax.jit(typed, keep_unused=True))(*parameters)
    exported = dataclasses.replace(
        exported, fun_name=module.name, mlir_module_serialized=_bytecode(module), _get_vjp=None
    )
    function: Callable[..., Any] = exported.call
    return function


def _type(shape: Shape, module: Module) -> Any:
    import jax

    if not isinstance(shape, ArrayShape) or not shape.is_array or shape.is_dynamic:
        raise UnsupportedError(f"{module.name} takes or gives {shape}; a function of JAX takes and gives arrays")
    dtype = shape.element_type.storage
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise UnsupportedError(f"{module.name} takes or gives {shape}, for which JAX needs jax_enable_x64")
    return jax.ShapeDtypeStruct(shape.dimensions, dtype)


def _bytecode(module: Module) -> bytes:
    """The portable artifact of a module's StableHLO."""
    from jaxlib.mlir.dialects import stablehlo

    compiled = compiled_by_xla(module)
    try:
        try:
            mlir = _stablehlo(compiled)
        except Exception:  # older parsers do not know how newer texts tell source lines
            plain = map_instructions(compiled, lambda _, instruction: attrs.evolve(instruction, metadata=None))
            mlir = _stablehlo(attrs.evolve(plain, stack_frames=None))
        return bytes(stablehlo.serialize_portable_artifact_str(mlir, stablehlo.get_current_version()))
    except Exception as error:
        raise UnsupportedError(f"{module.name} cannot be expressed in StableHLO: {error}") from error


def _stablehlo(module: Module) -> Any:
    proto = of_jaxlib("hlo_module_from_text")(format_module(module)).as_serialized_hlo_module_proto()
    return of_jaxlib("mlir").xla_computation_to_mlir_module(of_jaxlib("XlaComputation")(proto))
