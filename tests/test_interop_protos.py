"""Modules as protocol buffers, read without jaxlib: XLA writes the messages, and prints what is in them."""

import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hloexec
from hloexec.errors import HloError, HloWarning, InputError
from hloexec.language.interop import load_bytes, load_recorded
from tests.drawing import examples
from tests.test_interop import field, shape, varint
from tests.text import corpus
from tests.text.cases import ACCEPTED
from tests.text.oracle import canonical_text

pytest.importorskip("jaxlib")

NAMES = [name for name in corpus.names() if name.count(".") == 1]
"""One text of each program before optimization, and one after it."""


def proto_of(text: str) -> tuple[bytes, str]:
    """XLA's message of a text, and its own print of the same module."""
    from jaxlib import _hlo

    from hloexec.language.interop.through_jaxlib import text_of_module

    module = _hlo.hlo_module_from_text(text)
    return module.as_serialized_hlo_module_proto(), text_of_module(module)


def content(module: hloexec.Module) -> hloexec.Module:
    """A module without what its message does not say: the configuration of its compilation, and where its computations,
    and instructions that no schedule orders, stand in the text."""
    computations = [
        each
        if module.is_scheduled and each.name == module.entry_name
        else attrs.evolve(each, instructions=tuple(sorted(each, key=lambda instruction: instruction.name)))
        for each in module
    ]
    return attrs.evolve(
        module,
        computations=tuple(sorted(computations, key=lambda computation: computation.name)),
        replica_count=1,
        num_partitions=1,
        allow_spmd_sharding_propagation_to_parameters=(),
        allow_spmd_sharding_propagation_to_output=(),
    )


def assert_same_module(text: str) -> None:
    proto, printed = proto_of(text)
    ours = load_bytes(proto)
    if content(ours) != content(hloexec.parse(printed)):
        # Versions of XLA print defaults otherwise; to XLA they are the same.
        assert canonical_text(hloexec.format(ours)) == canonical_text(printed)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", NAMES)
def test_a_message_is_the_module_that_xla_prints(name: str) -> None:
    assert_same_module(corpus.text_of(name))


LEFT_OUT = {
    "alias_passthrough_params": "XLA's message has no field for it",
    "every header attribute": "alias_passthrough_params is among them",
    "origin recovery table": "nothing that is computed depends on it",
    "origin recovery table with a module": "nothing that is computed depends on it",
    "metadata with payload": "nothing that is computed depends on it",
}
SHORTHAND = [name for name, text in ACCEPTED.items() if "-start(" in text and "async" in name]
"""Texts that imply the computation that the message has; XLA's text of both is the same."""


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    "name", [name for name, text in ACCEPTED.items() if "{...}" not in text and name not in {*LEFT_OUT, *SHORTHAND}]
)
def test_a_message_says_what_its_text_says(name: str) -> None:
    assert_same_module(ACCEPTED[name])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SHORTHAND)
def test_a_message_has_the_computations_that_shorthand_implies(name: str) -> None:
    proto, printed = proto_of(ACCEPTED[name])
    assert canonical_text(hloexec.format(load_bytes(proto))) == canonical_text(printed)


def test_messages_are_read_and_run_without_jaxlib(tmp_path: Path) -> None:
    path = tmp_path / "module.pb"
    path.write_bytes(proto_of(corpus.text_of("while_loop.before"))[0])
    source = """
import sys
sys.modules |= dict.fromkeys(("jax", "jaxlib"))
import hloexec
module = hloexec.load(sys.argv[1])
hloexec.run(module, *hloexec.random_inputs(module))
"""
    subprocess.run([sys.executable, "-W", "error", "-c", source, path], check=True)


# What XLA does not print


def instruction(number: int, name: str, opcode: str, *fields: bytes, of: bytes = b"") -> bytes:
    """An HloInstructionProto whose result is an array, f32[2] unless another shape is given."""
    return (
        field(1, name.encode()) + field(2, opcode.encode()) + field(3, of or shape(11, [2]))
        + field(35, number) + b"".join(fields)
    )  # fmt: skip


def module_of(*instructions: bytes, root: int) -> bytes:
    """An HloModuleProto of one computation."""
    body = field(1, b"main") + b"".join(field(2, each) for each in instructions) + field(5, 7) + field(6, root)
    return field(1, b"m") + field(3, body) + field(4, field(1, shape(11, [2])) + field(2, shape(11, [2]))) + field(6, 7)


X = instruction(1, "x", "parameter")


def test_a_literal_without_elements_is_elided() -> None:
    large = shape(11, [1 << 20, 1 << 20])
    constant = instruction(2, "c", "constant", field(8, field(1, large)), of=large)
    module = load_bytes(module_of(X, constant, root=1))
    assert module.entry.by_name["c"].attributes.literal.is_elided
    missing = load_bytes(module_of(X, instruction(2, "c", "constant"), root=1))
    assert missing.entry.by_name["c"].attributes.literal.is_elided


def test_fields_of_a_newer_xla_are_named() -> None:
    negated = instruction(2, "y", "negate", field(36, 1), field(123, b"new"))
    with pytest.warns(HloWarning, match="fields of a newer XLA are ignored: 123 of negate"):
        module = load_bytes(module_of(X, negated, root=2))
    np.testing.assert_array_equal(hloexec.run(module, np.float32([1, -2])), [-1, 2])


def test_groups_of_a_collective_are_read_in_every_form() -> None:
    """The oldest field, and the list within which the iota form stood in 2024; XLA now writes two others."""
    for groups in (
        field(49, field(1, varint(0) + varint(2))) + field(49, field(1, varint(1) + varint(3))),
        field(87, field(1, field(1, varint(0) + varint(2))) + field(1, field(1, varint(1) + varint(3)))),
        field(87, field(2, field(1, 2) + field(2, 2) + field(3, varint(2) * 2) + field(4, varint(1) + varint(0)))),
        field(92, field(1, 2) + field(2, 2) + field(3, varint(2) * 2) + field(4, varint(1) + varint(0))),
    ):
        gather = instruction(2, "g", "all-gather", field(36, 1), field(14, 0), groups, of=shape(11, [4]))
        module = load_bytes(module_of(X, gather, root=2))
        assert module.entry.root.attributes.replica_groups.expand() == ((0, 2), (1, 3))


# Damage


@pytest.mark.parametrize(
    ("instructions", "root", "message"),
    [
        ([X], 5, "the root of 'main' is not among its instructions"),
        ([X, X], 1, "the instruction 'x' of 'main' cannot be read: its number, 1, is that of 'x'"),
        ([X, instruction(2, "y", "negate", field(36, 9))], 2, "the operand with the number 9 does not stand before it"),
        ([X, instruction(2, "y", "call", field(36, 1))], 2, "call lacks to_apply"),
        (
            [X, instruction(2, "y", "call", field(36, 1), field(38, 3))],
            2,
            "the number 3, which the module does not have",
        ),
        ([X, instruction(2, "y", "fft", field(31, 9), field(32, 2))], 2, "the number 9 of fft_type is not known"),
        ([X, instruction(2, "y", "negate", field(36, 1), of=shape(99, [2]))], 2, "the primitive type 99"),
        (
            [X, instruction(2, "c", "constant", field(8, field(1, shape(11, [2])) + field(8, bytes(4))))],
            1,
            "has 1 elem",
        ),
        ([X, instruction(2, "y", "copy", field(36, 1), field(40, field(1, 9)))], 2, "a sharding has the type 9"),
        ([X, instruction(2, "a\nb", "negate", field(36, 1))], 2, "expected"),
        ([instruction(1, "x", "parameter", field(9, -1))], 1, "number of a parameter is -1, but must not be negative"),
        ([instruction(1, "x", "parameter", field(9, b"\0"))], 1, "field 9 should hold a number, it holds bytes"),
        (
            [X, instruction(2, "y", "concatenate", field(36, 1), field(14, b"\0\1"))],
            2,
            "dimensions should hold one number, it holds 2",
        ),
    ],
)
def test_a_damaged_message_says_where(instructions: list[bytes], root: int, message: str) -> None:
    with pytest.raises(HloError) as caught:
        load_bytes(module_of(*instructions, root=root), "f.pb")
    assert message in str(caught.value)
    assert "f.pb" in str(caught.value)


@pytest.mark.parametrize(
    ("number", "payload", "message"),
    [
        (15, field(1, -1) + field(2, 1), "the number of replicas is -1"),
        (15, field(1, 1) + field(2, -(2**31)), "the number of partitions is -2147483648"),
        (18, field(1, field(1, -2)), "the number of a donated parameter is -2"),
        (8, field(1, field(2, -1) + field(4, 1)), "the number of an aliased parameter is -1"),
    ],
)
def test_what_counts_is_not_negative(number: int, payload: bytes, message: str) -> None:
    with pytest.raises(InputError, match=f"{message}, but must not be negative"):
        load_bytes(module_of(X, root=1) + field(number, payload), "f.pb")


def test_the_size_of_an_argument_is_not_negative() -> None:
    module = module_of(X, root=1)
    outer = field(1, module) + field(2, field(2, field(2, -1)))
    with pytest.raises(InputError, match=r"f\.pb, argument 0: its size is -1, but must not be negative"):
        load_recorded(varint(len(outer)) + outer + bytes(64), "f.pb")


def test_of_a_number_that_is_given_twice_the_last_counts() -> None:
    """As the specification of protocol buffers has it."""
    module = load_bytes(module_of(instruction(1, "x", "parameter", field(9, 5), field(9, 0)), root=1))
    assert module.entry.parameters[0].attributes.number == 0


def test_a_message_that_is_cut_off_is_refused() -> None:
    proto, _ = proto_of(corpus.text_of("nested_scan.before"))
    for length in range(1, len(proto) - 60, 97):
        with pytest.raises(InputError, match=r"^f\.pb is "):
            load_bytes(proto[:length], "f.pb")


def test_sizes_that_a_message_claims_take_no_memory() -> None:
    """A shape may say what it likes; only what the file holds is allocated."""
    large = shape(11, [1 << 30, 1 << 30])
    for literal in (field(1, large) + field(8, bytes(8)), field(1, shape(13, [])) + field(10, field(1, large))):
        constant = instruction(2, "c", "constant", field(8, literal), of=large)
        tracemalloc.start()
        try:
            load_bytes(module_of(X, constant, root=1))
        except HloError as error:
            assert error.message
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 10_000_000


@settings(max_examples=examples(200), deadline=None)
@given(seed=st.integers(0, 2**32), name=st.sampled_from(["constants.before", "collectives.before", "two_way.before"]))
def test_whatever_the_damage_the_message_is_read_or_refused(seed: int, name: str) -> None:
    generator = random.Random(seed)
    proto = bytearray(proto_of(corpus.text_of(name))[0])
    for _ in range(generator.choice((1, 1, 2, 5))):
        start, other = generator.randrange(len(proto)), generator.randrange(len(proto))
        length = generator.randrange(1, 6)
        pieces = generator.randbytes(1), b"", generator.randbytes(length), bytes(proto[other : other + length])
        proto[start : start + generator.choice((0, 1, length))] = generator.choice(pieces)
    try:
        hloexec.verify(load_bytes(bytes(proto)))
    except HloError as error:
        assert error.message
