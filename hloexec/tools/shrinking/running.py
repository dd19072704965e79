"""`hloexec.shrink`: the same module with smaller dimensions, so that it runs in less memory and time.

The trip counts that loops state, where their bounds have changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from itertools import islice
from math import ceil, inf, log2

import attrs
import numpy as np

from hloexec.analysis.buffers.usage import run_estimate
from hloexec.analysis.trip_counts import loop_trips
from hloexec.core.arguments import byte_count, listed, require_integer, require_module, wrong
from hloexec.core.ir import Computation, Instruction, Literal, Module
from hloexec.core.ir.editing import map_instructions
from hloexec.core.structs import frozen
from hloexec.core.wording import argument, first_line, listing, truncated
from hloexec.engine.devices.topology import topology_of
from hloexec.errors import HloError, InputError, ResourceError, VerificationError, unwarned
from hloexec.language.verifier import verify
from hloexec.ops.costs import trip_count_of
from hloexec.ops.registry import Role, role_of
from hloexec.ops.relations import Place
from hloexec.tools.shrinking.devices.arrangements import Arranging, FewerDevices, fewer_devices
from hloexec.tools.shrinking.dimensions import Dimensions, dimensions_of
from hloexec.tools.shrinking.factors import agreeing, factors_for
from hloexec.tools.shrinking.fitting import fitted
from hloexec.tools.shrinking.forecast import Forecast, Work
from hloexec.tools.shrinking.grouping import Groups, groups_of, halvings
from hloexec.tools.shrinking.holding import holding_sizes
from hloexec.tools.shrinking.positions import ConstantChange, constants_for, tie_positions
from hloexec.tools.shrinking.rewriting import HoldingSize, Shrinkage, Workload, kept_sizes, rewritten, size_changes
from hloexec.tools.shrinking.solving import Demand, Sizing, Solver
from hloexec.tools.shrinking.sums import Sums

_COUNT = re.compile(r'("known(?:_trip_c|TripC)ount"\s*:\s*\{\s*"n"\s*:\s*"?)(\d+)')


def with_trip_counts(before: Module, after: Module) -> Module:
    """The module with the trip counts that its loops have now, where they were stated and follow from constants."""

    def restated(computation: Computation, loop: Instruction) -> Instruction:
        stated = trip_count_of(loop) if role_of(loop) is Role.WHILE else None
        if stated is None:
            return loop
        old, new = (
            loop_trips(module, module.by_name[computation.name], _without_count(loop)) for module in (before, after)
        )
        return loop if new is None or old != stated or old == new else _with_count(loop, new)

    return map_instructions(after, restated)


def _without_count(loop: Instruction) -> Instruction:
    return attrs.evolve(loop, backend_config=None)


def _with_count(loop: Instruction, count: int) -> Instruction:
    return attrs.evolve(loop, backend_config=_COUNT.sub(rf"\g<1>{count}", loop.backend_config or ""))


DEFAULT_BYTES = 2 << 30
_MOST_OPERATIONS = 10**13
"""Minutes of a few cores."""
_STEPS_PER_BIT = 2
_COARSE_STEPS = 4
"""Between bounds of which the best is looked for where the lowest is not enough."""
_MOST_ARRANGEMENTS = 8
"""Of one number of devices that was not asked for."""
_LONGEST = 300
_SMALLEST_BITS = 6
"""Values are not made smaller than this power of two for the sake of memory."""
_MOST_FORECASTS = 4
"""After so many, the bisection goes on without them, should they be wrong."""


def shrink(
    module: Module,
    *,
    max_bytes: int | str | None = None,
    dims: Mapping[int, int] | None = None,
    keep: Iterable[int] = (),
    devices: int | Sequence[int] | None = None,
) -> Shrinkage:
    """The same module with smaller dimensions: the same instructions, loops, collectives and library calls.

    Sizes shrink until a run on all devices takes at most `max_bytes`, inputs included (default 2 GiB; without bound
    where `dims` is given alone), and no more operations than take minutes, where there are such sizes. `dims` says what
    sizes of inputs become (of other arrays, where no input has such a size that can change); sizes in `keep` stay. With
    `devices`, axes of the grid of devices get shorter, so that there are so many, and what they hold together gets
    smaller (then without bound, too, unless `max_bytes` is given); several numbers are the new sizes of all axes.
    Without, there are fewer devices only where the module does not fit otherwise, as many as fit. The result is valid
    HLO, and the same for the same arguments. Raises ResourceError where the module cannot become so small, of which
    `smallest` is what it becomes at its smallest; InputError where sizes cannot become what `dims` says, or the devices
    so few.
    """
    require_module(module)
    wanted, kept = _checked_sizes(dims), _checked_kept(keep)
    fewer = None if devices is None else _checked_devices(devices)
    is_bounded = not wanted and fewer is None
    limit = byte_count("max_bytes", max_bytes) if max_bytes is not None else DEFAULT_BYTES if is_bounded else None
    with unwarned():
        verify(module)
    refused: HloError | None = None
    if fewer is None:
        attempt = _Attempt.of(_Work.of(module), wanted, kept, limit)
        if attempt.work.devices > 1 and not attempt.fits(limit):
            attempt, refused = _with_fewer_devices(module, attempt, wanted, kept, limit)
    else:
        attempts = _attempts(fewer_devices(module, fewer), wanted, kept, limit)
        attempt = first = next(attempts)
        if not first.fits(limit):
            attempt = next((other for other in attempts if other.fits(limit)), first)
    if not attempt.fits(limit):
        with suppress(HloError):
            attempt = min(attempt, attempt.with_ones(limit), key=lambda one: one.excess(limit))
    if limit is None or attempt.candidate.total_bytes <= limit:
        return attempt.work.shrinkage(attempt.candidate)
    raise _too_large(attempt, limit, refused)


@frozen(eq=False)
class _Attempt:
    """A module with what is asked of its sizes, and what it becomes: the largest that fits, else the smallest."""

    work: _Work
    dims: Mapping[int, int]
    keep: Collection[int]
    candidate: _Candidate

    @classmethod
    def of(cls, work: _Work, dims: Mapping[int, int], keep: Collection[int], limit: int | None) -> _Attempt:
        try:
            candidate = work.best(work.demands(dims, keep), limit)
        except InputError:
            raise
        except HloError:
            work = work.with_ones()
            candidate = work.best(work.demands(dims, keep), limit)
        return cls(work, dims, keep, candidate)

    def with_ones(self, limit: int | None) -> _Attempt:
        work = self.work.with_ones()
        return attrs.evolve(self, work=work, candidate=work.best(work.demands(self.dims, self.keep), limit))

    def fits(self, limit: int | None) -> bool:
        return self.candidate.fits(limit)

    def excess(self, limit: int | None) -> float:
        """By how much it is too large; at most 1 where it fits."""
        return max(self.candidate.total_bytes / (limit or 1), self.candidate.operations / _MOST_OPERATIONS)

    def require_kept(self) -> None:
        """InputError where a size that should stay does not, as it is a product of others and the number of devices."""
        relations = self.work.dimensions.relations
        for root, after in self.candidate.draft.sizes.items():
            before = relations.sizes[root]
            if before in self.keep and before != after and root not in relations.to_one:
                raise InputError(f"size {before} cannot stay on {self.work.workload.devices} devices")

    def with_size(self, before: int, after: int) -> int | None:
        """What a run takes where one size becomes another as well; None where it cannot, or that does not help."""
        if before in self.dims or before in self.keep:
            return None
        try:
            demands = self.work.demands({**self.dims, before: after}, self.keep)
            total = self.work.smallest(demands).total_bytes
        except HloError:
            return None
        return total if total < self.candidate.total_bytes else None


def _attempts(
    ways: Iterable[FewerDevices], dims: Mapping[int, int], keep: Collection[int], limit: int | None
) -> Iterator[_Attempt]:
    """What becomes of the module with each possible arrangement of devices; the error of the first if none is."""
    first: HloError | None = None
    is_any = False
    for way in ways:
        try:
            attempt = _Attempt.of(_Work.of(way.module, way), dims, keep, limit)
        except HloError as error:
            first = first or error
            continue
        is_any = True
        yield attempt
    if first is not None and not is_any:
        raise first


def _with_fewer_devices(
    module: Module, attempt: _Attempt, dims: Mapping[int, int], keep: Collection[int], limit: int | None
) -> tuple[_Attempt, HloError | None]:
    """As many devices as fit, by halving their number; else the smallest attempt, and why a number was refused.

    What a run takes is about proportional to the number of devices, or falls faster.
    """
    try:
        arranging = Arranging.of(module)
    except HloError as error:
        return attempt, error
    refused: HloError | None = None
    best, last = attempt, attempt
    counts = halvings(attempt.work.devices)
    while counts:
        most = last.work.workload.devices / last.excess(limit)
        likely = [number for number, count in enumerate(counts) if count <= most]
        number = likely[0] if likely else len(counts) // 2
        try:
            tried = next(_attempts(islice(arranging.fewer(counts[number]), _MOST_ARRANGEMENTS), dims, keep, limit))
            tried.require_kept()
        except HloError as error:
            refused = refused or error
            del counts[number]
            continue
        if not tried.fits(limit):
            last, counts = tried, counts[number + 1 :]
        elif likely:
            return tried, None
        else:
            counts = counts[:number]
        best = min((best, tried), key=lambda one: (not one.fits(limit), not one.fits(limit) and one.excess(limit)))
    return best, refused


def _too_large(attempt: _Attempt, limit: int | None, refused: HloError | None) -> ResourceError:
    """What to raise where nothing fits, with the smallest module that there is."""
    work, candidate, draft = attempt.work, attempt.candidate, attempt.candidate.draft
    holding = holding_sizes(work.module, work.dimensions, work.groups, draft.sizes, attempt.with_size)
    devices = "" if work.fewer is None else f", on {work.workload.devices} of {work.devices} devices"
    lines = [f"  {size}" for size in holding]
    lines += [] if refused is None else [f"  the number of devices: {truncated(first_line(refused.message), _LONGEST)}"]
    error = ResourceError(
        f"module {work.module.name} cannot shrink to {limit} bytes: with its smallest sizes{devices}, its inputs take "
        f"{draft.argument_bytes} bytes, a run {candidate.peak_bytes or 0} beyond them and as long "
        f"as {candidate.operations} operations." + (" What holds it up:\n" + "\n".join(lines) if lines else "")
    )
    error.smallest = work.shrinkage(candidate, holding)
    return error


def _checked_sizes(dims: Mapping[int, int] | None) -> dict[int, int]:
    if dims is None:
        return {}
    if not isinstance(dims, Mapping):
        raise wrong("dims", "a dict of sizes, such as {8192: 64}", dims)
    for before, after in dims.items():
        require_integer(f"a size in {argument('dims')}", before, 1)
        require_integer(f"what {argument('dims')} says of {before}", after, 1)
        if after > before:
            larger = argument("dims", f"{before}={after}", f"dims={{{before}: {after}}}")
            raise InputError(f"{larger} makes a size larger; sizes can only shrink")
    return dict(dims)


def _checked_kept(keep: Iterable[int]) -> set[int]:
    sizes = listed("keep", keep, "sizes")
    for size in sizes:
        require_integer(f"a size in {argument('keep')}", size, 1)
    return set(sizes)


def _checked_devices(devices: int | Sequence[int]) -> int | tuple[int, ...]:
    if isinstance(devices, int | np.integer):
        require_integer("devices", devices, 1)
        return int(devices)
    sizes = listed("devices", devices, "a number, or sizes of axes")
    for size in sizes:
        require_integer(f"the size of an axis in {argument('devices')}", size, 1)
    return tuple(map(int, sizes))


@frozen(eq=False)
class _Draft:
    """Sizes, and what they say of a run before there is a plan."""

    sizing: Sizing
    sizes: Mapping[int, int]
    argument_bytes: int
    live_bytes: int

    def taken(self) -> int:
        """What is alive at once, with inputs."""
        return self.argument_bytes + self.live_bytes

    def may_fit(self, limit: int | None) -> bool:
        """Whether inputs alone are within the limit: a run, its plan and its work say the rest."""
        return limit is None or self.argument_bytes <= limit

    def is_likely(self, limit: int, share: float) -> bool:
        """Whether it fits if a run takes this share of what is alive at once."""
        return self.argument_bytes + share * self.live_bytes <= limit


@frozen(eq=False)
class _Candidate:
    draft: _Draft
    module: Module
    constants: list[ConstantChange]
    peak_bytes: int | None
    flops: int
    operations: int
    """As many as all devices' work takes as long as."""

    @property
    def total_bytes(self) -> int:
        return self.draft.argument_bytes + (self.peak_bytes or 0)

    def fits(self, limit: int | None) -> bool:
        return limit is None or (self.total_bytes <= limit and self.operations <= _MOST_OPERATIONS)


def _top(solver: Solver) -> int:
    """The bound under which every value may stay as it is, in steps."""
    return max(ceil(log2(max(solver.largest.values(), default=1))), _SMALLEST_BITS + 1) * _STEPS_PER_BIT


@frozen(eq=False, slots=False)
class _Work:
    """A module, and everything that is known of its dimensions."""

    module: Module
    dimensions: Dimensions
    groups: Groups
    sums: Sums
    workload: Workload
    forecast: Forecast
    devices: int
    """As many as there were."""
    fewer: FewerDevices | None = None

    @classmethod
    def of(cls, module: Module, fewer: FewerDevices | None = None) -> _Work:
        devices = topology_of(module, None, None).count
        dimensions = dimensions_of(module, devices, None if fewer is None else fewer.axes)
        tie_positions(dimensions.relations)
        groups = groups_of(dimensions.relations, dimensions.of_inputs(module))
        left = devices if fewer is None else fewer.count
        sums, workload = Sums.of(module, dimensions), Workload(module, dimensions, groups, left)
        return cls(module, dimensions, groups, sums, workload, Forecast.of(module, dimensions), devices, fewer)

    def with_ones(self) -> _Work:
        """The same where sizes may become 1, as they do only where nothing fits else."""
        groups = self.groups.with_ones()
        return attrs.evolve(self, groups=groups, workload=attrs.evolve(self.workload, groups=groups))

    def demands(self, dims: Mapping[int, int], keep: Collection[int]) -> list[Demand]:
        """What is asked of the groups; InputError where none of a size's can become what is asked for."""
        units_by_group = self._axis_demands()
        relations = self.dimensions.relations
        for before, after in dims.items():
            roots = self._roots_of(before)
            if not roots:
                raise InputError(f"size {before} cannot become {after}: {self._why_kept(before)}")
            for root in roots:
                group = self.groups.groups[self.groups.of_root[root]]
                unit = group.unit_for(root, before, after)
                if units_by_group.setdefault(group.number, unit) != unit:
                    raise InputError(
                        f"size {before} cannot become {after}: sizes in one proportion are asked for others"
                    )
        if both := sorted({*dims} & {*keep}):
            raise InputError(f"size {both[0]} cannot both stay and become {dims[both[0]]}")
        if unknown := sorted({*keep} - {*relations.sizes}):
            raise InputError(f"size {unknown[0]} cannot stay: the module has no dimension of that size")
        for group in self.groups.groups:
            is_axis = self.fewer is not None and relations.to_one & group.bases.keys()
            if not is_axis and any(relations.sizes[root] in keep for root in group.bases.keys() & self._of_arrays):
                if units_by_group.get(group.number, group.unit) != group.unit:
                    raise InputError(
                        f"sizes {sorted(keep)} cannot stay: sizes in proportion to them are asked to shrink"
                    )
                units_by_group[group.number] = group.unit
        return [Demand(group, unit) for group, unit in units_by_group.items()]

    @cached_property
    def _of_arrays(self) -> set[int]:
        """The roots of dimensions that arrays have; others are sizes of windows alone."""
        relations = self.dimensions.relations
        return {relations.root(number) for number in range(len(relations.sizes)) if number not in relations.windows}

    def _axis_demands(self) -> dict[int, int]:
        """What is asked of the axes of devices; InputError where they have to stay."""
        units_by_group: dict[int, int] = {}
        if self.fewer is None:
            return units_by_group
        axes, relations = self.fewer.axes, self.dimensions.relations
        for block, dimension in axes.dimensions.items():
            before, after = axes.grid.size(block), axes.shorter.after.size(block)
            root = relations.root(dimension)
            if len(block) > 1 or before == 1:
                continue
            if root in self.groups.of_root:
                group = self.groups.groups[self.groups.of_root[root]]
                unit = group.unit_for(root, before, after)
                if units_by_group.setdefault(group.number, unit) != unit:
                    raise InputError(f"axes of {before} devices are tied to others, and cannot become {after}")
            elif before != after:
                reason, (computation, name) = self.groups.kept.get(root, ("it follows from others", ("", "")))
                raise InputError(
                    f"an axis of {before} devices, {axes.grid.stride(block[0])} apart, cannot become {after}, as a "
                    f"size that depends on it stays: {reason} (%{name} in {computation})"
                )
        return units_by_group

    def _roots_of(self, size: int) -> list[int]:
        """The roots of a size that can change: those of inputs, else all; others may have it by chance."""
        relations = self.dimensions.relations
        of_groups = [root for group in self.groups.groups for root in group.bases if root in self._of_arrays]
        roots = [root for root in of_groups if relations.sizes[root] == size]
        inputs = set(map(relations.root, self.dimensions.of_inputs(self.module)))
        return [root for root in roots if root in inputs] or roots

    def _why_kept(self, size: int) -> str:
        kept = [
            kept_size for kept_size in kept_sizes(self.module, self.dimensions, self.groups) if kept_size.size == size
        ]
        root_sizes = self.dimensions.relations.sizes
        for kind, followed in (("product", self.groups.merged), ("sum", self.groups.summed)):
            for root, others in followed.items():
                if root_sizes[root] == size:
                    words = " and ".join(str(root_sizes[other]) for other in others)
                    return f"it is the {kind} of {words}, and follows them"
        if not kept:
            sizes = sorted({*root_sizes}, reverse=True)
            return f"the module has no dimension of that size; there are {listing(sizes, 12)}"
        return f"{kept[0].reason} (%{kept[0].instruction} in {kept[0].computation})"

    def best(self, demands: list[Demand], limit: int | None) -> _Candidate:
        """The largest candidate that fits; else the smallest."""
        solver = Solver(self.groups, self.workload.largest(), demands)
        draft = self._draft(solver, inf)
        if draft.may_fit(limit) and (candidate := self._candidate(draft)).fits(limit):
            return candidate
        assert limit is not None
        return self._largest_that_fits(solver, limit)

    def smallest(self, demands: list[Demand]) -> _Candidate:
        """The candidate with the smallest values."""
        solver = Solver(self.groups, self.workload.largest(), demands)
        return self._candidate(min(self._coarse(solver).values(), key=_Draft.taken))

    def _coarse(self, solver: Solver) -> dict[int, _Draft]:
        """By bounds far from one another, what is drafted: a lower bound makes more values small, not all together."""
        steps = range(_SMALLEST_BITS * _STEPS_PER_BIT, _top(solver), _COARSE_STEPS)
        return {step: self._draft(solver, step / _STEPS_PER_BIT) for step in steps}

    def shrinkage(self, candidate: _Candidate, holding: Sequence[HoldingSize] = ()) -> Shrinkage:
        """How a candidate differs from the module."""
        draft = candidate.draft
        module, operands = fitted(self.module, candidate.module)
        return Shrinkage(
            module=module,
            changes=size_changes(self.module, self.dimensions, self.groups, draft.sizes),
            kept=kept_sizes(self.module, self.dimensions, self.groups),
            holding=tuple(holding),
            constants=tuple(candidate.constants),
            fitted=operands,
            is_proven=draft.sizing.is_proven,
            devices=self.workload.devices,
            devices_before=self.devices,
            axes=() if self.fewer is None else self.fewer.changes,
            argument_bytes_before=self.workload.argument_bytes({}) // self.workload.devices * self.devices,
            argument_bytes=draft.argument_bytes,
            peak_bytes=candidate.peak_bytes,
            flops_before=Work.of(self.module).flops * self.devices,
            flops=candidate.flops,
        )

    def _solved(self, solver: Solver, bound: float) -> Sizing:
        sizing = solver.solve(bound)
        if sizing is None:
            self._require_free_shares()
            raise HloError(
                f"no sizes satisfy what {argument('dims')} and {argument('keep')} ask for: products of sizes "
                "could not stay equal"
            )
        return sizing

    def _require_free_shares(self) -> None:
        """InputError where what devices have together stays, although there are fewer."""
        if self.fewer is None:
            return
        root, numbers = self.dimensions.relations.root, self.groups.numbers
        axes, sizes = self.fewer.axes, self.dimensions.relations.sizes
        changed = {root(dimension) for block, dimension in axes.dimensions.items() if axes.shorter.changes(block)}
        for product in self.dimensions.relations.products:
            parts = set(map(root, product.right))
            if len(product.left) != 1 or not parts & changed or numbers(root(product.left[0])):
                continue
            whole = root(product.left[0])
            reason, (computation, name) = self.groups.kept.get(whole, ("it follows from others", product.where))
            raise InputError(
                f"{axes.grid.count} devices cannot become {self.fewer.count}: size {sizes[whole]} depends on their "
                f"number, and stays: {reason} (%{name} in {computation})"
            )

    def _largest_that_fits(self, solver: Solver, limit: int) -> _Candidate:
        """By bisection of the bound on the size of a value, which begins where forecasts say that a run just fits.

        The smallest candidate where none does.
        """
        low, high = _SMALLEST_BITS * _STEPS_PER_BIT, _top(solver)
        drafts = lru_cache(maxsize=None)(lambda step: self._draft(solver, step / _STEPS_PER_BIT))
        best: _Candidate | None = None
        too_large: list[Sequence[int]] = []
        tries = 0
        share = 1.0  # of what arrays take that are alive at once, since fused ones are not
        while low + 1 < high:
            step = (low + high) // 2
            if tries < _MOST_FORECASTS:
                step = _likely_step(drafts, low, high, limit, share)
            draft = drafts(step)
            units = draft.sizing.units
            if best is not None and best.draft.sizing.units == units:
                low, best = step, attrs.evolve(best, draft=draft)
                continue
            if units in too_large or not draft.may_fit(limit):
                high = step
                continue
            candidate, tries = self._candidate(draft), tries + 1
            share = (candidate.peak_bytes or 0) / max(1, draft.live_bytes)
            if candidate.fits(limit):
                low, best = step, candidate
            else:
                high = step
                too_large.append(units)
        if best is None:
            best = self._candidate(drafts(low))
            if not best.fits(limit):
                smallest = self._candidate(min(self._coarse(solver).values(), key=_Draft.taken))
                best = min(best, smallest, key=lambda candidate: candidate.total_bytes)
        return best

    def _draft(self, solver: Solver, bound: float) -> _Draft:
        sizing = self._solved(solver, bound)
        sizes, workload = sizing.sizes(self.groups, self.dimensions.relations), self.workload
        live_bytes = self.forecast.live_bytes(sizes) * workload.devices
        return _Draft(sizing, sizes, workload.argument_bytes(sizes), live_bytes)

    def _candidate(self, draft: _Draft) -> _Candidate:
        sizes = draft.sizes
        settled = () if self.fewer is None else self.fewer.axes.constants.replaced
        literals, constants = constants_for(self.module, self.dimensions, sizes, settled)
        factors, more = factors_for(self.module, self.sums, sizes)
        literals, constants = agreeing(self.module, *_merged((literals, constants), (factors, more)))
        if self.fewer is not None:
            own, more = self.fewer.literals(self.dimensions, sizes)
            literals, constants = literals | own, [*constants, *more]
        module = with_trip_counts(self.module, rewritten(self.module, self.dimensions, sizes, literals))
        if self.fewer is not None:
            module = self.fewer.applied(module)
        _require_valid(module)
        estimate = run_estimate(module, verify=False)
        devices, work = self.workload.devices, Work.of(module)
        peak_bytes = None if estimate is None else estimate.bytes * devices
        return _Candidate(draft, module, constants, peak_bytes, work.flops * devices, work.operations * devices)


def _likely_step(drafts: Callable[[int], _Draft], low: int, high: int, limit: int, share: float) -> int:
    """The last step between two others of which it is likely that a run fits; the first if it is of none."""
    first = low + 1
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if drafts(middle).is_likely(limit, share) else (low, middle)
    return max(low, first)


def _merged(
    first: tuple[dict[Place, Literal], list[ConstantChange]], second: tuple[dict[Place, Literal], list[ConstantChange]]
) -> tuple[dict[Place, Literal], list[ConstantChange]]:
    """Constants of two findings; what the first changes or the second does not name is as the first says."""
    named = {(change.computation, change.instruction) for change in second[1]} - first[0].keys()
    changes = [change for change in first[1] if (change.computation, change.instruction) not in named]
    return second[0] | first[0], changes + [
        change for change in second[1] if (change.computation, change.instruction) in named
    ]


def _require_valid(module: Module) -> None:
    """HloError where a module that was rewritten is not well-formed, which a wrong or missing relation may cause."""
    try:
        with unwarned():
            verify(module)
    except VerificationError as error:
        raise HloError(
            f"a smaller {module.name} would not be valid, because hloexec does not relate its dimensions as it should; "
            f"keeping the sizes that it names may help ({argument('keep')}): {error}"
        ) from error
