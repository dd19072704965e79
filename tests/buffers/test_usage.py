"""Memory of small modules, worked out by hand from the rules; everything larger is compared with XLA."""

import attrs
import pytest

import hloexec
from hloexec.analysis.buffers import MemoryUsage, memory_usage
from hloexec.errors import VerificationError
from tests.text.cases import ACCEPTED

HEADER = "HloModule m, is_scheduled=true\n"


def usage_of(text: str, header: str = HEADER) -> MemoryUsage:
    return memory_usage(hloexec.parse(header + text))


def spans(usage: MemoryUsage) -> dict[str, tuple[int, int]]:
    return {value.label: (value.start, value.end) for value in usage.values}


CHAIN = """ENTRY e { p = f32[16] parameter(0)
 a = f32[16] sine(p)
 b = f32[16] cosine(a)
 ROOT c = f32[16] add(a, b) }"""


def test_a_value_lives_from_its_definition_to_its_last_use_parameters_and_results_to_the_end() -> None:
    usage = usage_of(CHAIN)
    assert spans(usage) == {"p": (0, 4), "a": (1, 3), "b": (2, 3), "c": (3, 4)}
    assert (usage.peak.bytes, usage.peak.time) == (4 * 64, 3)
    assert (usage.parameter_bytes, usage.output_bytes) == (64, 64)
    assert [value.label for value in usage.alive_at(3)] == "a b c p".split()


def test_a_donated_parameter_lives_until_its_last_use_and_shares_the_output() -> None:
    usage = usage_of(CHAIN, "HloModule m, is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }\n")
    assert spans(usage)["p"] == (0, 1)
    assert {value.buffer for value in usage.values if value.label == "p"} == {
        value.buffer for value in usage.values if value.label == "c"
    }
    assert usage.peak.bytes == 3 * 64


UPDATE = """ENTRY e {{ p = f32[1000] parameter(0)
 i = s32[] parameter(1)
 a = f32[1000] sine(p)
 u = f32[1] slice(a), slice={{[0:1]}}
 d = f32[1000] dynamic-update-slice(a, u, i)
 ROOT r = f32[1000] add(d, {other}) }}"""


def test_an_update_in_place_needs_no_buffer_of_its_own_unless_the_operand_is_needed_later() -> None:
    in_place, copied = usage_of(UPDATE.format(other="d")), usage_of(UPDATE.format(other="a"))
    # At the addition: p, i, what was updated, the sum; and a, where that is added.
    assert in_place.peak.bytes == 3 * 4000 + 4
    assert copied.peak.bytes == 4 * 4000 + 4


def test_a_loop_keeps_its_state_in_one_buffer_and_bitcasts_and_tuples_define_nothing() -> None:
    usage = usage_of("""body { s = (s32[], f32[10]) parameter(0)
 i = s32[] get-tuple-element(s), index=0
 one = s32[] constant(1)
 j = s32[] add(i, one)
 x = f32[10] get-tuple-element(s), index=1
 y = f32[10] sine(x)
 ROOT t = (s32[], f32[10]) tuple(j, y) }
cond { q = (s32[], f32[10]) parameter(0)
 k = s32[] get-tuple-element(q), index=0
 n = s32[] constant(3)
 ROOT l = pred[] compare(k, n), direction=LT }
ENTRY e { p = f32[10] parameter(0)
 z = s32[] constant(0)
 c = f32[10] copy(p)
 b = f32[10] bitcast(c)
 v = (s32[], f32[10]) tuple(z, b)
 w = (s32[], f32[10]) while(v), condition=cond, body=body
 ROOT r = f32[10] get-tuple-element(w), index=1 }""")
    by_label = {value.label: value for value in usage.values}
    assert {"b", "x", "r"}.isdisjoint(by_label)
    state = [by_label[label].buffer for label in "c q{1} s{1} y w{1}".split()]
    assert len(set(state)) == 1
    assert by_label["w{1}"].is_phi and not by_label["y"].is_phi
    # The flat order: entry to the tuple, condition, body, then the loop itself and what follows.
    names = [name for _, name in usage.sequence]
    assert names == [*"pzcbv", *"qknl", *"s", "i", "one", *"jxyt", *"wr"]


def test_a_loop_that_rotates_its_state_without_copies_does_not_share_what_is_needed_at_once() -> None:
    state = "(f32[100], f32[100])"
    usage = usage_of(f"""body {{ s = {state} parameter(0)
 a = f32[100] get-tuple-element(s), index=0
 b = f32[100] get-tuple-element(s), index=1
 ROOT t = {state} tuple(b, a) }}
cond {{ q = {state} parameter(0)
 ROOT l = pred[] constant(false) }}
ENTRY e {{ p = {state} parameter(0)
 ROOT w = {state} while(p), condition=cond, body=body }}""")
    # Parameters stay as they are, so the loop needs two more arrays.
    assert usage.peak.bytes >= 4 * 400


@pytest.mark.parametrize("kept", [False, True], ids=["given up", "needed afterwards"])
def test_what_a_branch_makes_may_replace_what_only_other_branches_still_read(kept: bool) -> None:
    state = "(f32[100], f32[100])"
    usage = usage_of(f"""f {{ a = f32[100] parameter(0)
 ROOT y = f32[100] exponential(a) }}
g {{ b = f32[100] parameter(0)
 z = f32[100] sine(b)
 ROOT u = f32[100] add(z, b) }}
h {{ c = f32[100] parameter(0)
 e = f32[] constant(7)
 ROOT o = f32[100] broadcast(e), dimensions={{}} }}
body {{ s = {state} parameter(0)
 x = f32[100] get-tuple-element(s), index=0
 k = f32[100] get-tuple-element(s), index=1
 i = s32[] constant(1)
 v = f32[100] conditional(i, x, x, x), branch_computations={{h, f, g}}
 l = f32[100] negate({"x" if kept else "k"})
 ROOT t = {state} tuple(v, l) }}
cond {{ q = {state} parameter(0)
 ROOT n = pred[] constant(false) }}
ENTRY e {{ p = f32[100] parameter(0)
 d = f32[100] copy(p)
 m = f32[100] copy(p)
 r = {state} tuple(d, m)
 w = {state} while(r), condition=cond, body=body
 ROOT j = f32[100] get-tuple-element(w), index=0 }}""")
    buffers = {value.label: value.buffer for value in usage.values}
    assert buffers["z"] != buffers["s{0}"]
    assert [buffers[label] == buffers["s{0}"] for label in "oyuv"] == [not kept] * 4
    # The parameter, the state, and z, or what is made beside a state that is still needed.
    assert usage.peak.bytes >= 4 * 400


def test_what_an_asynchronous_computation_holds_it_holds_until_it_is_done() -> None:
    usage = usage_of("""g { b = f32[8] parameter(0)
 n = f32[8] cosine(b)
 ROOT o = f32[8] negate(n) }
f { q = f32[8] parameter(0)
 s = f32[8] sine(q)
 ROOT c = f32[8] call(s), to_apply=g }
ENTRY e { p = f32[8] parameter(0)
 x = ((f32[8]), f32[8]) async-start(p), calls=f
 z = f32[8] exponential(p)
 y = f32[8] async-done(x)
 ROOT r = f32[8] add(y, z) }""")
    # q to c are 1 to 6, the start is 7, the done 9.
    assert [name for _, name in usage.sequence] == "p q s b n o c x z y r".split()
    assert spans(usage)["s"] == (2, 9)
    assert spans(usage)["n"] == (4, 9)
    assert spans(usage)["o"] == (5, 10)


def test_a_computation_called_twice_is_listed_once_and_its_parameter_stands_for_either_argument() -> None:
    usage = usage_of("""f { q = f32[8] parameter(0)
 ROOT s = f32[8] sine(q) }
ENTRY e { p = f32[8] parameter(0)
 x = f32[8] call(p), to_apply=f
 a = f32[8] negate(x)
 y = f32[8] call(a), to_apply=f
 ROOT r = f32[8] add(x, y) }""")
    assert [name for _, name in usage.sequence] == "p q s x a y r".split()
    assert set(spans(usage)) == {"p", "s", "a", "r"}


def test_an_unscheduled_module_is_listed_in_the_order_it_runs_in_with_arguments_that_nothing_needs() -> None:
    usage = usage_of(
        """ENTRY e { unused = f32[50] parameter(1)
 p = f32[16] parameter(0)
 dead = f32[999] broadcast(zero), dimensions={}
 zero = f32[] constant(0)
 ROOT c = f32[16] sine(p) }""",
        "HloModule m\n",
    )
    assert [name for _, name in usage.sequence] == ["unused", "p", "c"]
    assert usage.parameter_bytes == 64 + 200
    assert usage.peak.bytes == 64 + 64 + 200


def test_a_module_that_calls_itself_scheduled_but_uses_before_it_defines_is_listed_in_the_order_it_runs_in() -> None:
    lines = ["  b = f32[4] negate(a)", "  a = f32[4] exponential(p)", "  ROOT r = f32[4] add(a, b)"]
    usages = [
        memory_usage(
            hloexec.parse("\n".join([f"HloModule m{header}", "ENTRY e {", "  p = f32[4] parameter(0)", *body, "}"]))
        )
        for header, body in ((", is_scheduled=true", lines), (", is_scheduled=true", [lines[1], lines[0], lines[2]]))
    ]
    assert usages[0].sequence == usages[1].sequence == tuple(("e", name) for name in "pabr")
    assert usages[0].peak == usages[1].peak


def test_memory_spaces_have_peaks_of_their_own() -> None:
    usage = usage_of("""ENTRY e { p = f32[16]{0} parameter(0)
 a = f32[16]{0:S(1)} sine(p)
 b = f32[16]{0:S(1)} cosine(a)
 ROOT c = f32[16]{0} add(b, b) }""")
    assert {color: (peak.bytes, peak.time) for color, peak in usage.peak_by_color.items()} == {0: (128, 3), 1: (128, 2)}


def test_calls_may_nest_thousands_deep() -> None:
    depth = 1200
    callees = "".join(
        f"k{i} {{ p = f32[4] parameter(0)\n ROOT c = f32[4] {f'call(p), to_apply=k{i - 1}' if i else 'sine(p)'} }}\n"
        for i in range(depth)
    )
    entry = f"ENTRY e {{ a = f32[4] parameter(0)\n ROOT r = f32[4] call(a), to_apply=k{depth - 1} }}"
    assert set(spans(usage_of(callees + entry, "HloModule m\n"))) == {"a", "c"}


@pytest.mark.slow_cases("True")
@pytest.mark.parametrize("is_scheduled", [False, True])
def test_every_module_that_xla_accepts_has_a_memory_usage_or_does_not_verify(is_scheduled: bool) -> None:
    for text in ACCEPTED.values():
        module = attrs.evolve(hloexec.parse(text), is_scheduled=is_scheduled)
        try:
            usage = memory_usage(module)
        except VerificationError:
            continue
        assert usage.bytes_at(usage.peak.time) == usage.peak.bytes
        assert sum(peak.bytes for peak in usage.peak_by_color.values()) >= usage.peak.bytes


@pytest.mark.parametrize(
    "text",
    [
        "ENTRY e { p = f32[4] parameter(0)\n ROOT r = f32[5] sine(p) }",
        "ENTRY e { p = (f32[4]) parameter(0)\n ROOT r = f32[4] get-tuple-element(p), index=3 }",
    ],
)
def test_what_does_not_verify_is_refused(text: str) -> None:
    with pytest.raises(VerificationError):
        usage_of(text)
