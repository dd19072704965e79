"""Arrays in a file that processes hand to one another: a line of JSON that lists types and shapes, then the bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def write_arrays(path: Path, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    with path.open("wb") as file:
        index = [[array.dtype.name, list(array.shape)] for array in arrays]
        file.write(json.dumps(index).encode() + b"\n")
        for array in arrays:
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def read_arrays(path: Path | str) -> list[np.ndarray[Any, Any]]:
    with open(path, "rb") as file:
        index = json.loads(file.readline())
        arrays = []
        for name, shape in index:
            dtype = _dtype(name)
            count = int(np.prod(shape, dtype=np.int64))
            arrays.append(np.fromfile(file, np.uint8, count * dtype.itemsize).view(dtype).reshape(shape))
    return arrays


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
