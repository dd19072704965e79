"""Library calls that go wrong, and what makes executors: workers import them by their names."""

import os
import signal
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

import numpy as np

from hloexec.core.ir import Module
from hloexec.core.values import Array

CALL = (
    'HloModule call\nENTRY e { x = f32[4] parameter(0)\n ROOT y = f32[4] custom-call(x), custom_call_target="mine" }\n'
)


def twice(x: Array) -> Array:
    return x * 2


def crash(x: Array) -> Array:
    os.kill(os.getpid(), signal.SIGKILL)
    return x


def hang(x: Array) -> Array:
    time.sleep(1000)
    return x


def take_much(x: Array) -> Array:
    return x * np.ones(1 << 31, np.float32)[:4]


def pool() -> Executor:
    return ProcessPoolExecutor(1)


def ones(module: Module) -> list[Any]:
    return [np.ones(parameter.shape.array_shape.dimensions, np.float32) for parameter in module.entry.parameters]
