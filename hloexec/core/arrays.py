"""Arrays of other libraries as NumPy arrays, and the nested containers (pytrees) that hold them.

Nested containers, as JAX's functions take and return them (pytrees): dicts, lists, tuples and what JAX knows. The
leaves stand in JAX's order: those of a dict by its sorted keys; None holds none.
"""

from __future__ import annotations

import ctypes
import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.tree import flat, of_sequence, rebuilt
from hloexec.core.values import Array, Token
from hloexec.errors import InputError

_DEEPEST = 1000
_LEAVES = (np.generic, Token, bool, int, float, complex, str, bytes)


def branches(node: object) -> list[tuple[str, Any]] | None:
    """What a container holds, behind the keys that JAX writes in paths (`['w']`, `[0]`, `.w`); None for a leaf."""
    kind = type(node)
    if kind is np.ndarray or isinstance(node, _LEAVES):
        return None
    if node is None:
        return []
    if kind not in (dict, list, tuple) and not isinstance(node, OrderedDict) and not hasattr(kind, "_fields"):
        children = None if is_foreign(node) else _registered(node)
        if children is not None:
            return children
    if isinstance(node, Mapping):
        return [(f"[{key!r}]", node[key]) for key in _keys(node)]
    if not isinstance(node, (tuple, list)):
        return None
    fields = getattr(kind, "_fields", None)
    if fields is not None:
        return [(f".{name}", value) for name, value in zip(fields, node, strict=True)]
    return [(f"[{number}]", value) for number, value in enumerate(node)]


def is_branch(node: object) -> bool:
    """Whether it is a container or None."""
    return branches(node) is not None


def tree_leaves(root: object) -> list[tuple[str, Any]]:
    """The leaves behind their paths, such as `['layers'][0].w`; InputError for what has no order or no end."""

    def below(place: tuple[tuple[str, ...], Any]) -> list[tuple[tuple[str, ...], Any]] | None:
        path, node = place
        parts = branches(node)
        if parts is not None and len(path) > _DEEPEST:
            raise InputError(f"a container nests more than {_DEEPEST} deep, or holds itself")
        return None if parts is None else [((*path, key), part) for key, part in parts]

    return [("".join(path), leaf) for path, leaf in flat(((), root), below)]


def _keys(node: Mapping[Any, Any]) -> list[Any]:
    if isinstance(node, OrderedDict):
        return list(node)
    try:
        return sorted(node)
    except TypeError:
        kinds = " and ".join(sorted({type(key).__name__ for key in node}))
        raise InputError(f"a dict has keys of type {kinds}, which cannot be sorted as JAX does") from None


def _registered(node: object) -> list[tuple[str, Any]] | None:
    """What JAX says that a node of its registry holds; None where JAX is not in use, or takes it for a leaf."""
    library = sys.modules.get("jax.tree_util")
    flatten, path_text = getattr(library, "tree_flatten_with_path", None), getattr(library, "keystr", None)
    if flatten is None or path_text is None:
        return None
    try:
        children, _ = flatten(node, is_leaf=lambda each: each is not node)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"JAX cannot flatten a {type(node).__qualname__}: {reason}") from error
    if len(children) == 1 and children[0][1] is node:
        return None
    return [(path_text(path), part) for path, part in children]


_OWN = (np.ndarray, np.memmap)
_INTEGER, _UNSIGNED, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_ELEMENTS: dict[tuple[int, int], Any] = {
    **{(_INTEGER, 8 * size): f"i{size}" for size in (1, 2, 4, 8)},
    **{(_UNSIGNED, 8 * size): f"u{size}" for size in (1, 2, 4, 8)},
    **{(_FLOAT, 8 * size): f"f{size}" for size in (2, 4, 8)},
    **{(_COMPLEX, 8 * size): f"c{size}" for size in (8, 16)},
    (_BOOL, 8): np.bool_,
    (_BFLOAT, 16): ml_dtypes.bfloat16,
    (7, 8): ml_dtypes.float8_e3m4,
    (8, 8): ml_dtypes.float8_e4m3,
    (9, 8): ml_dtypes.float8_e4m3b11fnuz,
    (10, 8): ml_dtypes.float8_e4m3fn,
    (11, 8): ml_dtypes.float8_e4m3fnuz,
    (12, 8): ml_dtypes.float8_e5m2,
    (13, 8): ml_dtypes.float8_e5m2fnuz,
    (14, 8): ml_dtypes.float8_e8m0fnu,
}
"""By the code and the bits of DLPack's data types; NumPy reads some of them only."""
_HOST_MEMORY = (1, 3)
"""DLPack's devices whose memory the processor reads: its own, and what CUDA has pinned there."""


class _Tensor(ctypes.Structure):
    """DLPack's DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def is_foreign(value: object) -> bool:
    """Whether it is an array of another library, or of a subclass of NumPy's."""
    kind = type(value)
    return kind not in _OWN and (hasattr(kind, "__array__") or hasattr(kind, "__dlpack__"))


def without_key_type(value: Any) -> Any:
    """The integers of a typed key of JAX's random numbers, which are what a module takes; anything else as it is."""
    key_type = getattr(sys.modules.get("jax.dtypes"), "prng_key", None)
    dtype = getattr(value, "dtype", None)
    if key_type is None or dtype is None or isinstance(dtype, np.dtype) or not is_foreign(value):
        return value
    jax = sys.modules["jax"]
    return jax.random.key_data(value) if jax.dtypes.issubdtype(dtype, key_type) else value


def as_array(value: Any) -> Array:
    """An array of any library, or a number, as an array of NumPy; the element type stays as it is.

    Raises InputError, with the type of `value`, where its elements cannot be read.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InputError("a numpy.ma.MaskedArray has masked elements; .filled(…) fills them")
    try:
        if not is_foreign(value) or isinstance(value, (np.ndarray, np.generic)):
            return np.asarray(value)
        return _converted(value)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].strip()
        kind = f"{type(value).__module__.partition('.')[0]} {type(value).__qualname__}".removeprefix("builtins ")
        raise InputError(f"a {kind} cannot be read as an array: {reason}") from error


def as_value(value: object, subject: str, converted: dict[int, Array] | None = None) -> Any:
    """A value with arrays of NumPy in place of other libraries', and tuples in place of lists; InputError, which calls
    it `subject`. One array stays one, also among values that are given the same dict `converted`."""
    converted = {} if converted is None else converted

    def leaf(argument: object) -> Any:
        if is_foreign(argument) and id(argument) not in converted:
            try:
                converted[id(argument)] = as_array(argument)
            except InputError as error:
                raise InputError(f"{subject}: {error.message}") from error
        return converted.get(id(argument), argument)

    return rebuilt(value, of_sequence, leaf)


def may_become(given: ElementType, element_type: ElementType) -> bool:
    """Whether `exact_integers` takes arrays of another type: integers are numbers, whatever their width."""
    return given is not element_type and given.is_integral and element_type.is_integral


def exact_integers(array: Array, element_type: ElementType, subject: str) -> Array:
    """Integers as those of another type; InputError, which calls them `subject`, names the first beyond it."""
    numbers = array.astype(element_type_of(array.dtype).compute)
    low, high = element_type.integer_range
    is_beyond = (numbers < low) | (numbers > high)
    if is_beyond.any():
        index = tuple(map(int, np.unravel_index(int(np.argmax(is_beyond)), numbers.shape)))
        place = f"element {list(index)} of {subject}" if index else subject
        raise InputError(f"{place} is {numbers[index]}, which {element_type} does not hold ({low} to {high})")
    return numbers.astype(element_type.compute).astype(element_type.storage)


def _converted(value: Any) -> Array:
    value = without_key_type(value)
    if hasattr(value, "requires_grad"):
        # PyTorch's tensors may be part of a graph of gradients, and lie on a device.
        value = value.detach().cpu()
    if not hasattr(value, "__array__"):
        return _from_dlpack(value)
    try:
        return np.asarray(value.__array__())
    except Exception:
        # PyTorch has no NumPy type for bf16.
        if not hasattr(value, "__dlpack__"):
            raise
        return _from_dlpack(value)


def _from_dlpack(value: Any) -> Array:
    """A copy of what `__dlpack__` shows."""
    capsule = value.__dlpack__()
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(pointer_of(capsule, b"dltensor"))
    if tensor.device_type not in _HOST_MEMORY:
        raise ValueError("it lies in the memory of another device; copy it to the host first")
    dtype = _ELEMENTS.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        raise ValueError(f"DLPack's type {tensor.code} of {tensor.lanes} × {tensor.bits} bits is not read")
    size = np.dtype(dtype).itemsize
    shape = tensor.shape[: tensor.rank]
    if 0 in shape:
        return np.zeros(shape, dtype)
    strides = tensor.strides[: tensor.rank] if tensor.strides else None
    if strides is None:
        strides = [int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape))]
    steps = [(count - 1) * stride for count, stride in zip(shape, strides, strict=True)]
    before, behind = -sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)
    start = tensor.data + tensor.byte_offset - before * size
    memory = (ctypes.c_uint8 * ((before + 1 + behind) * size)).from_address(start)
    # As bytes, since NumPy does not know the names of narrow types.
    first = np.frombuffer(memory, f"V{size}")[before:]
    places = np.lib.stride_tricks.as_strided(first, shape, [stride * size for stride in strides])
    return np.array(places, order="C").view(dtype)
