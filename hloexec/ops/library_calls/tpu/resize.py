"""Resizing of images, `[batch, height, width, channels]`, as TensorFlow and PyTorch call it on TPUs."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from hloexec.core.dtypes import element_type
from hloexec.core.ir import ArrayShape, Instruction
from hloexec.core.values import Array
from hloexec.errors import EvaluationError, UnsupportedError
from hloexec.ops.common import narrow, widen
from hloexec.ops.policies.exact.products import ExactMultiplier, exact_matrix_product
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import custom_call

_RANK = 4
_PRODUCT = ExactMultiplier(lambda operand: (operand,))
_CONFIG = re.compile(r'"?([01])([01])"?')


def _flags(instruction: Instruction) -> tuple[bool, bool]:
    """align_corners and half_pixel_centers."""
    digits = _CONFIG.fullmatch((instruction.backend_config or "").strip())
    if digits is None:
        raise UnsupportedError(
            f"its backend_config must be two digits, align_corners and half_pixel_centers, but is "
            f"{instruction.backend_config!r}"
        )
    shape = instruction.shape
    if not isinstance(shape, ArrayShape) or shape.rank != _RANK:
        raise UnsupportedError(f"its result is {shape} and no [batch, height, width, channels]")
    averages = instruction.attributes.custom_call_target != "ResizeNearest"
    if averages and not shape.element_type.is_floating:
        raise UnsupportedError(f"its result is {shape}, but sums of weighted elements are floating-point numbers")
    return digits[1] == "1", digits[2] == "1"


@custom_call("ResizeNearest", config=_flags, is_reproducible=True)
class ResizeNearest:
    """out[b, y, x, c] = operand[b, y', x', c], with y' = (y + h)·s rounded down, with aligned corners to the nearest.

    The config is that of ResizeBilinear.
    Source: TensorFlow, tf2xla image_resize_ops; PyTorch/XLA, resize_ops.
    """

    @staticmethod
    def evaluate(operand: Array, *, shape: ArrayShape, config: tuple[bool, bool]) -> Array:
        _check(operand, shape)
        rows, columns = (
            _nearest(size, result, *config)
            for size, result in zip(operand.shape[1:3], shape.dimensions[1:3], strict=True)
        )
        return operand[:, rows[:, None], columns]


def _check(operand: Array, shape: ArrayShape) -> None:
    same = operand.ndim == _RANK and (operand.shape[0], operand.shape[3]) == (shape.dimensions[0], shape.dimensions[3])
    if not same or 0 in operand.shape[1:3] or 0 in shape.dimensions[1:3]:
        raise EvaluationError(f"an image of dimensions {list(operand.shape)} cannot be resized to {shape}")


def _weighted(matrix: Array, values: Array, axis: int, numerics: NumericsPolicy) -> Array:
    """The product of a matrix and an array along one of its axes; under `exact` in f64, whatever the BLAS."""
    if not numerics.is_exact:
        return np.moveaxis(np.tensordot(matrix.astype(values.dtype), values, (1, axis)), 0, axis)
    columns = np.moveaxis(values, axis, 0)
    product = exact_matrix_product(matrix, columns.reshape(len(columns), -1), element_type("f64"), _PRODUCT)
    return np.moveaxis(product.reshape(len(matrix), *columns.shape[1:]), 0, axis)


def _samples(size: int, result: int, align_corners: bool, half_pixel_centers: bool) -> Array:
    """The coordinates of the result's elements in the operand, not yet shifted back by half a pixel."""
    ratio = (size - 1) / (result - 1) if align_corners and result > 1 else size / result
    index = np.arange(result, dtype=np.float32) + np.float32(0.5 if half_pixel_centers else 0)
    return np.asarray(index * np.float32(ratio))


def _nearest(size: int, result: int, align_corners: bool, half_pixel_centers: bool) -> Array:
    samples = _samples(size, result, align_corners, half_pixel_centers)
    chosen = np.floor(samples + np.float32(0.5)) if align_corners else np.floor(samples)
    return np.clip(chosen, 0, size - 1).astype(np.int64)


def _bilinear_weights(size: int, result: int, align_corners: bool, half_pixel_centers: bool) -> Array:
    """[result, size]: two neighbours' weights per row, which add up to 1."""
    samples = _samples(size, result, align_corners, half_pixel_centers)
    place = np.clip(samples - np.float32(0.5 if half_pixel_centers else 0), 0, size - 1)
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, size - 1)
    part = (place - low).astype(np.float32)
    weights = np.zeros((result, size), np.float32)
    rows = np.arange(result)
    weights[rows, low] = 1 - part
    weights[rows, high] += part
    return weights


class _WeightedResize:
    """The operand times the weights of its rows, then of its columns; rounded once."""

    weights: Callable[[int, int, bool, bool], Array]
    """From the sizes before and after, align_corners and half_pixel_centers to a matrix [after, before]."""
    is_gradient = False

    @classmethod
    def evaluate(
        cls, operand: Array, *, shape: ArrayShape, config: tuple[bool, bool], numerics: NumericsPolicy
    ) -> Array:
        _check(operand, shape)
        values = widen(operand)
        for axis in (1, 2):
            size, result = operand.shape[axis], shape.dimensions[axis]
            matrix = cls.weights(result, size, *config).T if cls.is_gradient else cls.weights(size, result, *config)
            values = _weighted(matrix, values, axis, numerics)
        return narrow(np.ascontiguousarray(values), shape.element_type)


@custom_call("ResizeBilinear", config=_flags, is_reproducible=True)
class ResizeBilinear(_WeightedResize):
    """out[b, y, x, c] = linear interpolation of the operand at the coordinates (y', x'), which are clamped to its
    edges.

    backend_config is two digits: align_corners and half_pixel_centers. y' = (y + h)·s − h, where h is ½ with half pixel
    centers, else 0, and s is the ratio of the heights, of the heights less 1 with aligned corners; computed in f32.
    Source: TensorFlow, tf2xla image_resize_ops; PyTorch/XLA, resize_ops.
    """

    weights = staticmethod(_bilinear_weights)


@custom_call("ResizeBilinearGrad", config=_flags, is_reproducible=True)
class ResizeBilinearGrad(ResizeBilinear):
    """The gradient of ResizeBilinear: each element of the operand goes, with its weights, to where it came from.

    Source: TensorFlow, tf2xla image_resize_ops; PyTorch/XLA, resize_ops.
    """

    is_gradient = True


@custom_call("ResizeNearestGrad", config=_flags, is_reproducible=True)
class ResizeNearestGrad(_WeightedResize):
    """The gradient of ResizeNearest: each element of the operand is added to where it came from.

    Source: TensorFlow, tf2xla image_resize_ops; PyTorch/XLA, resize_ops.
    """

    weights = staticmethod(lambda size, *others: np.eye(size, dtype=np.float32)[_nearest(size, *others)])
    is_gradient = True
