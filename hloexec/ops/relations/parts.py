"""Dimensions that are products, sums or parts of others, as in reshapes, concatenation, slices and padding.

The geometry of windows, and how the dimensions that they slide over depend on one another.

A window of few taps stays as it is: the result is then as much longer or shorter than the input as before. A window as
long as the input grows with it, as in cumulative sums, global pooling, products of matrices that are written as
convolutions, and gradients of kernels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, product
from math import gcd
from typing import Any

import attrs

from hloexec.core.ir import Window, WindowDimension
from hloexec.core.values import Dimensions
from hloexec.ops.common import require
from hloexec.ops.relations.rules import Joined, Relating, Relations, Resizing, Slice, UnionFind

_MOST_SHARES = 16
"""A part that is so many times smaller than the whole, or less, is a share of it."""
_MOST_WINDOWS = 64
_LEAST_TRIMMED = 8
"""Of so many elements or more, all but one are those that are left when one is taken away."""
_LEAST_SHARE = 8
"""A window of fewer elements in a much larger dimension is one of fixed size."""
_LEAST_TILE = 16
"""Of windows side by side that are as large or larger, the size is a compiler's, which reduces in several rounds."""


def _kind_of_part(whole: int, start: int, size: int) -> str:
    """How a part of a dimension grows with the whole.

    A share starts and ends at fixed fractions of it; where a dimension is trimmed, fixed numbers of elements are left
    out at its ends; a piece has a fixed size. At one end of it may be the half or third of one element more or fewer,
    as of the 2n - 1 distances between n positions, or the n + 1 frequencies of 2n. Else it is unclear, and nothing may
    change.
    """
    if size == whole:
        return "whole"
    common = gcd(whole, start, size)
    if common > 1 and whole <= _MOST_SHARES * common and size > 1:
        return "share"
    if _is_trimmed(whole, size, is_fraction=common > 1):
        return "trim"
    if size <= 1 or 4 * size <= whole:
        return "piece"
    if start in (0, whole - size) and _about_times(whole, size):
        return "about a share"
    is_any = common > 1 or whole < _LEAST_TRIMMED
    return "unclear" if is_any else "trim" if 2 * size > whole else "piece"


def _kind_of_slice(relations: Relations, whole: int, start: int, size: int) -> str:
    """The same where it is known which sizes differ by padding and windows: what seems a share may be trimmed, or what
    is left out then."""
    kind, apart = _kind_of_part(whole, start, size), relations.apart
    left_out = whole - size
    if kind == "share" and whole in apart:
        if 4 * left_out <= whole and apart[whole] == apart.get(size):
            return "trim"
        if 4 * size <= whole and apart[whole] == apart.get(left_out) and start in (0, left_out):
            return "piece"
    return kind


def _sizes_apart(relations: Relations) -> dict[int, int]:
    """Sizes that differ by numbers of elements that stay, with one number for those that do from one another."""
    pairs = [
        [relations.sizes[dimension] for dimension, _ in equation.terms]
        for equation in relations.equations
        if equation.constant and sorted(count for _, count in equation.terms) == [-1, 1]
    ]
    for _, whole, part, start in relations.slices:
        sizes = relations.sizes[whole], relations.sizes[part]
        if _kind_of_part(sizes[0], start, sizes[1]) == "trim":
            pairs.append([*sizes])
    numbers = {size: number for number, size in enumerate(sorted({size for pair in pairs for size in pair}))}
    tied = UnionFind()
    tied.extend(len(numbers))
    for first, second in pairs:
        if min(first, second) >= _LEAST_TRIMMED:
            tied.tie(numbers[first], numbers[second])
    return {size: tied.root(number) for size, number in numbers.items()}


def _about_times(whole: int, size: int) -> int | None:
    """How often a size fits into one that would be a multiple of it if either were one smaller or larger."""
    times = round(whole / size)
    return times if size >= _LEAST_TRIMMED and abs(whole - times * size) in (1, times) else None


def _is_trimmed(whole: int, size: int, is_fraction: bool = True) -> bool:
    """Of few elements, a part may be a fraction of the whole."""
    left_out = whole - size
    is_clear = whole > _MOST_SHARES or (whole >= _LEAST_TRIMMED and (left_out == 1 or not is_fraction))
    return is_clear and 4 * left_out <= whole


def _is_at_end(whole: int, start: int, size: int) -> bool:
    """Whether a piece lies where it does because the dimension ends there."""
    return start + size == whole or (whole > _MOST_SHARES and 4 * (whole - start) <= whole)


def relate_part(use: Relating, whole: int, part: int, start: int) -> None:
    """A dimension is part of another, from `start` on; that of a device is a share, however many there are."""
    full, size = use.size(whole), use.size(part)
    kind = _kind_of_slice(use.relations, full, start, size)
    is_of_device = size > 1 and full % size == start % size == 0 and full // size in use.relations.device_counts
    if kind == "whole":
        use.same([whole], [part])
    elif kind == "share" or (kind == "piece" and is_of_device):
        _relate_share(use, whole, part, start)
    elif kind == "trim":
        use.equation({whole: 1, part: -1})
        use.at_least(part, 1)
    elif kind == "piece":
        use.keep([part], "it is a piece of fixed size of a larger dimension")
        use.at_least(whole, _needed(full, start, size))
    elif kind == "about a share" and (times := _about_times(full, size)):
        use.equation({whole: 1, part: -times})
    else:
        use.keep([whole, part], f"what part of it {start}:{start + size} is, of {full}, is unclear")


def relate_slice(use: Relating, whole: int, part: int, start: int) -> None:
    """The same for a slice, or an operand that is padded, which may be one of several that lie side by side, or of what
    is put together."""
    use.relations.slices.append((use, whole, part, start))


def relate_slices(relations: Relations) -> None:
    """Slices that lie side by side and make up a dimension are shares of it, where one alone would be unclear; of
    what is put together of arrays, those that begin and end where these do are the arrays, whatever their sizes."""
    relations.apart = _sizes_apart(relations)
    whole_again = _tie_reassembled(relations)
    _tie_taken_apart(relations)
    slices_by_root, sums_by_root = _slices_by_root(relations), defaultdict(list)
    for joined in relations.joined:
        sums_by_root[relations.root(joined[1])].append(joined)
    shares = _shares_of_devices(relations)
    counting = {
        relations.root(dimension)
        for position in relations.positions
        for dimension in position.dimensions
        if (relations.units.root(position.unit), relations.root(dimension)) not in shares
    }
    for root in {**slices_by_root, **sums_by_root}:
        slices = slices_by_root[root]
        sums = sums_by_root[root] or _taken_apart(relations, slices)
        is_counted = root in counting and root not in map(relations.root, whole_again)
        if is_counted or not _relate_layout(relations, sums, slices):
            for use, total, parts in sums_by_root[root]:
                _relate_sum(use, total, parts)
            _relate_stretches(relations, slices)


def _shares_of_devices(relations: Relations) -> set[tuple[int, int]]:
    """Units of numbers at which the parts of devices, or all of it, start in a dimension, and that: they follow it,
    whatever it is made of."""
    sizes, counts = relations.sizes, {1, *relations.device_counts}
    return {
        (relations.units.root(unit), relations.root(whole))
        for unit, whole, window in relations.rooms
        if sizes[window] and not sizes[whole] % sizes[window] and sizes[whole] // sizes[window] in counts
    }


def _tie_reassembled(relations: Relations) -> list[int]:
    """What is put together of all slices of a dimension, in their order, is that dimension; the dimensions that are.

    So it is where the order begins with another slice, and those before that come last.
    """
    reassembled = []
    places = defaultdict(set)
    for _, whole, part, start in relations.slices:
        places[relations.root(part)].add((relations.root(whole), start))
    for _, total, parts in relations.joined:
        full = relations.sizes[total]
        starts = [*accumulate((relations.sizes[part] for part in parts), initial=0)]
        for whole, first in places[relations.root(parts[0])] if parts else ():
            rotated = zip(parts, starts, strict=False)
            if relations.sizes[whole] == full and all(
                (whole, (first + start) % full) in places[relations.root(part)] for part, start in rotated
            ):
                relations.tie(whole, total)
                reassembled += [] if first else [total]
    return reassembled


def _taken_apart(relations: Relations, slices: Sequence[Slice]) -> list[Joined]:
    """What slices, and operands that are padded, make of a dimension that they cover, as if it were put together of
    them; nothing where they leave a gap, or are all shares, or about that."""
    parts_by_place = {(start, start + relations.sizes[part]): (use, whole, part) for use, whole, part, start in slices}
    stop, parts = 0, []
    for start, end in sorted(parts_by_place):
        if start == stop < end:
            stop = end
            parts.append(parts_by_place[start, end])
    full = relations.sizes[parts[0][1]] if parts else 0
    if stop < full or _are_shares([relations.sizes[part] for _, _, part in parts], "about a share"):
        return []
    use, whole, _ = parts[0]
    return [(use, whole, tuple(part for _, _, part in parts))]


def _slices_by_root(relations: Relations) -> defaultdict[int, list[Slice]]:
    """By the root of the dimension that is sliced."""
    slices_by_root: defaultdict[int, list[Slice]] = defaultdict(list)
    for entry in relations.slices:
        slices_by_root[relations.root(entry[1])].append(entry)
    return slices_by_root


def _tie_taken_apart(relations: Relations) -> None:
    """A dimension that is sliced where another of its size is taken apart into unequal parts is that dimension."""
    slices_by_root = _slices_by_root(relations)
    layouts: dict[int, list[tuple[int, set[int]]]] = defaultdict(list)
    for slices in slices_by_root.values():
        for _, whole, parts in _taken_apart(relations, slices):
            ends = {0, *accumulate(relations.sizes[part] for part in parts)}
            layouts[relations.sizes[whole]].append((whole, ends))
    for root, slices in slices_by_root.items():
        places = {place for _, _, part, start in slices for place in (start, start + relations.sizes[part])}
        cuts = places - {0, relations.sizes[root]}
        for whole, ends in layouts[relations.sizes[root]]:
            if cuts and cuts <= ends:
                relations.tie(whole, root)


def _are_shares(lengths: Sequence[int], *others: str) -> bool:
    """Whether parts of these sizes, side by side, are shares of the whole, or all of it, or of other kinds."""
    starts = accumulate(lengths, initial=0)
    kinds = {_kind_of_part(sum(lengths), start, size) for start, size in zip(starts, lengths, strict=False)}
    return kinds <= {"whole", "share", *others}


def _relate_layout(relations: Relations, sums: Sequence[Joined], slices: Sequence[Slice]) -> bool:
    """Relate what is put together, always of the same sizes, to slices that take it apart; False where it is not that,
    or each is a share of the whole."""
    sizes = {tuple(relations.sizes[part] for part in parts) for _, _, parts in sums}
    if len(sizes) != 1 or not slices:
        return False
    (lengths,) = sizes
    starts = [0, *accumulate(lengths)]
    if _are_shares(lengths):
        return False
    numbers = {start: number for number, start in enumerate(starts)}
    ends = [(start, start + relations.sizes[part]) for _, _, part, start in slices]
    if not all(start in numbers and stop in numbers for start, stop in ends):
        return False
    _, _, first = sums[0]
    for use, total, parts in sums:
        use.same(first, parts)
        use.sum_of(total, parts)
    for (use, whole, part, _), (start, stop) in zip(slices, ends, strict=True):
        use.sum_of(part, first[numbers[start] : numbers[stop]])
        starts_by_axis = relations.starts.setdefault(use.where, {})
        axes = use.operands[0].axes if whole in use.operands[0].axes else use.result.axes
        starts_by_axis[axes.index(whole)] = first[: numbers[start]]
    return True


def _relate_stretches(relations: Relations, slices: Sequence[Slice]) -> None:
    """Relate slices of one dimension."""
    full = relations.sizes[slices[0][1]] if slices else 0
    unclear, stretches = [], set()
    for use, whole, part, start in slices:
        size = relations.sizes[part]
        kind = _kind_of_slice(relations, full, start, size)
        if kind in ("unclear", "piece") and gcd(full, start, size) > 1:
            stretches.add((start, start + size, kind))
            unclear.append((use, whole, part, start))
        else:
            relate_part(use, whole, part, start)
    begins, ends = {0}, {full}
    for start, stop, _ in sorted(stretches):
        begins |= {stop} if start in begins else set()
    for start, stop, _ in sorted(stretches, reverse=True):
        ends |= {start} if stop in ends else set()
    is_unclear = any(kind == "unclear" for _, _, kind in stretches)
    for use, whole, part, start in unclear:
        if is_unclear and start in begins and start + relations.sizes[part] in ends:
            _relate_share(use, whole, part, start)
        else:
            relate_part(use, whole, part, start)


def _relate_share(use: Relating, whole: int, part: int, start: int) -> None:
    """A share, or, where it cannot be one, all but a few elements, or a few, as of halos."""
    full, size, otherwise = use.size(whole), use.size(part), None
    if 2 * size > full:
        otherwise = use.constant_sum({whole: 1, part: -1})
    elif size < _LEAST_SHARE and 2 * size < full:
        otherwise = attrs.evolve(use.constant_sum({part: 1}), least=((whole, _needed(full, start, size)),))
    share = use.constant_sum({whole: size // gcd(full, size), part: -(full // gcd(full, size))})
    use.relations.equations.append(attrs.evolve(share, whole=((whole, start),) if start else (), otherwise=otherwise))


def _needed(whole: int, start: int, size: int) -> int:
    """How large a dimension has to be for a piece of fixed size."""
    return whole - start if _is_at_end(whole, start, size) else start + size


def resized_start(whole: int, start: int, size: int, new_whole: int, new_size: int) -> int:
    """Where a part of a dimension begins when both have changed."""
    if whole == new_whole:
        return start
    if size < whole and new_size * whole == size * new_whole and start * new_whole % whole == 0:
        return start * new_whole // whole
    kind = _kind_of_part(whole, start, size)
    if kind == "share" and new_size * whole == size * new_whole:
        return start * new_whole // whole
    if kind == "about a share":
        return new_whole - new_size if start else 0
    is_piece = kind == "piece" or (kind == "share" and size == new_size)
    return new_whole - (whole - start) if is_piece and _is_at_end(whole, start, size) else start


def relate_window_of(use: Relating, whole: int, window: int, devices: int | None = None) -> None:
    """A window of one size lies somewhere in the other: all of it, one of a few dozen equal parts or of as many as
    there are devices, several of a few, all but the ends, or a piece of fixed size.

    It may be the part of one of several devices, whose number is a dimension.
    """
    full, size = use.size(whole), use.size(window)
    most = _MOST_WINDOWS if size >= _LEAST_SHARE else _MOST_SHARES
    if devices is not None and full == use.size(devices) * size:
        use.shared(whole, window, devices)
    elif full == size:
        use.same([whole], [window])
    elif size > 1 and full % size == 0 and (full <= most * size or full // size in use.relations.device_counts):
        use.multiple(whole, window)
    elif (common := gcd(full, size)) >= _LEAST_SHARE and common < size and full <= _MOST_SHARES * common:
        use.equation({whole: size // common, window: -(full // common)})
    elif _is_trimmed(full, size):
        use.equation({whole: 1, window: -1})
        use.at_least(window, 1)
    else:
        use.keep([window], "it is a window of fixed size in a larger dimension")
        use.at_least(whole, size)


def _relate_sum(use: Relating, total: int, parts: Sequence[int]) -> None:
    """A dimension is the sum of others: of shares of it, or of one and a few short pieces of fixed size."""
    whole, sizes = use.size(total), [use.size(part) for part in parts]
    common = gcd(*(size for size in sizes if size != 1), whole)
    if len(parts) > 1 and (common <= 1 or whole > _MOST_WINDOWS * common):
        use.keep([part for part in parts if 8 * use.size(part) <= whole], "it is a short piece of a larger dimension")
    terms: dict[int, int] = {total: 1}
    for part in parts:
        root = use.relations.root(part)
        terms[root] = terms.get(root, 0) - 1
    use.equation(terms)


def relate_concatenation(use: Relating, axis: int) -> None:
    """The result is the operands side by side in one dimension."""
    result = use.result.axes
    for operand in use.operands:
        for number, dimension in enumerate(operand.axes):
            if number != axis:
                use.same([dimension], [result[number]])
    use.relations.joined.append((use, result[axis], tuple(operand.axes[axis] for operand in use.operands)))


def require_window(window: Window, subject: str) -> None:
    """Raise ShapeError unless sizes, strides and dilations are positive; `subject` names the opcode."""
    for number, dimension in enumerate(window.dimensions):
        for field in ("size", "stride", "base_dilation", "window_dilation"):
            quantity, value = field.replace("_", " "), getattr(dimension, field)
            require(
                value > 0, f"the {quantity} of window dimension {number} of {subject} must be positive, but is {value}"
            )


def output_size(extent: int, dimension: WindowDimension) -> int:
    """How many places a window takes in a dimension: those where it fits into the dilated and padded input.

    Source: XLA, operation semantics, "How the padding and dilation …" of ConvWithGeneralPadding.
    """
    if extent < 0:
        return extent
    dilated = (extent - 1) * dimension.base_dilation + 1 if extent else 0
    padded = dilated + dimension.padding_low + dimension.padding_high
    window = (dimension.size - 1) * dimension.window_dilation + 1
    return (padded - window) // dimension.stride + 1 if padded >= window else 0


def visits(extent: int, size: int, dimension: WindowDimension) -> Iterator[tuple[slice, slice] | None]:
    """For each tap of one dimension, the outputs it contributes to and the inputs it reads for them; None where none.

    Output x reads the dilated input at x·stride + tap·window_dilation - padding_low, which must be a multiple of
    base_dilation within the input: both x and the input index run in steps.
    """
    stride, base = dimension.stride, dimension.base_dilation
    common = gcd(stride, base)
    step, input_step = base // common, stride // common
    for tap in range(dimension.size):
        offset = tap * dimension.window_dilation - dimension.padding_low
        start = next((x for x in range(min(step, size)) if (x * stride + offset) % base == 0), None)
        if start is None:
            yield None
            continue
        index = (start * stride + offset) // base
        skipped = max(0, -(index // input_step))
        start, index = start + skipped * step, index + skipped * input_step
        count = min(-(-(size - start) // step), -(-(extent - index) // input_step))
        if count <= 0:
            yield None
            continue
        yield (
            slice(start, start + (count - 1) * step + 1, step),
            slice(index, index + (count - 1) * input_step + 1, input_step),
        )


def taps(
    extents: Sequence[int], sizes: Sequence[int], dimensions: Sequence[WindowDimension]
) -> Iterator[tuple[Dimensions, tuple[slice, ...], tuple[slice, ...]]]:
    """For each tap that meets elements, in row-major order: its position, the outputs it contributes to, and the inputs
    it reads for them."""
    per_dimension = [
        [(tap, *visit) for tap, visit in enumerate(visits(extent, size, dimension)) if visit is not None]
        for extent, size, dimension in zip(extents, sizes, dimensions, strict=True)
    ]
    for combination in product(*per_dimension):
        yield (
            tuple(tap for tap, _, _ in combination),
            tuple(outputs for _, outputs, _ in combination),
            tuple(inputs for _, _, inputs in combination),
        )


def part_of_windows(extent: int, places: range, dimension: WindowDimension) -> tuple[slice, WindowDimension]:
    """The elements that windows at some places see, and the windows on those elements alone; the base dilation is 1."""
    start = places.start * dimension.stride - dimension.padding_low
    length = (len(places) - 1) * dimension.stride + (dimension.size - 1) * dimension.window_dilation + 1
    low = min(max(0, start), extent)
    high = max(low, min(extent, start + length))
    return slice(low, high), attrs.evolve(dimension, padding_low=low - start, padding_high=start + length - high)


def _kind_of_window(window: WindowDimension, extent: int, places: int) -> str:
    """What the size of a window depends on: `extent` is that of the input, `places` that of the result."""
    size, padding = window.size, (window.padding_low, window.padding_high)
    is_plain = window.stride == window.base_dilation == window.window_dilation == 1
    if size == 1:
        return "fixed"
    if size == extent == places and (
        (window.stride, window.base_dilation) == (size - 1, size)
        or (window.stride, window.base_dilation, *padding) == (size, size - 1, size - 1, size - 1)
    ):
        return "matched"
    if size == extent == places and is_plain and padding in ((size - 1, 0), (0, size - 1)):
        return "prefix"
    if is_plain and extent == 1 and padding == (size - 1, size - 1) and places == size:
        return "spread"
    if size == extent and places == 1 and padding == (0, 0):
        return "global"
    is_apart = window.stride == size and window.base_dilation == window.window_dilation == 1 and padding == (0, 0)
    if is_apart and size >= _LEAST_TILE and extent == size * places:
        return "tile"
    is_gradient = size > places and window.stride == window.base_dilation == 1
    return "gradient" if is_gradient else "fixed"


def relate_window(use: Relating, window: WindowDimension, extent: int, places: int, taps: int | None = None) -> None:
    """The input's and the result's dimension, and that of the window where it is one of an operand."""
    kind = _kind_of_window(window, use.size(extent), use.size(places))
    kernel = [] if taps is None else [taps]
    if kind in ("matched", "prefix"):
        for other in (places, *kernel):
            use.same([extent], [other])
    elif kind == "spread":
        use.same([places], kernel or [places])
        if taps is None:
            use.keep([places], "it is the size of a window")
    elif kind == "global":
        use.same([extent], kernel or [extent])
    elif kind == "tile" and taps is None:
        size = use.relations.new((window.size,))
        use.relations.windows.update(size)
        use.relations.tiled[places] = extent
        use.relations.split(extent, (places, *size), use.where)
    elif kind == "gradient" and taps is not None:
        use.keep([places], "it is the number of places of a window")
        use.equation({extent: window.base_dilation, taps: -window.window_dilation})
    else:
        use.keep(kernel, "it is the size of a window")
        use.at_least(extent, 1)
        common = gcd(window.stride, window.base_dilation)
        use.equation({extent: window.base_dilation // common, places: -(window.stride // common)})
        if window.stride == window.size and window.base_dilation == window.window_dilation == 1:
            use.relations.tiled[places] = extent


def _resized(
    window: WindowDimension, extents: tuple[int, int], places: tuple[int, int], taps: int | None = None
) -> WindowDimension:
    """The window for new sizes of input and result, with so many taps where it is a kernel's."""
    kind = _kind_of_window(window, extents[0], places[0])
    if taps is None:
        if kind == "tile":
            size = extents[1] // places[1]
            return attrs.evolve(window, size=size, stride=size)
        taps = window.size
    size = extents[1] if kind in ("matched", "prefix", "global") else taps
    if size == window.size:
        return window
    if kind == "matched":
        return _matched(window, size)
    padding = [size - 1 if pad == window.size - 1 else pad for pad in (window.padding_low, window.padding_high)]
    if kind not in ("prefix", "spread"):
        padding = [window.padding_low, window.padding_high]
    return attrs.evolve(window, size=size, padding_low=padding[0], padding_high=padding[1])


def _matched(window: WindowDimension, size: int) -> WindowDimension:
    """The window with which each place of so many meets one element and one tap."""
    less = max(1, size - 1)
    if window.stride < window.base_dilation:
        return attrs.evolve(window, size=size, stride=less, base_dilation=size)
    return attrs.evolve(window, size=size, stride=size, base_dilation=less, padding_low=size - 1, padding_high=size - 1)


def resized_windows(
    window: Window, extents: tuple[Dimensions, Dimensions], places: tuple[Dimensions, Dimensions]
) -> Window:
    """The windows of a reduction for new sizes, each given before and after."""
    sizes = zip(window.dimensions, zip(*extents, strict=True), zip(*places, strict=True), strict=True)
    return Window(tuple(_resized(entry, input_, output) for entry, input_, output in sizes))


def relate_convolution(use: Relating) -> None:
    """Batch and features as in a product of matrices; groups of one feature each grow with the features."""
    attributes, labels = use.attributes, use.attributes.dim_labels
    lhs, rhs, result = use.operands[0].axes, use.operands[1].axes, use.result.axes
    batch, features = lhs[labels.input_batch_dimension], lhs[labels.input_feature_dimension]
    inputs, outputs = rhs[labels.kernel_input_feature_dimension], rhs[labels.kernel_output_feature_dimension]
    use.same([outputs], [result[labels.output_feature_dimension]])
    _relate_groups(use, attributes.feature_group_count, features, inputs, outputs)
    _relate_groups(use, attributes.batch_group_count, batch, result[labels.output_batch_dimension], outputs)
    spatial = zip(
        attributes.window.dimensions,
        labels.input_spatial_dimensions,
        labels.output_spatial_dimensions,
        labels.kernel_spatial_dimensions,
        strict=True,
    )
    for window, extent, places, taps in spatial:
        relate_window(use, window, lhs[extent], result[places], rhs[taps])


def _relate_groups(use: Relating, groups: int, whole: int, part: int, outputs: int) -> None:
    """A dimension that is divided into groups, what each has of it, and the outputs, which are divided as well."""
    if groups == 1:
        use.same([whole], [part])
    elif use.size(part) == 1:
        use.multiple(outputs, whole)
    else:
        use.multiple(whole, part)
        use.whole(outputs, use.size(outputs) // groups)


def resized_convolution(change: Resizing) -> dict[str, Any]:
    """The window and the numbers of groups of a convolution for new sizes."""
    attributes, labels = change.attributes, change.attributes.dim_labels
    lhs, rhs, result = change.sizes(0), change.sizes(1), change.result_sizes
    windows = []
    for number, window in enumerate(attributes.window.dimensions):
        extent, places = labels.input_spatial_dimensions[number], labels.output_spatial_dimensions[number]
        taps = rhs[1][labels.kernel_spatial_dimensions[number]]
        extents = lhs[0][extent], lhs[1][extent]
        windows.append(_resized(window, extents, (result[0][places], result[1][places]), taps))
    features = lhs[1][labels.input_feature_dimension] // max(1, rhs[1][labels.kernel_input_feature_dimension])
    batches = lhs[1][labels.input_batch_dimension] // max(1, result[1][labels.output_batch_dimension])
    return {
        "window": Window(tuple(windows)),
        "feature_group_count": features if attributes.feature_group_count > 1 else 1,
        "batch_group_count": batches if attributes.batch_group_count > 1 else 1,
    }
