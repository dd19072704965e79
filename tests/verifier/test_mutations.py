"""Whatever a module holds, verifying and printing it raises HloError or nothing."""

import contextlib
import random
import warnings
from collections.abc import Callable
from typing import Any

import attrs
import pytest

import hloexec
from hloexec.core.ir import Module
from hloexec.engine.devices.topology import device_counts
from hloexec.errors import HloError, VerificationError
from hloexec.ops.registry import OPCODES
from tests.drawing import examples
from tests.text.accepted_values import NEWER
from tests.text.building import op
from tests.text.cases import ACCEPTED
from tests.verifier.mutations import Mutator, changed_instructions

CHANGED = examples(3000)
"""Modules per seed."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(4))
def test_a_changed_module_gives_an_hlo_error_or_none(seed: int) -> None:
    modules = [hloexec.parse(text) for text in ACCEPTED.values()]
    mutator = Mutator(seed)
    rejected = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(CHANGED):
            module = mutator.module(modules)
            with contextlib.suppress(HloError):
                hloexec.format(module)
            try:
                hloexec.verify(module)
            except HloError:
                rejected += 1
    # Half of what is changed matters, and not all of it.
    assert CHANGED > rejected > CHANGED // 10


TOOLS: tuple[Callable[[Module], object], ...] = (
    device_counts,
    hloexec.format,
    lambda module: hloexec.extract(module, None, module.computations[-1].root_name),
    lambda module: hloexec.random_inputs(module, verify=False),
    lambda module: hloexec.run(module, verify=False),
    lambda module: hloexec.shard_inputs(module, []),
    lambda module: hloexec.unshard_outputs(module, []),
)


def test_tools_take_a_changed_instruction_of_any_opcode_or_give_an_hlo_error() -> None:
    texts = sorted((*NEWER.values(), *ACCEPTED.values()), key=len, reverse=True)
    modules = [hloexec.parse(text) for text in texts]
    places = {each.opcode: (module, home, each.name) for module in modules for home in module for each in home}
    assert {*OPCODES} - places.keys() == set(), "which texts in tests/text have none of"
    choices = random.Random(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place in places.values():
            changed = [*changed_instructions(*place)]
            for module in choices.sample(changed, examples(len(changed))):
                for tool in TOOLS:
                    with contextlib.suppress(HloError):
                        tool(module)


def test_tools_take_a_changed_module_or_give_an_hlo_error() -> None:
    modules = [hloexec.parse(text) for text in ACCEPTED.values()]
    mutator = Mutator(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(CHANGED // 10):
            module = mutator.module(modules)
            for tool in (*TOOLS, hloexec.graph, hloexec.memory_usage, hloexec.shrink):
                with contextlib.suppress(HloError):
                    tool(module)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"entry_name": "nobody"}, "module 'm': the entry computation 'nobody' does not exist"),
        ({"root_name": "nobody"}, "computation 'main': the root 'nobody' does not exist"),
        ({"attributes": None}, "parameter lacks its attributes"),
    ],
)
def test_tools_say_what_a_module_lacks(change: dict[str, Any], message: str) -> None:
    module = hloexec.parse(CONVOLUTION)
    (entry,) = module.computations
    if "attributes" in change:
        x, *others = entry.instructions
        change = {"instructions": (attrs.evolve(x, **change), *others)}
    if "entry_name" not in change:
        change = {"computations": (attrs.evolve(entry, **change),)}
    broken = attrs.evolve(module, **change)
    with pytest.raises(VerificationError, match=message):
        hloexec.shard_inputs(broken, []) if "root" not in message else hloexec.unshard_outputs(broken, [0])


CONVOLUTION = op(
    "f32[1,4,8] convolution(x, k), window={size=3}, dim_labels=b0f_0io->b0f", x="f32[1,6,2]", k="f32[3,2,8]"
)


def with_attribute(text: str, **changes: Any) -> Module:
    """The module with other attributes of its root."""
    module = hloexec.parse(text)
    root = attrs.evolve(module.entry.root, attributes=attrs.evolve(module.entry.root.attributes, **changes))
    entry = attrs.evolve(module.entry, instructions=(*module.entry.instructions[:-1], root))
    return attrs.evolve(module, computations=(entry,))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"input_batch_dimension": 3}, "its input one role, but name the dimensions 3, 2, 1"),
        ({"input_feature_dimension": -1}, "its input one role, but name the dimensions 0, -1, 1"),
        ({"kernel_spatial_dimensions": ()}, "its kernel one role, but name the dimensions 1, 2"),
        ({"output_spatial_dimensions": (1, 1)}, "its output one role, but name the dimensions 0, 2, 1, 1"),
    ],
)
def test_dim_labels_give_each_dimension_one_role(change: dict[str, Any], named: str) -> None:
    labels = hloexec.parse(CONVOLUTION).entry.root.attributes.dim_labels
    module = with_attribute(CONVOLUTION, dim_labels=attrs.evolve(labels, **change))
    with pytest.raises(VerificationError, match=f"dim_labels of convolution must give each of the 3 .*{named}"):
        hloexec.verify(module)


@pytest.mark.parametrize(
    ("text", "change"),
    [
        (CONVOLUTION, {"dim_labels": None}),
        (op('f32[2] domain(x), domain={kind="sharding", entry={}, exit={}}', x="f32[2]"), {"domain": ()}),
        (op("f32[2] slice(x), slice={[0:2]}", x="f32[4]"), {"slice": 3}),
    ],
    ids=["dim_labels", "domain", "slice"],
)
def test_an_attribute_that_no_text_can_say_is_not_printed(text: str, change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(VerificationError, match=f"{name} of %root cannot be written as text; its value is"):
        hloexec.format(with_attribute(text, **change))


def test_instructions_without_their_attributes_are_not_printed() -> None:
    module = hloexec.parse(CONVOLUTION)
    x, *others = module.entry.instructions
    entry = attrs.evolve(module.entry, instructions=(attrs.evolve(x, attributes=None), *others))
    with pytest.raises(VerificationError, match="%x lacks the attributes of parameter"):
        hloexec.format(attrs.evolve(module, computations=(entry,)))
