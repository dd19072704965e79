"""Modules and inputs that do not fit the devices are refused in a sentence."""

import numpy as np
import pytest

import hloexec
from tests.devices.diverging import ADD, numbers, run, summed

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("groups", "what"),
    [("{{0,5}}", "5"), ("{{0}}", "1"), ("{{0,1,2}}", "2")],
)
def test_groups_that_do_not_fit_the_devices_are_refused(groups: str, what: str) -> None:
    text = ADD + f"ENTRY main {{\n  x = s32[] parameter(0)\n  ROOT {summed(groups)}\n}}\n"
    with pytest.raises(hloexec.InputError) as caught:
        run(text, 2)
    assert what in str(caught.value) and "%total" in str(caught.value)


def test_a_target_that_is_no_device_is_refused() -> None:
    text = "ENTRY main {\n  x = s32[] parameter(0)\n  ROOT p = s32[] collective-permute(x), source_target_pairs={{0,3}}\n}\n"
    with pytest.raises(hloexec.InputError, match="3"):
        run(text, 2)


def test_global_ids_without_groups_are_refused() -> None:
    text = (
        ADD
        + "ENTRY main {\n  x = s32[] parameter(0)\n  ROOT "
        + summed("{}", channel="channel_id=1, use_global_device_ids=true, ")
        + "\n}\n"
    )
    with pytest.raises(hloexec.HloError, match="use_global_device_ids"):
        run(text, 2)


def test_global_ids_without_a_channel_are_refused() -> None:
    text = (
        ADD
        + "ENTRY main {\n  x = s32[] parameter(0)\n  ROOT "
        + summed("{{0,1}}", channel="use_global_device_ids=true, ")
        + "\n}\n"
    )
    with pytest.raises(hloexec.HloError, match="channel_id"):
        run(text, 2)


@pytest.mark.parametrize(
    ("count", "message"), [(0, "takes 1 inputs"), (3, "per device, 4, .* 3"), (5, "device, 4, .* 5")]
)
def test_inputs_for_another_number_of_devices_are_refused(count: int, message: str) -> None:
    module = hloexec.parse("HloModule m, replica_count=4\nENTRY main {\n  ROOT x = s32[] parameter(0)\n}\n")
    with pytest.raises(hloexec.InputError, match=message):
        hloexec.run_devices(module, [[np.int32(1)]] * count)


def test_a_wrong_input_is_named_with_its_device() -> None:
    module = hloexec.parse("HloModule m, replica_count=3\nENTRY main {\n  ROOT x = s32[] parameter(0)\n}\n")
    with pytest.raises(hloexec.InputError, match="device 2"):
        hloexec.run_devices(module, [[np.int32(1)], [np.int32(1)], [np.float32(1)]])


def test_one_list_of_inputs_serves_all_devices() -> None:
    module = hloexec.parse(
        "HloModule m, replica_count=3\nENTRY main {\n  x = s32[] parameter(0)\n  ROOT n = s32[] negate(x)\n}\n"
    )
    assert numbers(hloexec.run_devices(module, [[np.int32(5)]])) == [-5, -5, -5]


def _entry(*lines: str, **parameters: str) -> str:
    """An entry computation whose last line is the root, after parameters of the shapes given."""
    given = [f"{name} = {shape} parameter({number})" for number, (name, shape) in enumerate(parameters.items())]
    body = [*given, *lines[:-1], f"ROOT {lines[-1]}"]
    return "ENTRY main {\n" + "".join(f"  {line}\n" for line in body) + "}\n"


STARTS = ("at = (s32[]) tuple(i)",)
OFFSETS = dict.fromkeys("ijkl", "s32[3]")


@pytest.mark.parametrize(
    "text",
    [
        _entry("z = s32[8] all-gather(x), replica_groups={}, dimensions={0}", x="s32[4]"),
        _entry("z = s32[8] all-gather(x), channel_id=1, replica_groups={{0,1,2}}, dimensions={0}", x="s32[4]"),
        ADD + _entry("z = s32[2] reduce-scatter(x), replica_groups={}, dimensions={0}, to_apply=add", x="s32[4]"),
        _entry("z = s32[6] all-to-all(x), replica_groups={}, dimensions={0}", x="s32[6]"),
        _entry("z = (s32[4], s32[4]) all-to-all(x, x), replica_groups={}", x="s32[4]"),
        _entry(
            "z = s32[4] ragged-all-to-all(x, o, i, j, k, l), replica_groups={{0,2},{1,3}}",
            x="s32[4]",
            o="s32[4]",
            **OFFSETS,
        ),
        _entry(
            *STARTS,
            "z = s32[4] collective-permute(x, o, at, at), source_target_pairs={{0,1}}, slice_sizes={{5}}",
            x="s32[4]",
            o="s32[4]",
            i="s32[]",
        ),
        _entry(
            *STARTS,
            "z = s32[4] collective-permute(x, o, at, at), source_target_pairs={{0,1}}, slice_sizes={{2,2}}",
            x="s32[4]",
            o="s32[4]",
            i="s32[]",
        ),
        _entry(
            *STARTS,
            "z = s32[4] collective-permute(x, o, at, at), source_target_pairs={{0,1}}, slice_sizes={{2},{2}}",
            x="s32[4]",
            o="s32[4]",
            i="s32[]",
        ),
    ],
)
def test_shapes_that_do_not_fit_the_number_of_devices_are_refused_in_a_sentence(text: str) -> None:
    module = hloexec.parse("HloModule m, replica_count=4\n" + text)
    values = [np.zeros(parameter.shape.dimensions, np.int32) for parameter in module.entry.parameters]
    with pytest.raises(hloexec.HloError) as caught:
        hloexec.run_devices(module, [values])
    assert "%z" in str(caught.value) or "'z'" in str(caught.value)
    assert not any(name in str(caught.value) for name in "IndexError ValueError StopIteration KeyError".split())


def test_groups_of_different_sizes_must_all_fit() -> None:
    gathered = _entry("z = s32[4] all-gather(x), replica_groups={{3},{0,1,2}}, dimensions={0}", x="s32[4]")
    module = hloexec.parse("HloModule m, replica_count=4\n" + gathered)
    with pytest.raises(hloexec.InputError, match="%z in computation main does not fit groups of 3 devices"):
        hloexec.run_devices(module, [[np.zeros(4, np.int32)]] * 4, verify=False)
