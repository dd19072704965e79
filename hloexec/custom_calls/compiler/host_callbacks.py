"""Calls back into the program that made the module: a dump does not hold what they run, so they are refused by name."""

from __future__ import annotations

from typing import Any

from hloexec.custom_calls.registry import custom_call
from hloexec.errors import UnsupportedError
from hloexec.ir import Instruction

__all__: list[str] = []

_REASON = (
    "it calls back a Python function of the program that made the module, which the text does not hold; give it one "
    "with hloexec.register_custom_call(target, function)"
)


@custom_call(
    "xla_python_cpu_callback",
    "xla_python_gpu_callback",
    "xla_ffi_python_cpu_callback",
    "xla_ffi_partitioned_python_cpu_callback",
    "xla_ffi_python_gpu_callback",
    "xla_ffi_partitioned_python_gpu_callback",
    "xla_buffer_python_cpu_callback",
    "xla_buffer_python_gpu_callback",
)
class PythonCallback:
    """What a Python function gives: `jax.pure_callback`, `jax.experimental.io_callback`, `jax.debug.print`.

    The backend_config is the address or the number of the function in the process that compiled the module. Source:
    jaxlib, callback custom calls.
    """

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        return _REASON

    @staticmethod
    def evaluate(*operands: object) -> Any:
        raise UnsupportedError(_REASON)


@custom_call("HostExecute", "tf.call_tf_function")
class HostExecute:
    """What another program gives that runs on the host: a computation compiled apart, or a TensorFlow function.

    Source: XLA, host offloading; JAX, jax2tf.call_tf.
    """

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        return (
            "it runs a program on the host that the text does not hold; give it a function with "
            "hloexec.register_custom_call(target, function)"
        )

    @staticmethod
    def evaluate(*operands: object) -> Any:
        raise UnsupportedError("a program on the host is not in the text")


@custom_call("CustomSPMDPartitioning")
class CustomPartitioning:
    """A computation of which Python functions say how it is partitioned (`jax.experimental.custom_partitioning`).

    Its body is in the backend_config of the process that made the module; XLA's partitioner puts it in place. Source:
    JAX, custom_partitioning; XLA, custom_call_sharding_helper.
    """

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        return _PARTITIONING

    @staticmethod
    def evaluate(*operands: object) -> Any:
        raise UnsupportedError(_PARTITIONING)


_PARTITIONING = (
    "a Python function of the program that made the module says how it is partitioned; take the module after XLA's "
    "SPMD partitioner, which puts the computation in its place"
)
