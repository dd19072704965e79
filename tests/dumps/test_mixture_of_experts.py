"""The training step of a mixture of experts, optimized for sixteen GPUs: each of its computations by itself, at its own
size where that fits and cut down where it does not, and the whole of it cut down to a 64th.

The truth is XLA:CPU on the equivalent modules; each element of a floating-point result keeps to what rounding does to
it, as sixteen runs on the same inputs show. (Six, with which a comparison begins, miss what one rounding in ten does to
a sum of a few terms: among the 12.8 million elements there are seven of those, in two of 293 computations. Sixteen may
miss it, too: which elements XLA rounds the other way depends on the processor. What they leave is therefore measured by
four times as many.)
"""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hloexec
from conformance import xla
from hloexec.analysis.numerics.leaves import leaves_of
from hloexec.analysis.numerics.sampling.runs import sampled_in_stages
from hloexec.core.ir import (
    ArrayShape,
    Computation,
    Module,
    Shape,
    ShardingType,
    TileSharding,
    TupleSharding,
    leaf_shapes,
)
from hloexec.engine.exec import unsupported
from hloexec.engine.options import Options
from hloexec.language.text.printer import format_instruction, format_shape
from hloexec.tools.golden.recording import RECORDED_SAMPLES
from tests.dumps.mixture_of_experts import LOOP_BODIES, alone, cut_down, elided_constants, load_dump

DEVICES = 16
STATE = 72
"""So many parameters, the first, are what the step updates, and so many of the results."""
INPUT_CAP = 128 * 2**20
MEMORY_CAP = 512 * 2**20

needs_xla = pytest.mark.skipif(not xla.available(), reason="needs jaxlib")


@pytest.fixture(scope="module")
def module() -> Module:
    return load_dump()


@pytest.fixture(scope="module")
def sixteenth(module: Module) -> Module:
    return cut_down(module, 16)


@pytest.fixture(scope="module")
def smallest(module: Module) -> Module:
    return cut_down(module, 64)


def parts(module: Module) -> Iterator[Computation]:
    """The computations that are neither the entry nor the body of a loop."""
    return (c for c in module if c.name not in (module.entry_name, *LOOP_BODIES))


def flat(value: Any) -> list[Any]:
    return [leaf for element in value for leaf in flat(element)] if isinstance(value, tuple | list) else [value]


def require_well_formed(shape: Shape, value: Any) -> None:
    """The declared types and shapes, and finite numbers."""
    for (_, declared), leaf in zip(leaf_shapes(shape), flat(value), strict=True):
        assert leaf.dtype == declared.element_type.storage
        assert leaf.shape == declared.dimensions
        assert not declared.element_type.is_floating or np.isfinite(leaf.astype(np.float32)).all()


def run_part(module: Module, name: str, seed: int, **options: Any) -> Any:
    """What a computation gives on all devices, of the same random inputs each; the first device's result."""
    inputs = hloexec.random_inputs(module, seed, computation=name, verify=False)
    return hloexec.run_devices(module, [inputs], computation=name, check=True, **options)[0]


def test_dump_is_a_program_of_which_everything_is_supported(module: Module) -> None:
    assert len(module.computations) == 569
    assert module.num_partitions == DEVICES
    assert hloexec.verify(module) == []
    assert [each for c in module for each in unsupported(module, c)] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_computations_run_at_their_own_size_where_it_fits(module: Module) -> None:
    ran, skipped = [], {}
    kinds = distinct(alone(module, part.name) for part in parts(module))
    for kind in kinds:
        part = kind.entry
        size = sum(shape.byte_size for shape in part.parameter_shapes)
        if size > INPUT_CAP:
            skipped[part.name] = f"its inputs take {size} bytes"
            continue
        try:
            value = run_part(kind, part.name, 1, memory_limit=MEMORY_CAP)
        except hloexec.ResourceError as error:
            assert f"running {part.name} would take about" in str(error)
            skipped[part.name] = str(error).splitlines()[0]
            continue
        require_well_formed(part.root.shape, value)
        ran.append(part.name)
    assert len(ran) + len(skipped) == len(kinds) == 311
    # What has no value larger than this cannot be too large as a whole.
    small = [kind.entry_name for kind in kinds if max(i.shape.byte_size for i in kind.entry) <= INPUT_CAP / 4]
    assert not set(small) & skipped.keys()
    print(f"{len(ran)} ran at their own size; skipped:", *(f"{k}: {v}" for k, v in skipped.items()), sep="\n")


@pytest.mark.slow_cases("4", "64")
@pytest.mark.parametrize("divisor", [4, 16, 64])
def test_dump_cut_down_loses_no_elements(module: Module, divisor: int) -> None:
    """A bitcast may drop elements, so the verifier alone would not notice a dimension cut down twice."""
    smaller = cut_down(module, divisor)
    assert hloexec.verify(smaller) == []
    for before, after in zip(module, smaller, strict=True):
        assert [(i.name, i.opcode) for i in before] == [(i.name, i.opcode) for i in after]
        for bitcast in (i for i in after if i.opcode == "bitcast"):
            assert bitcast.shape.byte_size == after.operands_of(bitcast)[0].shape.byte_size, bitcast.name


@pytest.mark.slow
def test_all_computations_run_at_a_sixteenth_of_their_extents(sixteenth: Module) -> None:
    hloexec.verify(sixteenth)
    names = [part.name for part in parts(sixteenth)]
    assert len(names) == 566
    for kind in distinct(alone(sixteenth, name) for name in names):
        value = run_part(kind, kind.entry_name, 2, memory_limit=MEMORY_CAP)
        require_well_formed(kind.entry.root.shape, value)


def require_agreement(module: Module) -> None:
    """hloexec and XLA:CPU compute the same of a module for one device."""
    inputs = hloexec.random_inputs(module, seed=3, verify=False)
    actual = dict(leaves_of(hloexec.run(module, *inputs, verify=False), "actual"))
    text = xla.equivalent_module(hloexec.format(module, metadata=False))
    expected = xla.run_hlo(text, *flat(inputs), xla_flags=xla.COMPILED_SOONEST)
    how = Options(verify=False, replicas=1, partitions=1)
    for found in sampled_in_stages(module, [inputs], stages=(RECORDED_SAMPLES, 4 * RECORDED_SAMPLES), options=how):
        theirs = dict(zip(actual, expected, strict=True))
        comparison = hloexec.compare(actual, theirs, module=module, spreads=found.spreads)
        if comparison.agrees:
            return
    raise AssertionError(f"{module.name}: {comparison}")


def distinct(modules: Iterator[Module]) -> list[Module]:
    """The first of each kind: modules that differ in names only compute the same."""

    def kind(module: Module) -> str:
        numbers: dict[str, str] = {}
        text = hloexec.format(module, metadata=False)
        names = r"(?<=%)[\w.\-]+|(?<=[(, ])[\w.\-]+(?=: )"
        return re.sub(names, lambda name: numbers.setdefault(name[0], str(len(numbers))), text)

    return list({kind(module): module for module in modules}.values())


@needs_xla
@pytest.mark.slow
@pytest.mark.parametrize("quarter", range(4))
def test_computations_agree_with_xla_at_a_64th_of_their_extents(smallest: Module, quarter: int) -> None:
    """All but those in which devices communicate."""
    names = [part.name for part in parts(smallest) if not part.name.startswith("async_computation")]
    assert len(names) == 548
    kinds = distinct(alone(smallest, name) for name in names)
    for kind in kinds[quarter::4]:
        require_agreement(kind)


def library_calls(module: Module, target: str) -> Iterator[Module]:
    """Each call of a library by itself, on parameters of its operands' shapes and layouts."""
    for computation in module:
        for call in computation:
            if call.opcode != "custom-call" or call.attributes.custom_call_target != target:
                continue
            operands = {operand.name: operand.shape for operand in computation.operands_of(call)}
            lines = [f"%{n} = {format_shape(s)} parameter({k})" for k, (n, s) in enumerate(operands.items())]
            lines.append("ROOT " + format_instruction(call, metadata=False))
            yield hloexec.parse("HloModule call\nENTRY main {\n" + "\n".join(lines) + "\n}\n")


@needs_xla
@pytest.mark.slow
def test_matrix_products_of_the_library_agree_with_xla(smallest: Module) -> None:
    calls = list(library_calls(smallest, "__cublas$lt$matmul"))
    assert len(calls) == 81
    for call in distinct(iter(calls)):
        require_agreement(call)


def whole_inputs(module: Module) -> list[Any]:
    """Inputs for all devices together: one random shard per tile of each parameter's sharding."""
    shards = [hloexec.random_inputs(module, seed, verify=False) for seed in range(DEVICES)]
    found = []
    for number, parameter in enumerate(module.entry.parameters):
        sharding, shape = parameter.sharding, parameter.shape
        assert isinstance(sharding, TileSharding)
        assert isinstance(shape, ArrayShape)
        if sharding.type is ShardingType.REPLICATED:
            found.append(shards[0][number])
            continue
        counts = sharding.tile_dimensions[: shape.rank]
        whole = np.empty([n * size for n, size in zip(counts, shape.dimensions, strict=True)], shards[0][number].dtype)
        for shard, place in zip(shards, np.ndindex(counts), strict=False):
            corner = tuple(slice(i * n, (i + 1) * n) for i, n in zip(place, shape.dimensions, strict=True))
            whole[corner] = shard[number]
        found.append(whole)
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_whole_step_runs_on_all_devices_at_a_64th_of_its_extents(smallest: Module) -> None:
    inputs = whole_inputs(smallest)
    shards = hloexec.shard_inputs(smallest, inputs)
    outputs = hloexec.run_devices(smallest, shards, elided=elided_constants(), check=True, memory_limit=2**31)
    require_a_step(smallest, inputs, outputs)


def require_a_step(module: Module, inputs: list[Any], outputs: list[Any]) -> None:
    """Results are well-formed, what devices hold in common is the same bits on all of them, the step and the inputs' tokens
    are counted, and the loss is positive."""
    for output in outputs:
        require_well_formed(module.entry.root.shape, output)
    state = [parameter.sharding for parameter in module.entry.parameters[:STATE]]
    everywhere = TileSharding(ShardingType.REPLICATED)
    metrics = [everywhere] * (len(outputs[0]) - STATE)
    whole = hloexec.unshard_outputs(module, outputs, sharding=TupleSharding((*state, *metrics)))
    for before, after in zip(inputs[:STATE], whole[:STATE], strict=True):
        assert before.shape == after.shape
    step, loss, tokens = whole[0], whole[73], whole[78]
    assert step == inputs[0] + 1
    assert tokens == np.count_nonzero(inputs[75])
    assert loss > 0
