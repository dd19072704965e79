"""Infeed, outfeed, and sends and recvs between a device and its host, as XLA's operation semantics define them."""

import re

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hloexec.engine.exec import plan_of, run, run_devices, unsupported
from hloexec.engine.exec.statistics import Statistics
from hloexec.engine.plan.memory import entry_peak_bytes
from hloexec.errors import EvaluationError, HloWarning, InputError, UnsupportedError
from tests.exec.programs import parsed, run_text

X = np.arange(4, dtype=np.float32)

DOUBLE = """HloModule double
ENTRY e { t = token[] after-all()
  i = (f32[4], token[]) infeed(t)
  x = f32[4] get-tuple-element(i), index=0
  t1 = token[] get-tuple-element(i), index=1
  y = f32[4] add(x, x)
  ROOT o = token[] outfeed(y, t1), outfeed_shape=f32[4] }
"""

LOOP = """HloModule loop
body { s = (s32[], f32[], token[]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  sum = f32[] get-tuple-element(s), index=1
  t = token[] get-tuple-element(s), index=2
  i = ((f32[], pred[]), token[]) infeed(t)
  data = (f32[], pred[]) get-tuple-element(i), index=0
  x = f32[] get-tuple-element(data), index=0
  p = pred[] get-tuple-element(data), index=1
  t1 = token[] get-tuple-element(i), index=1
  keep = (f32[], token[]) tuple(x, t1)
  c = token[] conditional(p, keep, keep), true_computation=told, false_computation=silent
  one = s32[] constant(1)
  m = s32[] add(n, one)
  new = f32[] add(sum, x)
  ROOT r = (s32[], f32[], token[]) tuple(m, new, c) }
told { s = (f32[], token[]) parameter(0)
  x = f32[] get-tuple-element(s), index=0
  t = token[] get-tuple-element(s), index=1
  ROOT o = token[] outfeed(x, t) }
silent { s = (f32[], token[]) parameter(0)
  ROOT t = token[] get-tuple-element(s), index=1 }
condition { s = (s32[], f32[], token[]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  three = s32[] constant(3)
  ROOT lt = pred[] compare(n, three), direction=LT }
ENTRY e { zero = s32[] constant(0)
  nothing = f32[] constant(0)
  t = token[] after-all()
  s = (s32[], f32[], token[]) tuple(zero, nothing, t)
  w = (s32[], f32[], token[]) while(s), condition=condition, body=body
  ROOT sum = f32[] get-tuple-element(w), index=1 }
"""

CALLBACK = """HloModule callback
ENTRY e { x = f32[4] parameter(0)
  t = token[] after-all()
  s = (f32[4], u32[], token[]) send(x, t), channel_id=1, is_host_transfer=true
  sd = token[] send-done(s), channel_id=1, is_host_transfer=true
  r = (f32[4], u32[], token[]) recv(sd), channel_id=2, is_host_transfer=true
  rd = (f32[4], token[]) recv-done(r), channel_id=2, is_host_transfer=true
  y = f32[4] get-tuple-element(rd), index=0
  ROOT z = f32[4] multiply(y, y) }
"""


def test_what_is_fed_in_comes_out_of_the_outfeed():
    out: list[np.ndarray] = []
    run_text(DOUBLE, infeed=[X], outfeed=out)
    assert len(out) == 1
    assert_array_equal(out[0], 2 * X)


def test_feeds_run_within_loops_and_branches_in_the_order_of_execution():
    values = [(np.float32(1.5), np.bool_(True)), (np.float32(2), np.bool_(False)), (np.float32(4), np.bool_(True))]
    out: list[np.ndarray] = []
    assert run_text(LOOP, infeed=iter(values), outfeed=out) == 7.5
    assert [value.item() for value in out] == [1.5, 4.0]


@pytest.mark.parametrize("numbers", [(1, 2, 3), (0, 2), (3,)])
@pytest.mark.parametrize("is_planned", [True, False])
def test_devices_in_a_branch_have_the_feeds_of_their_own(numbers, is_planned):
    text = f"""HloModule m, replica_count=4
fed {{ x = f32[4] parameter(0)
  t = token[] after-all()
  i = (f32[4], token[]) infeed(t)
  y = f32[4] get-tuple-element(i), index=0
  u = token[] get-tuple-element(i), index=1
  s = f32[4] add(x, y)
  o = token[] outfeed(s, u), outfeed_shape=f32[4]
  ROOT r = f32[4] copy(y) }}
same {{ ROOT x = f32[4] parameter(0) }}
ENTRY e {{ x = f32[4] parameter(0)
  among = pred[4] constant({{{", ".join(str(int(number in numbers)) for number in range(4))}}})
  n = u32[] replica-id()
  one = pred[1] dynamic-slice(among, n), dynamic_slice_sizes={{1}}
  p = pred[] reshape(one)
  ROOT r = f32[4] conditional(p, x, x), true_computation=fed, false_computation=same }}
"""
    infeed = [[np.full(4, 10.0 + number, np.float32)] if number in numbers else [] for number in range(4)]
    taken = [[] for _ in range(4)]
    results = run_devices(parsed(text), [[X]], infeed=infeed, outfeed=taken, planner=is_planned)
    for number in range(4):
        is_fed = number in numbers
        assert_array_equal(results[number], infeed[number][0] if is_fed else X)
        assert [value.tolist() for value in taken[number]] == [(X + 10 + number).tolist()] * is_fed


@pytest.mark.parametrize("watched", [False, True])
def test_functions_feed_and_take_as_lists_do(watched):
    values = iter([(np.float32(k), np.bool_(True)) for k in (3, 5, 7)])
    out: list[float] = []
    result = run(
        parsed(LOOP),
        infeed=lambda: next(values),
        outfeed=lambda value: out.append(float(value)),
        statistics=Statistics() if watched else None,
    )
    assert result == 15
    assert out == [3, 5, 7]


def test_a_host_callback_sends_its_arguments_and_receives_its_result():
    sent: list[np.ndarray] = []
    result = run_text(CALLBACK, X, host_transfers={1: sent, 2: lambda: sent[-1] + 1})
    assert_array_equal(result, (X + 1) ** 2)


def test_channels_take_lists_and_iterables():
    sent: list[np.ndarray] = []
    assert_array_equal(run_text(CALLBACK, X, host_transfers={1: sent, 2: [X]}), X * X)
    assert_array_equal(sent, [X])


def test_received_data_arrive_at_recv_done():
    text = """HloModule m
ENTRY e { x = f32[4] parameter(0)
  t = token[] after-all()
  r = (f32[4], u32[], token[]) recv(t), channel_id=2, is_host_transfer=true
  s = (f32[4], u32[], token[]) send(x, t), channel_id=1, is_host_transfer=true, control-predecessors={r}
  sd = token[] send-done(s), channel_id=1, is_host_transfer=true
  rd = (f32[4], token[]) recv-done(r), channel_id=2, is_host_transfer=true, control-predecessors={sd}
  ROOT y = f32[4] get-tuple-element(rd), index=0 }
"""
    # Were the data taken at recv, nothing would have been sent yet.
    sent: list[np.ndarray] = []
    assert_array_equal(run_text(text, X, host_transfers={1: sent, 2: lambda: sent.pop()}), X)


def test_a_recv_started_before_a_loop_arrives_inside_it():
    text = """HloModule pipelined
body { s = (s32[], f32[], (f32[], u32[], token[])) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  sum = f32[] get-tuple-element(s), index=1
  h = (f32[], u32[], token[]) get-tuple-element(s), index=2
  rd = (f32[], token[]) recv-done(h), channel_id=7, is_host_transfer=true
  x = f32[] get-tuple-element(rd), index=0
  t = token[] get-tuple-element(rd), index=1
  next = (f32[], u32[], token[]) recv(t), channel_id=7, is_host_transfer=true
  one = s32[] constant(1)
  m = s32[] add(n, one)
  new = f32[] add(sum, x)
  ROOT r = (s32[], f32[], (f32[], u32[], token[])) tuple(m, new, next) }
condition { s = (s32[], f32[], (f32[], u32[], token[])) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  three = s32[] constant(3)
  ROOT lt = pred[] compare(n, three), direction=LT }
ENTRY e { zero = s32[] constant(0)
  nothing = f32[] constant(0)
  t = token[] after-all()
  h = (f32[], u32[], token[]) recv(t), channel_id=7, is_host_transfer=true
  s = (s32[], f32[], (f32[], u32[], token[])) tuple(zero, nothing, h)
  w = (s32[], f32[], (f32[], u32[], token[])) while(s), condition=condition, body=body
  last = (f32[], u32[], token[]) get-tuple-element(w), index=2
  rd = (f32[], token[]) recv-done(last), channel_id=7, is_host_transfer=true
  x = f32[] get-tuple-element(rd), index=0
  sum = f32[] get-tuple-element(w), index=1
  ROOT total = f32[] add(sum, x) }
"""
    taken = [np.float32(k) for k in (1, 2, 4, 8, 16)]
    source = iter(taken)
    assert run_text(text, host_transfers={7: source}) == 15
    assert list(source) == [16]


def test_transfers_are_alive_without_users_in_called_computations_and_asynchronous_ones():
    text = """HloModule m
tells { x = s32[] parameter(0)
  t = token[] after-all()
  o = token[] outfeed(x, t)
  ROOT r = s32[] negate(x) }
ENTRY e { a = s32[] constant(1)
  b = s32[] constant(2)
  c = s32[] constant(3)
  unused = s32[] call(a), to_apply=tells
  fused = s32[] fusion(b), kind=kLoop, calls=tells
  start = ((s32[]), s32[], u32[]) async-start(c), calls=tells
  done = s32[] async-done(start)
  ROOT r = () tuple() }
"""
    out: list[np.ndarray] = []
    assert run_text(text, outfeed=out) == ()
    assert [int(value) for value in out] == [1, 2, 3]


def test_tokens_order_transfers_against_the_text():
    text = """HloModule m
ENTRY e { t = token[] after-all()
  one = s32[] constant(1)
  two = s32[] constant(2)
  late = token[] outfeed(two, early)
  early = token[] outfeed(one, t)
  ROOT r = () tuple() }
"""
    out: list[np.ndarray] = []
    run(parsed(text), outfeed=out)
    assert [int(value) for value in out] == [1, 2]


def test_the_host_may_keep_and_change_what_it_gives_and_gets():
    buffer = np.zeros(4, np.float32)
    text = """HloModule m
ENTRY e { t = token[] after-all()
  i = (f32[4], token[]) infeed(t)
  t1 = token[] get-tuple-element(i), index=1
  j = (f32[4], token[]) infeed(t1)
  t2 = token[] get-tuple-element(j), index=1
  x = f32[4] get-tuple-element(i), index=0
  y = f32[4] get-tuple-element(j), index=0
  o = token[] outfeed(x, t2)
  ROOT r = (f32[4], f32[4]) tuple(x, y) }
"""

    def refill():
        buffer[:] += 1
        return buffer

    def spoil(value):
        value[:] = 99

    first, second = run_text(text, infeed=refill, outfeed=spoil)
    assert_array_equal(first, [1] * 4)
    assert_array_equal(second, [2] * 4)
    first[:] = 0
    assert_array_equal(buffer, [2] * 4)


def test_tuples_tokens_and_narrow_types_pass_through_the_feeds():
    shape = "(bf16[2], (s4[3], ()), pred[])"
    text = f"""HloModule m
ENTRY e {{ t = token[] after-all()
  i = ({shape}, token[]) infeed(t), infeed_config="queue"
  data = {shape} get-tuple-element(i), index=0
  t1 = token[] get-tuple-element(i), index=1
  o = token[] outfeed(data, t1), outfeed_shape={shape}
  ROOT r = () tuple() }}
"""
    import ml_dtypes

    value = (np.ones(2, ml_dtypes.bfloat16), (np.array([1, -2, 3], ml_dtypes.int4), ()), np.bool_(True))
    out: list = []
    run_text(text, infeed=[value], outfeed=out)
    ((first, (second, empty), third),) = out
    assert first.dtype == ml_dtypes.bfloat16
    assert second.dtype == ml_dtypes.int4
    assert_array_equal(second.astype(np.int8), [1, -2, 3])
    assert empty == ()
    assert third


def test_broadcast_values_leave_as_whole_arrays():
    text = """HloModule m
ENTRY e { t = token[] after-all()
  c = f32[] constant(3)
  b = f32[2,2] broadcast(c), dimensions={}
  o = token[] outfeed(b, t)
  ROOT r = () tuple() }
"""
    out: list[np.ndarray] = []
    run_text(text, outfeed=out)
    out[0][0, 0] = 1
    assert_array_equal(out[0], [[1, 3], [3, 3]])


def test_observers_see_transfers():
    seen = {}

    class Observer:
        def on_instruction(self, event):
            seen[event.instruction.name] = event.value

    run(parsed(CALLBACK), X, host_transfers={1: [], 2: [X]}, observers=[Observer()])
    assert_array_equal(seen["s"][0], X)
    assert_array_equal(seen["rd"][0], X)
    assert {"s", "sd", "r", "rd"} <= seen.keys()


def test_the_memory_of_received_values_is_estimated():
    big = DOUBLE.replace("f32[4]", "f32[1000]")
    taken = Statistics()
    run(parsed(big), infeed=[np.zeros(1000, np.float32)], outfeed=[], statistics=taken)
    assert taken.peak_bytes == 8000
    assert entry_peak_bytes(plan_of(parsed(big))) >= taken.peak_bytes


def test_what_nobody_takes_is_dropped_with_a_warning():
    with pytest.warns(HloWarning, match=r"the outfeed \(%o in computation e; take them with outfeed=\[\]\)"):
        run_text(DOUBLE, infeed=[X])


# Wrong uses


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"%i in computation e takes values of shape f32\[4\] from the infeed; give them with infeed=\["),
        (
            {"infeed": 3},
            "the infeed takes its values from an iterable or a function without arguments, but .* is a int",
        ),
        ({"infeed": {"a": X}}, "is a dict"),
        ({"infeed": [X], "outfeed": 3}, "outfeed must be a list, .*, but the Python int 3 was given"),
        ({"infeed": [X], "host_transfers": {1: [X]}}, "names channel 1, .* it has no such transfers"),
        ({"infeed": [X], "host_transfers": [X]}, "host_transfers must be a mapping from channels"),
        (
            {"infeed": []},
            r"%i in computation e failed: the infeed has no value left; 0 were given, and another f32\[4\]",
        ),
        ({"infeed": [X[:3]]}, r"%i in .* value 0 of the infeed must be f32\[4\].* but f32\[3\] was given"),
        ({"infeed": [X.astype(np.float64)]}, r"%i in .* must be f32\[4\].* but f64\[4\] was given"),
        ({"infeed": [(X,)]}, "%i in .* a tuple of 1 values was given"),
        ({"infeed": [None]}, r"%i in .* None was given"),
        ({"infeed": lambda: "text"}, "%i in .* the Python str 'text' was given"),
    ],
)
def test_wrong_feeds_are_input_errors_that_name_the_instruction(options, message):
    with pytest.raises(InputError, match=message):
        run_text(DOUBLE, **{"outfeed": [], **options})


def test_feeds_that_a_module_lacks_are_refused():
    with pytest.raises(InputError, match="values for the infeed were given, but e takes none"):
        run_text("HloModule m\nENTRY e { ROOT t = () tuple() }", infeed=[X])


@pytest.mark.parametrize(
    ("transfers", "message"),
    [
        (
            {1: []},
            r"%rd in computation e takes values of shape f32\[4\] from channel 2; give them with host_transfers=",
        ),
        ({1: [], 2: []}, r"%rd in computation e failed: channel 2 has no value left"),
        ({1: [], 2: [X], 3: []}, "names channel 3, .* the channels are 1, 2"),
        ({1: [], 2: [X], "1": []}, "names channel '1'"),
        ({1: 4, 2: [X]}, r"channel 1 puts its values into .* host_transfers={1: …} is a int"),
    ],
)
def test_wrong_host_transfers_are_input_errors(transfers, message):
    with pytest.raises(InputError, match=message):
        run_text(CALLBACK, X, host_transfers=transfers)


def test_errors_of_the_hosts_functions_name_the_instruction():
    def fails(_):
        raise ValueError("boom")

    with pytest.raises(EvaluationError, match=r"%o in computation told, reached through w.*ValueError: boom") as caught:
        run_text(LOOP, infeed=[(np.float32(1), np.bool_(True))], outfeed=fails)
    assert isinstance(caught.value.__cause__, ValueError)


def test_transfers_between_devices_are_refused_before_the_run():
    module = parsed(CALLBACK.replace(", is_host_transfer=true", ""))
    with pytest.raises(UnsupportedError, match=r"%s in computation e \(send\) exchanges values with other devices"):
        run(module, X, host_transfers={1: [], 2: [X]})
    assert unsupported(module) == []
    assert unsupported(parsed(CALLBACK)) == []


def test_transfers_without_a_channel_are_refused():
    with pytest.raises(UnsupportedError, match="it has no channel_id"):
        run(parsed(re.sub("channel_id=., ", "", CALLBACK)), X)


def test_a_done_has_what_its_start_says():
    text = CALLBACK.replace("recv-done(r), channel_id=2, is_host_transfer=true", "recv-done(r)")
    assert_array_equal(run_text(text, X, host_transfers={1: [], 2: [X]}), X * X)


def test_transfers_inside_a_reducer_are_refused():
    text = """HloModule m
tells { x = f32[] parameter(0)
  y = f32[] parameter(1)
  t = token[] after-all()
  o = token[] outfeed(x, t)
  ROOT r = f32[] add(x, y) }
ENTRY e { x = f32[4] parameter(0)
  z = f32[] constant(0)
  ROOT r = f32[] reduce(x, z), dimensions={0}, to_apply=tells }
"""
    with pytest.raises(
        UnsupportedError, match="%o in computation tells has to do with other devices or the host, but tells is"
    ):
        run_text(text, X, outfeed=[])


# The rest of what a single device does by itself


def test_domains_and_token_operations_forward_their_operands():
    text = """HloModule m
ENTRY e { x = f32[4] parameter(0)
  t = token[] after-all()
  t1 = token[] after-all(t, t)
  a = f32[4] add-dependency(x, t1)
  d = f32[4] domain(a), domain={kind="sharding", entry={replicated}, exit={maximal device=0}}
  ROOT r = (f32[4], token[]) tuple(d, t1) }
"""
    value, _ = run_text(text, X)
    assert_array_equal(value, X)
