"""A sample of the drawn pairs; `python -m evaluation diff` measures all of them."""

import pytest

import hloexec
from evaluation.diffing.command import chosen, measure
from evaluation.diffing.dataflow import DataFlow
from evaluation.faults.editing import Draft
from evaluation.pairs.drawing import Pair, draw, pairs
from evaluation.programs import FRESH, HELD, LATER, ORDINARY, PROGRAMS, RESERVE
from hloexec.ops.control.flow import ConstantAttributes

pytest.importorskip("jax")

_SAMPLE = (
    "fourier_filter/00 fourier_filter/02 fourier_filter/06 hashed_bloom/00 hashed_bloom/03 hashed_bloom/06 "
    "rope_cache_bf16/00 rope_cache_bf16/06 rope_cache_bf16/clean00 tiny_likelihoods/06 ring_attention/clean01"
).split()
"""Pairs on which a diff takes a second at most, of the seen half and of few programs: lowering takes longest."""
_RIGHT = 0.8
"""The share of them that must be right."""

_LOOP = """HloModule loop

body {
  state = (s32[], f32[4]) parameter(0)
  count = s32[] get-tuple-element(state), index=0
  vector = f32[4] get-tuple-element(state), index=1
  one = s32[] constant(1)
  next = s32[] add(count, one)
  turned = f32[4] negate(vector)
  ROOT end = (s32[], f32[4]) tuple(next, turned)
}

condition {
  given = (s32[], f32[4]) parameter(0)
  number = s32[] get-tuple-element(given), index=0
  three = s32[] constant(3)
  ROOT goes_on = pred[] compare(number, three), direction=LT
}

ENTRY main {
  zero = s32[] constant(0)
  x = f32[4] parameter(0)
  sine = f32[4] sine(x)
  start = (s32[], f32[4]) tuple(zero, sine)
  loop = (s32[], f32[4]) while(start), condition=condition, body=body
  found = f32[4] get-tuple-element(loop), index=1
  ROOT result = f32[4] cosine(found)
}
"""


@pytest.mark.slow
def test_most_of_a_sample_is_right_and_nothing_fails() -> None:
    known = {pair.name: pair for pair in pairs()}
    records = list(measure([known[name] for name in _SAMPLE], jobs=2))
    failed = [record for record in records if "failure" in record]
    assert not failed, failed
    wrong = [record["name"] for record in records if not record["first"]]
    print(f"wrong: {wrong}")
    assert not [name for name in wrong if "clean" in name]
    assert len(records) - len(wrong) >= _RIGHT * len(records)


def test_there_are_enough_pairs_and_both_halves_have_as_many() -> None:
    assert sum(not pair.is_clean for pair in pairs()) >= 400
    assert sum(pair.is_clean for pair in pairs()) >= 200
    assert 0.4 < len(HELD) / len(PROGRAMS.keys() - LATER) < 0.6
    assert not HELD - PROGRAMS.keys()
    assert not HELD & LATER and not RESERVE & FRESH
    assert sum(program.is_bf16 for program in PROGRAMS.values()) >= 5
    assert sum(program.devices == 8 for program in PROGRAMS.values()) >= 4


def test_a_limit_takes_pairs_of_all_programs() -> None:
    both = PROGRAMS.keys() - LATER
    assert {pair.program for pair in chosen(limit=len(both), clean=False)} == both
    assert chosen(only="u_net/03") == [Pair("u_net", 3)]


@pytest.mark.parametrize(("half", "programs"), [("reserve", RESERVE), ("fresh", FRESH)])
def test_later_sets_are_chosen_only_where_they_are_asked_for(half: str, programs: frozenset[str]) -> None:
    assert {pair.half for pair in chosen()} == {"seen", "held"}
    assert {pair.program for pair in chosen(half=half)} == programs
    assert len(chosen(half=half)) == 15 * len(programs)


def test_each_ordinary_program_has_a_fault_and_a_clean_pair() -> None:
    found = chosen(half="ordinary")
    assert {pair.program for pair in found} >= ORDINARY
    assert len(found) == 40
    assert {pair.form for pair in found} == {"disguised"}
    assert sum(pair.is_clean for pair in found) == 20


@pytest.mark.slow
def test_other_numbers_are_other_pairs() -> None:
    assert [pair.name for pair in chosen(only="u_net/", numbers=range(10, 12))] == [
        "u_net/10",
        "u_net/11",
        "u_net/clean10",
    ]
    assert not set(pairs()) & set(pairs(range(10, 20)))
    every = [*pairs(), *pairs(range(10, 20))]
    assert [Pair.of(pair.name) for pair in every] == every
    first, second = (draw(Pair("rope_cache_bf16", number)) for number in (0, 10))
    assert (first.kind, hloexec.format(first.after.module)) != (second.kind, hloexec.format(second.after.module))


@pytest.mark.slow
def test_later_numbers_begin_with_other_kinds() -> None:
    for program in ("hashed_bloom", "rope_cache_bf16"):
        earlier, later = (
            {draw(Pair(program, number)).kind for number in range(start, start + 10)} for start in (0, 10)
        )
        assert len(later - earlier) >= 3


def test_unsigned_constants_wrap_around() -> None:
    draft = Draft(hloexec.parse("HloModule m\nENTRY e { ROOT x = u32[2] parameter(0) }\n"))
    attributes = draft[draft.constant("x", -1, "u32")].attributes
    assert isinstance(attributes, ConstantAttributes)
    assert attributes.literal.value == 2**32 - 1


def test_neighbours_are_found_through_the_state_of_a_loop() -> None:
    flow = DataFlow(hloexec.parse(_LOOP))
    assert flow.neighbours(["turned"], {}) == {"sine", "turned", "result"}
    assert flow.neighbours(["goes_on"], {}) == {"zero", "next", "three", "loop"}
    assert flow.neighbours(["end"], {"end": {0}}) == {"next", "count", "number", "goes_on"}
    assert flow.sources("found") == {"sine", "turned"}
