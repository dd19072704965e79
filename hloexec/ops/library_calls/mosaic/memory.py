"""The memory of a kernel: buffers, views of them (memrefs), and which of their elements something has written.

An element that nothing has written holds no value: it is *undefined*. So is what a block has beyond the edge of its
array. Each buffer says which elements are defined, and copies of memory copy that, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hloexec.core.dtypes import ElementType, Kind, element_type_of
from hloexec.core.structs import define
from hloexec.core.values import Array
from hloexec.core.wording import byte_text
from hloexec.errors import EvaluationError
from hloexec.ops.library_calls.mosaic.bridging import bitcast_rows
from hloexec.ops.library_calls.mosaic.ir import MlirType

_MOST_WORK: Any = 10_000
"""How much NumPy may try to find an element that two views share, before they count as sharing one."""
_MOST_BYTES = 1 << 31
"""Of a buffer near the core; TPUs have some hundred MiB at most."""
Index = tuple[Any, ...]
"""Slices and numbers, as NumPy takes them."""


AGED = 2
_DEFINED = np.uint8


@define(eq=False)
class Ref:
    """A view of a buffer: what a memref is when the kernel runs."""

    array: Array
    """A view of the buffer's array."""
    defined: Array
    """For each element, whether something has written it: a view of the buffer's. AGED: at another place of the
    parallel dimensions of a grid."""
    buffer: Array
    """The whole array; what tells buffers apart."""
    name: str
    """Of the buffer, for messages."""
    packed: Ref | None = None
    """Where the elements are the bits of another view's in rows of another width: that view. `array` is a copy then."""

    def view(self, index: Index) -> Ref:
        """A part of it."""
        if self.packed is not None:
            raise EvaluationError("a part of a memref that is seen as another element type is taken as a memref")
        index = (*index, ...)  # NumPy gives no view of a single element otherwise.
        return Ref(self.array[index], self.defined[index], self.buffer, self.name)

    def reshaped(self, sizes: Sequence[int]) -> Ref:
        """The same elements in row-major order in another shape; they must lie in one piece."""
        array, defined = self.array.reshape(sizes), self.defined.reshape(sizes)
        if array.size and not (np.may_share_memory(array, self.array) and np.may_share_memory(defined, self.defined)):
            raise EvaluationError("a memref that does not lie in one piece is reshaped")
        return Ref(array, defined, self.buffer, self.name)

    def bitcast(self, target: ElementType) -> Ref:
        """The same bits as another element type, rows packed as registers have them."""
        source = element_type_of(self.array.dtype)
        if source.bits == target.bits and self.packed is None:
            return Ref(self.array.view(target.storage), self.defined, self.buffer, self.name)
        array = bitcast_rows(self.array, target)
        rows = array.shape[-2]
        defined = np.repeat(self.defined, max(1, rows // self.array.shape[-2]), axis=-2)
        factor = defined.shape[-2] // rows
        defined = np.logical_and.reduce(defined.reshape(*array.shape[:-2], rows, factor, array.shape[-1]), -2)
        return Ref(array, defined, self.buffer, self.name, self)

    def counterpart(self, whole: Ref) -> Ref:
        """The same part of another buffer of the same type and shape, which is contiguous as this one's."""
        if self.packed is not None:
            return self.packed.counterpart(whole).bitcast(element_type_of(self.array.dtype))
        size = self.buffer.itemsize
        start = self.array.__array_interface__["data"][0] - self.buffer.__array_interface__["data"][0]
        bits = whole.buffer.reshape(-1).view(np.uint8)
        array: Array = np.ndarray(self.array.shape, self.array.dtype, bits, start, self.array.strides)
        steps = [stride // size for stride in self.array.strides]
        kept = whole.defined.reshape(-1)
        defined: Array = np.ndarray(self.array.shape, kept.dtype, kept, start // size, steps)
        return Ref(array, defined, whole.buffer, whole.name)

    def age(self) -> None:
        """What has been written was written at another place of the parallel dimensions of the grid."""
        self.defined[...] = (self.defined != 0).view(np.uint8) * np.uint8(AGED)

    def has_aged(self, index: Index) -> bool:
        """Whether some elements were written at another place."""
        return bool(self.defined[index].max(initial=0) == AGED)

    def refreshed(self) -> Ref:
        """Itself, or with the bits that the view under it has now."""
        return self if self.packed is None else self.packed.refreshed().bitcast(element_type_of(self.array.dtype))

    def store(self, index: Index, values: Any, mask: Array | None = None) -> None:
        """Write to some elements, where a mask says so."""
        ref = self.refreshed()
        if mask is None:
            ref.array[index], ref.defined[index] = values, True
        else:
            ref.array[index][mask] = np.broadcast_to(values, mask.shape)[mask]
            ref.defined[index][mask] = True
        if ref.packed is not None:
            under = ref.packed
            under.store((...,), bitcast_rows(ref.array, element_type_of(under.array.dtype)))

    def copy_from(self, source: Ref) -> None:
        """Copy all elements of a view of this shape, and which of them are defined."""
        source = source.refreshed()
        if self.packed is None:
            self.array[...], self.defined[...] = source.array, source.defined
        else:
            self.store((...,), source.array)

    def overlaps(self, other: Ref) -> bool:
        """Whether two views share an element."""
        if self.buffer is not other.buffer:
            return False
        one, two = self.packed or self, other.packed or other
        try:
            return bool(np.shares_memory(one.array, two.array, max_work=_MOST_WORK))
        except np.exceptions.TooHardError:
            return True


def undefined_value(element: ElementType) -> Any:
    """What stands for an undefined element: NaN where there is one, else the least number; False of preds."""
    if element.is_floating:
        return np.array(np.nan if element.has_nan else 0.0).astype(element.storage)
    if element.kind is Kind.PRED:
        return np.False_
    return np.array(element.integer_range[0]).astype(element.storage)


def other_value(element: ElementType) -> Any:
    """Another value that an undefined element may have, to see whether results depend on it."""
    return np.array(1).astype(element.storage)


def allocate(value_type: MlirType, sizes: Sequence[int], name: str) -> Ref:
    """A buffer that nothing has written; semaphores are zero."""
    element = value_type.element_type
    size = math.prod(sizes) * element.byte_size
    if size > _MOST_BYTES:
        raise EvaluationError(f"{name} has {byte_text(size)}, which is more than TPUs have near their cores")
    value = np.zeros((), np.int32) if value_type.is_semaphore else undefined_value(element)
    array = np.full(tuple(sizes), value, element.storage)
    return Ref(array, np.full(array.shape, value_type.is_semaphore, _DEFINED), array, name)


def whole(array: Array, name: str, *, is_defined: bool = True) -> Ref:
    """A buffer that is an array."""
    is_fixed = is_defined and not array.flags.writeable
    defined = np.broadcast_to(np.True_, array.shape) if is_fixed else np.full(array.shape, is_defined, _DEFINED)
    return Ref(array, defined, array, name)
