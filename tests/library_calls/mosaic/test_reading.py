"""What cannot be read or run is refused in a sentence, before the run: damaged bytecode, unknown operations, no jaxlib."""

from __future__ import annotations

import base64
import io
import json
import math
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

import hloexec
from hloexec.errors import HloError, UnsupportedError
from hloexec.ops.library_calls.mosaic import programs, reader, reading
from hloexec.ops.library_calls.mosaic.ir import parse_type
from hloexec.ops.library_calls.mosaic.operations.control import TERMINATORS
from hloexec.ops.library_calls.mosaic.reader import READER
from hloexec.ops.library_calls.mosaic.registry import operations
from hloexec.ops.registry import CUSTOM_CALLS
from tests.command_line import CommandLine
from tests.library_calls.mosaic import blocks, later, more, movement  # noqa: F401  # fill CASES
from tests.library_calls.mosaic.kernels import CASES, matmul_int8
from tests.library_calls.mosaic.lowering import lowered, require_pallas
from tests.text.building import op


@pytest.fixture(autouse=True)
def _pallas() -> None:
    require_pallas()


@cache
def product() -> tuple[hloexec.Module, tuple[Any, ...]]:
    case = matmul_int8()
    return lowered(case), case.arguments


def body_of(module: hloexec.Module) -> bytes:
    config = json.loads(module.entry.root.backend_config or "")
    return base64.b64decode(config["custom_call_config"]["body"])


def with_config(module: hloexec.Module, config: str) -> hloexec.Module:
    """The module, whose root is a call, with another config."""
    text = hloexec.format(module)
    return hloexec.parse(re.sub(r"backend_config=.*", lambda _: f"backend_config={json.dumps(config)}", text))


def with_body(module: hloexec.Module, body: bytes) -> hloexec.Module:
    return with_config(module, json.dumps({"custom_call_config": {"body": base64.b64encode(body).decode()}}))


def refusal(module: hloexec.Module, arguments: tuple[Any, ...] | None = None) -> str:
    with pytest.raises(HloError) as caught:
        hloexec.run(module, *(product()[1] if arguments is None else arguments))
    return str(caught.value)


@pytest.mark.parametrize("config", ["", "code", "[]", "{}", '{"custom_call_config": {}}', '{"custom_call_config": 3}'])
def test_a_call_without_a_kernel_is_refused(config: str) -> None:
    message = refusal(with_config(product()[0], config))
    assert "tpu_custom_call" in message
    assert "backend_config" in message or "has no kernel" in message


def test_what_is_no_base64_is_refused() -> None:
    message = refusal(with_config(product()[0], '{"custom_call_config": {"body": "TUz*"}}'))
    assert "as base64 in `body`" in message


@pytest.mark.parametrize("length", [1, 4, 100, 1000])
def test_bytecode_that_is_cut_off_is_refused(length: int) -> None:
    assert "cannot be read, as it is damaged" in refusal(with_body(product()[0], body_of(product()[0])[:length]))


def test_a_module_without_a_body_is_refused() -> None:
    assert "its kernel has 0 functions that are bodies, but must have one" in refusal(with_body(product()[0], b""))


def changed(seed: int, body: bytes) -> bytes:
    source = random.Random(seed)
    content = bytearray(body)
    for _ in range(source.randrange(1, 4)):
        content[source.randrange(len(content))] = source.randrange(256)
    return bytes(content)


@pytest.mark.parametrize("seed", [*range(60), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(60, 500))])
def test_bytecode_that_is_changed_is_refused_or_runs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but errors of hloexec's come out, and this process lives on."""
    monkeypatch.setattr(reader, "_SECONDS", 5.0)
    module, arguments = product()
    body = changed(seed, body_of(module))
    try:
        if math.prod(reading.read_kernel(body).main.attributes.get("iteration_bounds", ())) > 10_000:
            pytest.skip("its grid has become too large to be run through here")
        result = hloexec.run(with_body(module, body), *arguments)
    except HloError as error:
        assert len(str(error)) > 20
    else:
        assert result.shape == (64, 128)


def test_a_newer_version_is_refused_with_what_jaxlib_says() -> None:
    from jaxlib.mlir import ir
    from jaxlib.mosaic.python import tpu

    with ir.Context() as context, ir.Location.unknown():
        tpu.register_dialect(context)
        context.allow_unregistered_dialects = True
        module = ir.Module.parse(body_of(product()[0]))
        version = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 999)
        module.operation.attributes["stable_mosaic.version"] = version
        written = io.BytesIO()
        module.operation.write_bytecode(written)
    message = refusal(with_body(product()[0], written.getvalue()))
    assert "of a version that jaxlib does not know" in message
    assert "999" in message


def test_without_jaxlib_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(READER, "answer", lambda bytecode, **_: b'{"missing": "No module named jaxlib"}')
    reading.read_call.cache_clear()
    reading.read_kernel.cache_clear()
    with pytest.raises(UnsupportedError, match=r"needs jaxlib .*: install hloexec\[jax\]"):
        reading.read_kernel(b"")


def test_a_reader_that_crashed_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reading.read_kernel.cache_clear()
    body = body_of(product()[0])
    assert reading.read_kernel(body).name == "kernel"
    process = READER._process
    assert process is not None
    process.kill()
    process.wait()
    reading.read_kernel.cache_clear()
    assert reading.read_kernel(body).name == "kernel"
    assert READER._process is not process


def test_operations_without_an_entry_are_named_before_the_run() -> None:
    kernel = reading.read_kernel(body_of(product()[0]))
    unknown = attrs.evolve(kernel.body.operations[0], name="tpu.new_operation")
    body = attrs.evolve(kernel.body, operations=(unknown, *kernel.body.operations))
    main = attrs.evolve(kernel.main, regions=(body,))
    other = attrs.evolve(kernel, main=main, functions={**kernel.functions, kernel.name: main})
    reason = programs.reason_against(other)
    assert reason is not None
    assert reason.startswith("kernel 'kernel' has operations that hloexec does not run: tpu.new_operation")
    # Kernels of JAX 0.12 have no source lines.
    assert unknown.source == "" or (" (first at " in reason and "kernels.py:" in reason)


def kernel_of(body: Callable[..., None], *operands: Any, **said: Any) -> hloexec.Module:
    import jax
    from jax.experimental import pallas as pl

    call = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((8, 128), np.int32), **said)
    return hloexec.from_jax(jax.jit(call).trace(*operands).lower(lowering_platforms=("tpu",)))


def test_random_bits_of_the_hardware_are_refused_by_name() -> None:
    from jax.experimental.pallas import tpu as pltpu

    def kernel(out: Any) -> None:
        pltpu.prng_seed(7)
        out[...] = pltpu.prng_random_bits((8, 128))

    message = refusal(kernel_of(kernel), ())
    assert re.search(r"kernel 'kernel' has tpu\.prng_set_seed_32(, |:| at \S*test_reading\.py:\d+)", message)
    assert "no definition is public" in message


def test_operands_that_do_not_fit_the_kernel_are_refused() -> None:
    module, arguments = product()
    text = hloexec.format(module)
    for wrong in (
        re.sub(r"custom-call\(%(\S+), %\S+\)", r"custom-call(%\1)", text),
        re.sub(r"custom-call\(%(\S+), %(\S+)\)", r"custom-call(%\1, %\2, %\2)", text),
    ):
        wrong = re.sub(r"operand_layout_constraints=\{.*?\}\}, ", "", wrong)
        with pytest.raises(HloError, match="kernel 'kernel' takes 2 operands and gives 1 result"):
            hloexec.run(hloexec.parse(wrong), *arguments)


def test_a_policy_of_the_same_bits_everywhere_refuses_kernels() -> None:
    module, arguments = product()
    with pytest.raises(UnsupportedError, match="asks for the same bits on every processor"):
        hloexec.run(module, *arguments, numerics="exact")


def test_tools_take_a_kernel_as_any_library_call(tmp_path: Path) -> None:
    module, arguments = product()
    trace = hloexec.trace(module, arguments, tmp_path / "trace")
    assert trace.find(module.entry.root.name).opcode == "custom-call"
    assert hloexec.parse(hloexec.format(module)) == module
    assert hloexec.find_nan(module, arguments).finding is None


@pytest.mark.parametrize(
    ("text", "kind", "element", "dimensions", "space"),
    [
        ("f32", "scalar", "f32", (), ""),
        ("index", "scalar", "index", (), ""),
        ("vector<8x128xbf16>", "vector", "bf16", (8, 128), ""),
        ("vector<8xf8E4M3FN>", "vector", "f8E4M3FN", (8,), ""),
        ("memref<8x?xi32, #tpu.memory_space<smem>>", "memref", "i32", (8, -(2**63)), "smem"),
        (
            "memref<!tpu.dma_semaphore, #tpu.memory_space<semaphore_mem>>",
            "memref",
            "!tpu.dma_semaphore",
            (),
            "semaphore_mem",
        ),
        ("memref<4xf32, strided<[1], offset: 3>, #tpu.memory_space<vmem>>", "memref", "f32", (4,), "vmem"),
        ("!tpu.thing", "other", "!tpu.thing", (), ""),
    ],
)
def test_types_are_read(text: str, kind: str, element: str, dimensions: tuple[int, ...], space: str) -> None:
    read = parse_type(text)
    assert (read.kind, read.element, read.dimensions, read.memory_space) == (kind, element, dimensions, space)


def test_every_operation_says_what_it_computes() -> None:
    entries = operations()
    assert len(entries) > 150
    assert all(entry.documentation.endswith(".") for entry in entries.values())
    assert TERMINATORS.isdisjoint(entries)
    assert CUSTOM_CALLS["tpu_custom_call"].documentation


def test_the_examples_have_most_of_the_operations() -> None:
    """What no example has is not tried."""
    met = {
        operation.name
        for name in CASES
        for operation in reading.read_kernel(body_of_call(lowered(CASES[name]()))).operations()
    }
    assert len(met) > 80


def body_of_call(module: hloexec.Module) -> bytes:
    (call,) = [each for each in module.entry if each.opcode == "custom-call"]
    return base64.b64decode(json.loads(call.backend_config or "")["custom_call_config"]["body"])


def test_calls_of_text_alone_are_refused_with_the_name_of_the_target() -> None:
    text = op('f32[3] custom-call(x), custom_call_target="tpu_custom_call", backend_config="code"', x="f32[3]")
    assert "tpu_custom_call" in refusal(hloexec.parse(text), (np.zeros(3, np.float32),))


def test_kernels_are_printed_as_mlir(cli: CommandLine, tmp_path: Path) -> None:
    module, _ = product()
    file = tmp_path / "module.hlo"
    file.write_text(hloexec.format(module))
    text = cli("fmt --kernels", file)
    assert text.startswith("// %pallas_call")
    assert 'custom_call_target="tpu_custom_call"' in text.splitlines()[0]
    assert "func.func" in text
    assert "tpu.matmul" in text
    broken = tmp_path / "broken.hlo"
    broken.write_text(hloexec.format(with_body(module, b"MLIR")))
    assert "// the bytecode of its kernel cannot be read" in cli("fmt --kernels", broken)
    assert "--kernels prints MLIR" in cli.complaint("fmt --kernels --no-layouts", file)
    plain = tmp_path / "plain.hlo"
    plain.write_text(op("f32[2] negate(a)", a="f32[2]"))
    assert "has no kernels" in cli.complaint("fmt --kernels", plain)
