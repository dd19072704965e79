"""Calls whose code is not in the dump, refused by name: callbacks, kernels of other compilers, unrefined shapes."""

from __future__ import annotations

from hloexec.ops.registry import refuse_custom_calls

refuse_custom_calls(
    "xla_python_cpu_callback",
    "xla_python_gpu_callback",
    "xla_ffi_python_cpu_callback",
    "xla_ffi_partitioned_python_cpu_callback",
    "xla_ffi_python_gpu_callback",
    "xla_ffi_partitioned_python_gpu_callback",
    "xla_buffer_python_cpu_callback",
    "xla_buffer_python_gpu_callback",
    reason="it calls back a Python function of the program that made the module, which the text does not hold",
    documentation="""
    The result of a Python function: `jax.pure_callback`, `jax.experimental.io_callback`, `jax.debug.print`.

    The backend_config is the address or the number of the function in the process that compiled the module. Source:
    jaxlib, callback custom calls.
    """,
)
refuse_custom_calls(
    "tf.call_tf_function",
    reason="it runs a program on the host that the text does not hold",
    documentation="""
    The result of another program that runs on the host, a TensorFlow function.

    Source: JAX, jax2tf.call_tf.
    """,
)
refuse_custom_calls(
    "CustomSPMDPartitioning",
    reason="a Python function of the program that made the module says how it is partitioned; take the module after "
    "XLA's SPMD partitioner, which puts the computation in its place",
    documentation="""
    A computation that Python functions partition (`jax.experimental.custom_partitioning`).

    Its body is in the backend_config of the process that made the module; XLA's partitioner inlines it. Source:
    JAX, custom_partitioning; XLA, custom_call_sharding_helper.
    """,
)
# StableHLO's shape refinement replaces these by the plain operations; XLA has no implementation either.
refuse_custom_calls(
    "stablehlo.dynamic_reduce_window",
    "stablehlo.dynamic_rng_bit_generator",
    "stablehlo.dynamic_top_k",
    "stablehlo.dynamic_approx_top_k",
    "dynamic_ducc_fft",
    reason="it represents an operation whose sizes are values, which is replaced once they are known: export the "
    "function at shapes that are, or refine the shapes of the module before XLA reads it, as jax.export's call does",
    documentation="""
    The operation of that name, with sizes as operands. Refused.

    Source: StableHLO, stablehlo/transforms/StablehloRefineShapes.cpp; JAX, jax2tf shape polymorphism.
    """,
)

_COMPILERS = {
    "Mosaic for TPUs (Pallas)": ("tpu_custom_call",),
    "Mosaic for GPUs (Pallas)": ("mosaic_gpu", "mosaic_gpu_v2"),
    "Triton": ("__gpu$xla.gpu.triton", "triton_kernel_call", "triton_kernel_call_ffi"),
    "CUDA (PTX)": ("__gpu$xla.gpu.ptx",),
    "CUTLASS (CuTe DSL)": (
        "CuteDSLRT_NvJaxCutlassCall",
        "__xla_gpu_cutedsl_call_v3",
        "__xla_gpu_cutedsl_collective_v3",
    ),
}
"""Who compiles what stands behind a target."""

_UNDERSTOOD = "it is a kernel that {compiler} compiles, and only that compiler understands the code in the text"
_INTERPRETED = (
    "; a pallas_call is lowered to HLO with interpret=True, and what XLA made a kernel of is HLO in the module before "
    "optimization"
)

for _compiler, _targets in _COMPILERS.items():
    refuse_custom_calls(
        *_targets,
        reason=_UNDERSTOOD.format(compiler=_compiler) + (_INTERPRETED if "Pallas" in _compiler else ""),
        documentation=f"What a kernel computes that its author wrote for {_compiler}.\n\nSource: JAX, Pallas; XLA:GPU.",
    )
