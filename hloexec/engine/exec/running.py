"""`run` and `run_devices`: running a module on inputs with options, and its plan.

`plan_of`: the plan of a module under options. Plans are cached for the lifetime of their module, so a second run of the
same module object starts at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack

import attrs
import numpy as np

from hloexec.core.arguments import named_computation, require_module, wrong
from hloexec.core.ir import Module
from hloexec.core.places import spell_name, split_name
from hloexec.core.process import remembered
from hloexec.core.structs import define
from hloexec.core.values import Inputs, Value
from hloexec.core.wording import suggestion
from hloexec.engine.devices.topology import ONE_DEVICE, Topology, topology_of
from hloexec.engine.devices.varying import Varying
from hloexec.engine.exec.arguments import collected, device_arguments, device_results
from hloexec.engine.exec.host import Host, Sink, Source, connect
from hloexec.engine.exec.limits import with_place
from hloexec.engine.exec.lockstep.communication import require_devices
from hloexec.engine.exec.lockstep.transport import LOCAL, Transport
from hloexec.engine.exec.machine import Machine
from hloexec.engine.exec.observers import UNOBSERVED, Observer, attach
from hloexec.engine.exec.statistics import Statistics
from hloexec.engine.options import DEFAULTS, Options
from hloexec.engine.plan.memory import draws_alike, entry_peak_bytes, require_memory, spread_of
from hloexec.engine.plan.optimization_errors import is_of_signal_handler, warn_of_failure
from hloexec.engine.plan.planner import build
from hloexec.engine.plan.steps import PartError, Plan
from hloexec.errors import HloError, InputError, ResourceError, UnsupportedError
from hloexec.ops import resources
from hloexec.ops.interruption import interrupted_by
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import CUSTOM_CALLS, find_custom_call
from hloexec.ops.resources import single_threaded_blas

if TYPE_CHECKING:
    from hloexec.engine.exec.limits import Limits
    from hloexec.engine.exec.statistics import Statistics


class RunOptions(TypedDict, total=False):
    """Options of `run_devices`, as keyword arguments; `help(hloexec.run)` explains them."""

    replicas: int | None
    partitions: int | None
    computation: str | None
    numerics: str | NumericsPolicy
    seed: int
    elided: str | Mapping[str, Any]
    unknown: str
    memory_limit: int | str | None
    max_iterations: int | None
    timeout: float | None
    verify: bool
    planner: bool
    check: bool
    statistics: Statistics | None
    infeed: Sequence[Source] | None
    outfeed: Sequence[Sink] | None
    host_transfers: Sequence[Mapping[int, Source | Sink]] | None


def resolve_options(function: str, settings: Mapping[str, Any]) -> Options:
    """The options that a public function is given.

    TypeError, as Python has it for functions that list their keywords, where there is no option of a name; InputError
    where a value is wrong.
    """
    for name in settings:
        if name not in RunOptions.__annotations__:
            hint = suggestion(name, RunOptions.__annotations__) or "; help(hloexec.run) lists the options of runs"
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")
    return Options(**settings) if settings else DEFAULTS


@define(eq=False)
class _Known:
    """What is known of a module."""

    is_verified: bool = False
    plans: dict[Any, Plan] = attrs.field(factory=dict)
    """By what of the options they depend on."""


_NEAR = 0.8
"""How similar names must be for one to be suggested for the other: `dot.3` and `dot.4`, or one letter of seven."""


@remembered
def _known_of(module: Module) -> _Known:
    return _Known()


def plan_of(module: Module, options: Options = DEFAULTS, **more: Any) -> Plan:
    """The plan of a module or of one of its computations; made once per module object and set of options.

    `more` are options that change or add to these. `planner=False` leaves out all optimizations, `last_pass` those
    behind the one that it names.
    """
    if more:
        options = attrs.evolve(options, **more)
    if options.numerics.rounding_seed is not None:
        options = attrs.evolve(options, numerics=options.numerics.for_any_seed)
    if not isinstance(module, Module):
        require_module(module)
    known, key = _known_of(module), options.plan_key
    plan = known.plans.get(key)
    if plan is not None and _is_current(plan) and (known.is_verified or not options.verify):
        return plan
    name, policy = options.computation, options.numerics
    entry = module.entry if name is None else named_computation(module, name)
    if policy.overrides:
        require_policy_names(module, policy)
    if options.verify and not known.is_verified:
        # Imported late: a verified module never needs it again.
        from hloexec.language.verifier import verify

        verify(module)
        known.is_verified = True
    with explained_unless_verified(module, options.verify):
        plan = build(module, entry, options)
    if key is not None:
        known.plans[key] = plan
    return plan


def explained_unless_verified(module: Module, verify: bool) -> AbstractContextManager[None]:
    """Work on a module; where that fails and `verify=False`, VerificationError says what is wrong with the module."""
    if verify:
        return nullcontext()
    from hloexec.language.verifier import explained

    return explained(module)


def require_policy_names(module: Module, policy: NumericsPolicy) -> None:
    """InputError where a policy is for an instruction that is not there."""
    homes: dict[str, list[str]] = {}
    for computation in module:
        for instruction in computation:
            homes.setdefault(instruction.name, []).append(computation.name)
    for name, _ in policy.overrides:
        home, own = split_name(name)
        if name not in homes and home not in homes.get(own, []):
            from difflib import get_close_matches

            # The names of computations count for nothing here: those that share a long one are not near.
            close = next(iter(get_close_matches(own, homes, 1, _NEAR)), None)
            if close is not None and home:
                close = spell_name(home if home in homes[close] else homes[close][0], close)
            hint = "" if close is None else f"; did you mean {close!r}?"
            raise InputError(f"numerics has a policy for {name!r}, but {module.name} has no such instruction{hint}")


def _is_current(plan: Plan) -> bool:
    """Whether the library calls that a plan was made of are still the ones there are."""
    calls = plan.library_calls
    return not calls or all(find_custom_call(target) is call for target, call in calls.items())


_MOST_TOGETHER = 1 << 22
"""What a run may take at the peak, in bytes, for it to take place with several seeds side by side."""


def run(
    module: Module,
    *inputs: object,
    computation: str | None = None,
    numerics: str | NumericsPolicy = "reference",
    seed: int = 0,
    elided: str | Mapping[str, Any] = "zeros",
    unknown: str = "error",
    memory_limit: int | str | None = None,
    max_iterations: int | None = None,
    timeout: float | None = None,
    verify: bool = True,
    planner: bool = True,
    check: bool = False,
    observers: Sequence[Observer] = (),
    statistics: Statistics | None = None,
    infeed: Source | None = None,
    outfeed: Sink | None = None,
    host_transfers: Mapping[int, Source | Sink] | None = None,
) -> Value:
    """Run a module on one device and return its result: an array, or a (nested) tuple of arrays.

    `inputs` are one value per parameter, with the parameter's element type and shape. Integers may be of any type if
    the parameter's holds all of them; scalars may be Python numbers. Instead, a list of all values, a mapping from
    parameter names, or the arguments of a function of JAX (nested dicts, lists and tuples of arrays) may be given (see
    `hloexec.Inputs`). Inputs are not modified, and the result shares no memory with them. A module whose devices
    exchange values needs `run_devices`.

    What is computed:

    - `computation` is the name of the computation to run instead of the entry.
    - `numerics` is a `NumericsPolicy` or the name of one, which says how results are rounded: `reference`, `exact`,
      `ftz`, `xla-cpu`, `tf32`, `tf32-cut`, `tf32x3`, `bf16`, `bf16x3`, `bf16x6`, `excess`, `narrow-sums`,
      `fast-functions` or `random-rounding:SEED` (docs/precision.md). `tf32+ftz` means both, and
      `reference,dot.3=tf32`, or the mapping `{"": "reference", "dot.3": "tf32"}`, gives instructions policies of their
      own, by their names or as `computation/instruction`.
    - `seed` seeds the random numbers that the module generates itself (rng, rng-get-and-update-state).
    - `elided` gives the values of constants that the text elides: `zeros`, `random`, `error`, or a mapping from their
      names to arrays.
    - `unknown` gives the results of unknown custom calls: `error`, `zeros` or `random`. With `error` a module that has
      such a call is refused; if only branches of conditionals have it, a run that takes one of them fails.

    How it runs:

    - `memory_limit` is the most memory that the run may allocate beyond its inputs: a number of bytes, or a text such
      as `"500M"` or `"8G"`; by default 80 % of the free memory.
    - `max_iterations` limits the iterations of each loop, and `timeout` the seconds that the run may take. Beyond them,
      the run ends with a ResourceError that names the loop, its iteration and the values that its condition read. A
      single kernel is not interrupted. With limits, nested loops run more slowly.
    - `verify=False` runs a module without verifying it; it may fail later.
    - `planner=False` runs every instruction separately, with the same bits.
    - `check` verifies the type and shape of every result.

    Observation:

    - `observers` are objects with a method `on_instruction(event)`, which is called with an `Event` for each
      instruction, or `on_progress(progress)`, which is called with a `Progress` from time to time.
    - `statistics` is filled with the cost of the run.

    Communication with the host:

    - `infeed` gives the values for infeeds, in order: an iterable, or a function that returns the next value; each
      value must have the shape that its infeed declares, without the token.
    - `outfeed` is a list to which the values of outfeeds are appended, or a function that is called with them.
    - `host_transfers` maps the channels of sends and recvs with is_host_transfer to such objects; the data of a recv
      arrive at its recv-done. Values that are left over cause an HloWarning.

    Raises VerificationError, UnsupportedError (listing everything that is missing), InputError and ResourceError before
    the run starts, and EvaluationError if an instruction fails; warns HloWarning about values that it substitutes.
    """
    if not isinstance(module, Module):
        require_module(module)
    host: Sequence[Any] = ()
    if infeed is not None or outfeed is not None or host_transfers is not None:
        host = [None if given is None else [given] for given in (infeed, outfeed, host_transfers)]
    options = Options(
        computation,
        numerics,
        seed,
        elided,
        unknown,
        memory_limit,
        max_iterations,
        timeout,
        verify,
        planner,
        check,
        statistics,
        *host,
    )
    values = collected(module.entry if computation is None else named_computation(module, computation), inputs)
    (output,) = _outputs(module, values, ONE_DEVICE, observers, options)
    return output


def run_devices(
    module: Module,
    inputs: Inputs | None,
    *,
    observers: Sequence[Observer] = (),
    comm: Any = None,
    **options: Unpack[RunOptions],
) -> list[Value]:
    """Run a module on all of its devices in lockstep; returns one result per device.

    There are `replicas` × `partitions` devices: as many as the module's header says or, if it does not say, as its
    collectives mention. `inputs` is a list with the inputs of each device (number replica · partitions + partition), or
    the inputs of one device, which are used for all (see `hloexec.Inputs`); None generates them from `seed`, as
    `random_inputs` does. Equal values are computed once: devices with the same input objects share all values until
    something (partition-id, a collective) makes them differ, and devices whose results agree receive the same arrays.

    `infeed`, `outfeed` and `host_transfers` have one entry per device; `observers` and the other `options` are those of
    `run`, with the same defaults (`hloexec.RunOptions`). Reductions across devices add in the order of their group.

    With `comm`, a communicator of mpi4py, all of its ranks call this function alike, and each of them holds a block of
    neighbouring devices, those that `hloexec.devices_of_rank` gives. It may give the inputs of these alone, and gets
    their results, with the bits of one process. `observers` see these devices alone.

    Raises what `run` raises, InputError if a collective names devices that do not exist, and DeadlockError if devices
    wait for one another forever: at a collective that some never reach, or reach with other shapes or on another
    channel; at a recv without a send; or at a send that is never received.
    """
    require_module(module)
    return run_with(module, inputs, resolve_options("run_devices", options), observers, comm)


def run_with(
    module: Module,
    inputs: Inputs | None,
    options: Options = DEFAULTS,
    observers: Sequence[Observer] = (),
    comm: Any = None,
) -> list[Value]:
    """`run_devices` with options that are checked and resolved."""
    return _outputs(module, inputs, topology_of(module, options.replicas, options.partitions), observers, options, comm)


def repeated_run(
    module: Module, options: Options = DEFAULTS, plan: Plan | None = None
) -> Callable[[Inputs], list[Value]]:
    """`run_devices` of a module with these options, again and again on other inputs: what does not depend on them is
    done once. The module is checked, and library calls are looked up, when it first runs; not so where a plan of it is
    given."""
    run = Run(module, topology_of(module, options.replicas, options.partitions), (), options)
    run.plan = plan

    def outputs(inputs: Inputs) -> list[Value]:
        with explained_unless_verified(module, options.verify):
            return run.outputs(inputs)

    return outputs


def run_seeds(module: Module, inputs: Inputs, seeds: Sequence[int], options: Options) -> list[Value]:
    """The results of runs that round at random with these seeds, whatever that of `numerics` is, side by side: those of
    small arrays on one device, which are found sooner so. There are none of others, and where a run fails."""
    from hloexec.engine.exec.lockstep.seeds import SeedMachine

    run = Run(module, topology_of(module, options.replicas, options.partitions), (), options)
    try:
        plan = plan_of(module, options)
        is_alone = run.topology.count == 1 and not (plan.communication or plan.host_transfers or plan.has_draws)
        if not is_alone or entry_peak_bytes(plan) > _MOST_TOGETHER or run.limits is not None:
            return []
        arguments = device_arguments(plan.computation, inputs, 1)
        require_memory(plan, options.memory_limit)
        with np.errstate(all="ignore"), single_threaded_blas():
            results = SeedMachine(seeds).run(plan, arguments)
            return device_results(plan, results, len(seeds), always_copy=False)
    except HloError:
        return []


def _outputs(
    module: Module,
    inputs: Inputs | None,
    topology: Topology,
    observers: Sequence[Observer],
    options: Options,
    comm: Any = None,
) -> list[Value]:
    with explained_unless_verified(module, options.verify):
        run = Run(module, topology, observers, options, comm)
        values = _random_inputs(module, options) if inputs is None else inputs
        if comm is None and _drivers and topology.count > 1:
            return _drivers[-1].outputs(run, values)
        return run.outputs(values)


class Driver(Protocol):
    """What has other processes take part in runs on several devices."""

    def outputs(self, run: Run, inputs: Inputs) -> list[Value]:
        """The results of a run on all devices."""


_drivers: list[Driver] = []


@contextmanager
def driven(driver: Driver) -> Iterator[None]:
    """Runs on several devices take place as a driver has it within."""
    _drivers.append(driver)
    try:
        yield
    finally:
        _drivers.pop()


class Run:
    """Runs of a module with options, as the parts of a run take them."""

    def __init__(
        self,
        module: Module,
        topology: Topology,
        observers: Sequence[Observer],
        options: Options,
        comm: Any = None,
    ) -> None:
        self.module = module
        self.topology = topology
        self.comm = comm
        self.options = options
        if options.statistics is not None:
            _require_statistics(options.statistics)
        self.limits = _limits(options)
        self.attached = UNOBSERVED if type(observers) is tuple and not observers else attach(observers)
        self.plan: Plan | None = None
        """That of all runs, once there is one."""
        self.machine: Callable[..., Machine] | None = None
        """What makes the machine of a run that is watched, in the place of the usual one."""
        self.parties: Sequence[Sequence[Any]] = ()
        """The sources of infeeds, the sinks of outfeeds and the ends of host transfers, each by device."""
        parties = options.infeed, options.outfeed, options.host_transfers
        if any(party is not None for party in parties):
            names = "infeed", "outfeed", "host_transfers"
            self.parties = [_per_device(name, party, topology) for name, party in zip(names, parties, strict=True)]
        if self.attached.controls:
            # What an optimized plan computes early, or all at once, could not be replaced.
            self.options = attrs.evolve(options, planner=False)
            self.attached.may_replace = options.numerics.rounds_every_value

    def outputs(self, inputs: Inputs) -> list[Value]:
        """The result of each device; computed again without optimizations where a fault in them ended the run."""
        attached = self.attached
        try:
            if self.plan is None:
                watched = {"is_observed": attached.see_instructions, "is_controlled": attached.may_replace}
                self.plan = plan_of(self.module, self.options, **(watched if attached.see_instructions else {}))
            return self._outputs(self.plan, inputs)
        except Exception as error:
            fault = _fault(error)
            if fault is None or not self.options.planner or attached.see_instructions:
                raise
            plain = plan_of(self.module, self.options, planner=False)
            if _has_effects(plain):
                raise
            outputs = self._outputs(plain, inputs)
            warn_of_failure(f"running {self.module.name} as it was planned", fault)
            return outputs

    def _outputs(self, plan: Plan, inputs: Inputs) -> list[Value]:
        """The results of one run of a plan."""
        if self.comm is None:
            return self._results(plan, self._arguments(plan, inputs, LOCAL), LOCAL)
        if not hasattr(self.comm, "Iallreduce"):
            raise wrong("comm", "a communicator of mpi4py, such as MPI.COMM_WORLD", self.comm)
        # Imported late: most runs are of one process.
        from hloexec.engine.exec.lockstep.gathering import facts_of
        from hloexec.engine.exec.lockstep.ranks import over_ranks

        facts = facts_of(self.module, self.topology, self.options)
        prepare = partial(self._arguments, plan, inputs)
        ranks = over_ranks(self.comm, self.topology.count, facts, prepare, _fault_or_none)
        # The other ranks are told what is wrong with the module.
        with ranks as (transport, arguments), explained_unless_verified(self.module, self.options.verify):
            return self._results(plan, arguments, transport)

    def _arguments(self, plan: Plan, inputs: Inputs, transport: Transport) -> list[Any]:
        """The leaves of the arguments of this process's devices, for which there is memory."""
        count = self.topology.count
        if plan.communication:
            require_devices(plan, self.topology)
        own = None if transport is LOCAL else transport.devices(count)
        if own is not None and plan.has_draws and not draws_alike(plan, self.topology):
            raise UnsupportedError(
                f"{plan.computation.name} draws random numbers (rng) of a generator that all devices share, in an "
                "order that depends on what each of them does; run it in one process, without MPI"
            )
        arguments = device_arguments(plan.computation, inputs, count, own)
        spread = None
        if count > 1 and (own is None or len(own)):
            classes = [value.classes if type(value) is Varying else None for value in arguments]
            spread = spread_of(plan, classes, self.topology, own)
        require_memory(plan, self.options.memory_limit, spread, transport.sharing)
        return arguments

    def _results(self, plan: Plan, arguments: list[Any], transport: Transport) -> list[Value]:
        """The results of this process's devices."""
        run = self._runner(plan, transport)
        seeds = self._seeded(plan) if plan.has_draws or plan.rounds_at_random else nullcontext()
        memory = nullcontext() if entry_peak_bytes(plan) < resources.LEAST_BYTES else _memory_of(plan)
        limits = nullcontext() if self.limits is None else interrupted_by(partial(self.limits.require_time, ()))
        count = len(transport.devices(self.topology.count))
        with np.errstate(all="ignore"), seeds, memory, single_threaded_blas(), limits:
            results = run(plan, arguments)
            if not count:
                return []
            try:
                return device_results(plan, results, count, always_copy=self.attached.see_instructions)
            except MemoryError as error:
                raise ResourceError(f"the result of {plan.computation.name} does not fit into memory") from error

    @contextmanager
    def _seeded(self, plan: Plan) -> Iterator[None]:
        """A context in which numbers are drawn, and results rounded at random, by the run's seeds."""
        with ExitStack() as seeds:
            if plan.has_draws:
                from hloexec.ops import random

                seeds.enter_context(random.seeded(self.options.seed))
            rounding_seed = self.options.numerics.rounding_seed
            if rounding_seed is not None:
                from hloexec.ops.policies import chance

                seeds.enter_context(chance.seeded(rounding_seed))
            yield

    def _runner(self, plan: Plan, transport: Transport) -> Callable[[Plan, list[Any]], list[Any]]:
        """The plain interpreter, where it will do; else a machine that is connected to the host, and one that watches
        its steps where anything asks for that."""
        topology, attached, options = self.topology, self.attached, self.options
        hosts: list[Host] = []
        if plan.host_transfers or any(party is not None for peers in self.parties for party in peers):
            parties = self.parties or [[None] * topology.count] * 3
            hosts = [connect(plan, *peers) for peers in zip(*parties, strict=True)]
        is_watched = options.check or options.statistics is not None or self.limits is not None
        if not is_watched and not attached.see_instructions and not attached.see_progress:
            if plan.is_plain and topology.count == 1 and not hosts and not plan.communication and transport is LOCAL:
                from hloexec.engine.interpreter import interpret

                return partial(interpret, placed=with_place)
            return Machine(topology, hosts, transport).run
        from hloexec.engine.exec.watching import WatchedMachine

        return (self.machine or WatchedMachine)(
            topology,
            attached,
            check=options.check,
            statistics=options.statistics,
            hosts=hosts,
            limits=self.limits,
            transport=transport,
        ).run


def _require_statistics(argument: object) -> None:
    from hloexec.engine.exec.statistics import Statistics

    if not isinstance(argument, Statistics):
        raise wrong("statistics", "a Statistics object, which the run fills in", argument)


def _limits(options: Options) -> Limits | None:
    if options.max_iterations is None and options.timeout is None:
        return None
    from hloexec.engine.exec.limits import Limits

    return Limits(options.max_iterations, options.timeout)


def _random_inputs(module: Module, options: Options) -> Inputs:
    from hloexec.engine.inputs import random_inputs

    return [random_inputs(module, options.seed, computation=options.computation, verify=options.verify)]


def _memory_of(plan: Plan) -> AbstractContextManager[None]:
    """A context in which kernels make large arrays in memory that the plan's runs share."""
    if plan.arenas is None:
        plan.arenas = resources.Arenas()
        # Imported late: small programs never need it.
        from hloexec.engine.exec.placement import place_arrays

        try:
            place_arrays(plan)
        except Exception as error:
            warn_of_failure(f"the placement of the arrays of {plan.computation.name}", error)
    return plan.arenas.lent(entry_peak_bytes(plan))


def _fault(error: BaseException) -> BaseException | None:
    """The unexpected exception behind an error; None if there is none, or memory ran out. What a signal handler raised
    is raised as it is."""
    while isinstance(error, (HloError, PartError)) and error.__cause__ is not None:
        error = error.__cause__
    if is_of_signal_handler(error):
        raise error from None
    return None if isinstance(error, (HloError, MemoryError)) else error


def _fault_or_none(error: BaseException) -> BaseException | None:
    """`_fault`, which raises nothing."""
    try:
        return _fault(error) if isinstance(error, Exception) else None
    except BaseException:
        return None


def _has_effects(plan: Plan) -> bool:
    """Whether a run does something that a second one would do again: to its host, or in users' functions."""
    calls = plan.library_calls.items()
    return bool(plan.host_transfers) or any(
        call is not None and call is not CUSTOM_CALLS.get(name) for name, call in calls
    )


def _per_device(name: str, given: Sequence[Any] | None, topology: Topology) -> Sequence[Any]:
    """One entry per device, None where nothing was given."""
    if given is None:
        return [None] * topology.count
    if not isinstance(given, (tuple, list)):
        raise wrong(name, "a list with one entry per device", given)
    if len(given) != topology.count:
        raise InputError(f"{name} must have one entry per device, {topology.count}, but has {len(given)}")
    return given
