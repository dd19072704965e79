"""Groups of devices, drawn in every form that HLO text has for them, and the attributes that go with them."""

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from tests.devices import collectives_model as model
from tests.devices.program import Options, Program

CHANNEL_MODES = {
    "replica": (model.CROSS_REPLICA, model.CROSS_PARTITION),
    "global": (model.CROSS_REPLICA, model.CROSS_BOTH, model.FLATTENED),
}


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _mode(options: Options, kind: str) -> str:
    return options.pick([mode for mode in CHANNEL_MODES[kind] if mode in options.modes])


def _attributes(options: Options, mode: str, kind: str) -> str:
    if mode == model.CROSS_REPLICA:
        return ""
    channel = f", channel_id={options.draw(st.integers(1, 3))}"
    return channel + (", use_global_device_ids=true" if mode == model.FLATTENED else "")


def draw_groups(
    program: Program,
    options: Options,
    kind: str,
    size_fits: Callable[[int], bool] = lambda size: True,
    may_miss_devices: bool = False,
) -> tuple[list[list[int]], str]:
    """Device groups of one size that fits, and the attributes that say so."""
    mode = _mode(options, kind)
    count = {
        model.CROSS_REPLICA: program.replicas,
        model.CROSS_PARTITION: program.partitions,
        model.CROSS_BOTH: program.replicas,
        model.FLATTENED: program.devices,
    }[mode]
    factor = program.partitions if mode == model.CROSS_BOTH else 1
    size = options.pick([size for size in _divisors(count) if size_fits(size * factor)])
    possible = [
        text
        for text in options.group_texts
        if (text != "empty" or (size == count and mode != model.FLATTENED))
        and (text != "mesh" or size > 1)
        and not (text == "empty" and kind == "replica" and options.for_xla)
    ]
    chosen = options.pick(possible)
    groups, text = GROUP_TEXTS[chosen](options, count, size)
    if may_miss_devices and chosen == "explicit":
        groups = groups[: options.draw(st.integers(1, len(groups)))]
        text = _explicit_text(groups)
    devices = model.flattened_groups(mode, groups, program.replicas, program.partitions)
    return devices, f", replica_groups={text}{_attributes(options, mode, kind)}"


def _explicit_text(groups: Sequence[Sequence[int]]) -> str:
    return "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups) + "}"


def _explicit(options: Options, count: int, size: int) -> tuple[list[list[int]], str]:
    order = options.draw(st.permutations(range(count)))
    groups = [order[start : start + size] for start in range(0, count, size)]
    return groups, _explicit_text(groups)


def _empty(options: Options, count: int, size: int) -> tuple[list[list[int]], str]:
    return [], "{}"


def _factors(options: Options, count: int) -> list[int]:
    """Numbers greater than one whose product is `count`, or [1]."""
    factors = []
    while count > 1:
        factor = options.pick([d for d in _divisors(count) if d > 1])
        factors.append(factor)
        count //= factor
    return factors or [1]


def _iota(options: Options, count: int, size: int) -> tuple[list[list[int]], str]:
    reshape = _factors(options, count)
    permutation = options.draw(st.permutations(range(len(reshape)))) if len(reshape) > 1 else None
    shape = [count // size, size]
    transpose = f"T({','.join(map(str, permutation))})" if permutation is not None else ""
    text = f"[{','.join(map(str, shape))}]<=[{','.join(map(str, reshape))}]{transpose}"
    return model.iota_groups(shape, reshape, permutation), text


def _mesh(options: Options, count: int, size: int) -> tuple[list[list[int]], str]:
    """Axes before, along and after the groups; sometimes listed devices, sometimes a part of an axis."""
    names = "xyz"
    before = options.pick(_divisors(count // size))
    sizes = [before, size, count // size // before]
    axes, text = [(1, 1, size)], "'y'"
    if options.draw(st.booleans()) and before > 1:
        # The last two axes as one, of which the groups take the first part.
        sizes = [before, sizes[1] * sizes[2]]
        axes, text = ([(1, 1, size)], f"'y':(1){size}") if size < sizes[1] else (axes, text)
    elif options.draw(st.booleans()):
        # Two axes at once, in either order.
        first = options.pick(_divisors(size))
        if 1 < first < size:
            sizes = [first, count // size, size // first]
            order = options.draw(st.permutations([0, 2]))
            axes = [(axis, 1, sizes[axis]) for axis in order]
            text = ",".join(f"'{names[axis]}'" for axis in order)
    device_ids = list(range(count))
    listed = ""
    if options.draw(st.booleans()):
        device_ids = options.draw(st.permutations(device_ids))
        listed = f", device_ids=({','.join(map(str, device_ids))})"
        if device_ids == sorted(device_ids):
            listed = ""
    written = ",".join(f"'{name}'={axis}" for name, axis in zip(names, sizes, strict=False))
    return model.mesh_groups(sizes, device_ids, axes), f"mesh[{written}]{listed} {{{text}}}"


GROUP_TEXTS = {"explicit": _explicit, "iota": _iota, "mesh": _mesh, "empty": _empty}


def draw_pairs(program: Program, options: Options) -> tuple[list[tuple[int, int]], str]:
    """Any one-to-one assignment of some sources to targets."""
    has_channel = options.pick([m for m in CHANNEL_MODES["replica"] if m in options.modes]) == model.CROSS_PARTITION
    count = program.partitions if has_channel else program.replicas
    sources, targets = (options.draw(st.permutations(range(count))) for _ in range(2))
    pairs = list(zip(sources, targets, strict=True))[: options.draw(st.integers(0, count))]
    channel = f", channel_id={options.draw(st.integers(1, 3))}" if has_channel else ""
    devices = model.flattened_pairs(has_channel, pairs, program.replicas, program.partitions)
    return devices, f"{channel}, source_target_pairs={_explicit_text(pairs)}"
