"""`minify`: the smallest module that still shows a failure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any, Unpack

import attrs
import numpy as np

from hloexec.analysis.numerics.leaves import leaves_of
from hloexec.core.arguments import (
    listed,
    named_computation,
    require_choice,
    require_flags,
    require_module,
    require_number,
    require_text,
    wrong,
)
from hloexec.core.ir import ArrayShape, Computation, Instruction, Literal, Module
from hloexec.core.ir.editing import change_entry, map_instructions
from hloexec.core.values import Inputs, Value
from hloexec.core.wording import argument
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.exec.arguments import device_arguments, inputs_by_device
from hloexec.engine.exec.observers import Event, Observer, Stages
from hloexec.engine.exec.running import RunOptions, resolve_options, run_with
from hloexec.engine.inputs import random_inputs
from hloexec.engine.options import Options
from hloexec.errors import HloError, InputError, unwarned, warn
from hloexec.language.text import format as format_module
from hloexec.language.text import parse
from hloexec.language.verifier import verify
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import Role, role_of
from hloexec.tools.counterparts.answers import Counterpart
from hloexec.tools.counterparts.specs import counterpart_of
from hloexec.tools.executing.engines import Engine, opened_engine
from hloexec.tools.extraction import extract
from hloexec.tools.minifying import opening, pairs, searching, simplifying
from hloexec.tools.minifying.case import Case, counted
from hloexec.tools.minifying.checking import OUTCOMES, Check, input_files
from hloexec.tools.minifying.findings import Minified
from hloexec.tools.minifying.oracles import Against, Difference, DiffersFrom, Expected, Nan, Oracle
from hloexec.tools.minifying.searching import Candidate, OutOfTime, Search, size_of

_MOST_ROUNDS = 12
_MOST_TRIES = 3
"""How often what is left is simplified again, where what is to blame was lost by it."""
_TIMES = 4
"""So many times as often as in the given modules, loops of a candidate may go round."""
_INSTEAD = "differs_from compares with a module, expected with results"
_SMALL = 5
"""Instructions of a module that needs no other means."""


def minify(
    module: Module,
    inputs: Inputs | None = None,
    *,
    command: str | None = None,
    expected: Mapping[str, Any] | Value | None = None,
    against: str | NumericsPolicy | Counterpart | None = None,
    nan: bool = False,
    differs_from: Module | None = None,
    outcome: str = "pass",
    says: str = "",
    command_timeout: float = 60.0,
    jobs: int = 1,
    executor: str | Executor | None = None,
    budget: float | None = None,
    observers: Sequence[Observer] = (),
    **options: Unpack[RunOptions],
) -> Minified:
    """The smallest module that still shows a failure, with its inputs.

    One of five arguments says what the failure is:

    - `command` is run on a module's path, and the module shows the failure if it ends as `outcome` says: `pass` (it
      exits with 0), `fail` (with another code), `crash` (a signal ends it, always the same) or `hang` (it takes more
      than `command_timeout` seconds). It must print `says`, if that is given. The command is split into words as a
      POSIX shell does, and run without a shell; `{}` in a word stands for the path, which else becomes the last word.
    - `nan`: finite inputs give NaN or infinities, by the same opcode in the same way (as `find_nan` says).
    - `differs_from` is a module whose results on the same inputs differ from this one's by more than rounding explains.
      It becomes smaller, too.
    - `against` is a counterpart (`hloexec.counterpart`) that runs modules, such as `"xla:cpu"`, or another numerics
      policy: the results differ likewise.
    - `expected` has results that were recorded elsewhere. As they are there for the given module only, the smaller one
      computes the same; it loses results that agree, and what only they need.

    What is tried: the instruction that `find_nan` or `diff` blames alone; fewer results and fewer instructions, whose
    recorded values become parameters, by delta debugging; operands in place of results; called computations inlined,
    branches chosen and loops cut to one or two iterations; fewer devices; smaller dimensions, as `shrink` relates them;
    inputs and constants of zeros, ones or short numbers; common element types; no annotations. Every candidate is
    verified, and must show the failure.

    `jobs` commands run at once, or as many as `executor` has workers; it is what `triage` takes. The result is the same
    for any of them. On workers elsewhere the command must be there, too; modules and inputs are sent to them. `budget`
    seconds, or Ctrl-C, end the search with the best that was found. `inputs`, `observers` and `options` are those of
    `run_devices`; without inputs, they are random. Without SciPy, dimensions and devices stay as they are, which a
    warning says. Raises InputError if the given module does not show the failure, and whatever `run_devices` raises.
    """
    start = time.perf_counter()
    require_module(module)
    resolved = resolve_options("minify", options)
    require_flags(nan=nan)
    if budget is not None:
        require_number("budget", budget)
    watchers = listed("observers", observers, "observers")
    elided = resolved.elided if isinstance(resolved.elided, str) else "error"
    # Candidates say the rest themselves, or it is for one run.
    given = attrs.evolve(resolved, elided=elided, replicas=None, partitions=None, computation=None, statistics=None)
    _require_one(command=command, expected=expected, against=against, nan=nan or None, differs_from=differs_from)
    if command is None and (outcome != "pass" or says):
        raise InputError("outcome and says are about a command; give command, too")
    if command is None and executor is not None:
        raise InputError(f"{argument('executor')} runs a command; give command, too")
    deadline = None if budget is None else start + budget
    with opened_engine(executor, jobs) as engine:
        oracle: Check | Nan | Difference
        if command is not None:
            oracle = _checked(command, engine, outcome, says, command_timeout)
        else:
            oracle = _compared(given, expected, against, differs_from)
        case = _first_case(module, inputs, differs_from, resolved, watchers, needs_values=oracle.needs_values)
        oracle.begin(case)
        given = _limited(given, case)
        if not isinstance(oracle, Check):
            oracle.options = given
        if not find_spec("scipy"):
            warn("dimensions and devices stay as they are: SciPy is not installed (pip install 'hloexec[shrink]')")
        search = Search(case, oracle, deadline, Stages(watchers))
        search.watch_ends(given)
        is_complete = False
        with suppress(KeyboardInterrupt, OutOfTime):
            _minify(search, given)
            is_complete = True
        return _found(case, search, given, start, is_complete=is_complete)


def _require_one(**given: object) -> None:
    chosen = [name for name, argument_value in given.items() if argument_value is not None]
    if len(chosen) != 1:
        many = f"{' and '.join(chosen)} were given" if chosen else "none was given"
        raise InputError(f"one of {', '.join(given)} must say what the failure is, but {many}")


def _checked(command: object, engine: Engine, outcome: object, says: object, timeout: Any) -> Check:
    require_text("command", command, "a command, a str")
    require_choice("outcome", outcome, OUTCOMES)
    require_text("says", says)
    require_number("command_timeout", timeout)
    check = Check(str(command), engine, str(outcome), str(says), float(timeout))
    check.require_runnable()
    return check


def _compared(options: Options, expected: Any, against: Any, differs_from: object) -> Nan | Difference:
    if differs_from is not None:
        require_module(differs_from, "differs_from")
        return DiffersFrom(options)
    if against is not None:
        return Against(options, counterpart=counterpart_of(against, instead=_INSTEAD))
    if expected is None:
        return Nan(options)
    leaves = dict(leaves_of(expected, "expected"))
    if not leaves:
        raise wrong("expected", "a result: an array, a tuple of arrays, or a mapping from labels to arrays", expected)
    return Expected(options, leaves=leaves)


def _first_case(
    module: Module,
    inputs: Inputs | None,
    other: Module | None,
    options: Options,
    observers: Sequence[Any],
    *,
    needs_values: bool,
) -> Case:
    """The given module on its inputs, for as many devices as it runs on."""
    if (name := options.computation) is not None:
        chosen = named_computation(module, name)
        module = change_entry(module, chosen.name)
    with unwarned():
        verify(module)
    topology = topology_of(module, options.replicas, options.partitions)
    counts: dict[str, Any] = {"replica_count": topology.replicas, "num_partitions": topology.partitions}
    module = attrs.evolve(module, **counts)
    if other is not None:
        verify(other)
        other = attrs.evolve(other, **counts)
    rows = None if inputs is None else inputs_by_device(module.entry, inputs)
    if rows is not None:
        device_arguments(module.entry, rows, topology.count)
    case = Case(module, None, other)
    try:
        if rows is None:
            rows = [random_inputs(module, options.seed)]
        case = attrs.evolve(case, inputs=[list(row) for row in rows])
        run_with(module, case.inputs, attrs.evolve(options, computation=None), observers)
    except InputError:
        raise
    except HloError:
        if needs_values:
            raise
    return attrs.evolve(case, module=_with_constants(module, options.elided))


def _with_constants(module: Module, elided: Any) -> Module:
    """The module with the values that were given for constants which its text elides, as candidates have no names."""
    if not isinstance(elided, Mapping):
        return module

    def given(_: Computation, instruction: Instruction) -> Instruction:
        if (
            role_of(instruction) is not Role.CONSTANT
            or instruction.name not in elided
            or not isinstance(instruction.shape, ArrayShape)
        ):
            return instruction
        literal = Literal.from_array(np.asarray(elided[instruction.name]), instruction.shape)
        return attrs.evolve(instruction, attributes=attrs.evolve(instruction.attributes, literal=literal))

    return map_instructions(module, given)


def _limited(options: Options, case: Case) -> Options:
    """A candidate may go round a loop for ever, which the given modules did not: that ends it, on every machine at the
    same iteration."""
    modules = [each for each in (case.module, case.other) if each is not None]
    loops = [each for each in modules if any(role_of(part) is Role.WHILE for body in each for part in body)]
    if not loops or options.max_iterations is not None:
        return options
    iterations = _Iterations()
    with suppress(HloError):
        for module in loops:
            run_with(module, case.inputs, options, [iterations])
    return attrs.evolve(options, max_iterations=_TIMES * (1 + iterations.most))


class _Iterations:
    """The observer that sees how often loops go round."""

    def __init__(self) -> None:
        self.most = 0

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        self.most = max([self.most, *(entry.iteration or 0 for entry in event.path)])


def _minify(search: Search, options: Options) -> None:
    """All reductions, until none helps."""
    is_pair = search.best.other is not None
    if not search.oracle.may_change_values:
        searching.fewer_outputs(search)
        opening.open_calls(search)
        opening.open_all(search, options)
        simplifying.no_annotations(search)
        return
    search.any(_guesses(search, options))
    if not is_pair:
        _reduce_module(search, options)
        _simplify(search)
        return
    _reduce_pair(search, options)
    for _ in range(_MOST_TRIES):
        _simplify(search)
        if pairs.confirm(search):
            break


def _simplify(search: Search) -> None:
    """Simpler values and types of what is left, and no annotations."""
    is_pair = search.best.other is not None
    if not is_pair or not pairs.is_entangled(search.best):
        simplifying.common_types(search)
        simplifying.simple_inputs(search)
    if not is_pair:
        before = search.accepted
        simplifying.simple_constants(search)
        if search.accepted > before:
            # With other constants, loops end that need a counter now.
            opening.fewer_in_bodies(search)
    simplifying.no_annotations(search)
    # Meshes and shardings may have been all that several devices were for.
    simplifying.fewer_devices(search)


def _guesses(search: Search, options: Options) -> Iterator[Candidate]:
    """What might be it by itself."""
    case, oracle = search.best, search.oracle
    finding = oracle.search.finding if isinstance(oracle, Nan) and oracle.search is not None else None
    if finding is not None:
        for depth in (1, 2, None):
            yield partial(_slice, case, finding.name, depth, finding.devices[0], options)


def _slice(case: Case, path: str, depth: int | None, device: int, options: Options) -> Case:
    for own in (device, None):
        with suppress(HloError):
            found = extract(case.module, case.inputs, path, depth=depth, device=own, **options.of_parts)
            return Case(found.module, found.inputs)
    raise HloError("it cannot be extracted")


def _reduce_module(search: Search, options: Options) -> None:
    """Fewer instructions, then what makes more of them go."""
    for _ in range(_MOST_ROUNDS):
        before = size_of(search.best), search.best.devices
        searching.fewer_instructions(search, options)
        opening.open_calls(search)
        opening.open_all(search, options)
        searching.fewer_instructions(search, options)
        while opening.forwarded(search):
            pass
        searching.fewer_outputs(search)
        simplifying.fewer_devices(search)
        simplifying.smaller_dimensions(search)
        opening.simplify_loops(search)
        opening.open_in_bodies(search)
        opening.fewer_in_bodies(search)
        if (size_of(search.best), search.best.devices) == before:
            return


def _reduce_pair(search: Search, options: Options) -> None:
    """The same for two modules, which stay comparable."""
    # All results together take `diff` much longer.
    pairs.fewer_paired_outputs(search)
    pairs.establish(search)
    for _ in range(_MOST_ROUNDS):
        before = size_of(search.best), search.best.devices
        has_cut = pairs.first_finding(search, options) or pairs.cut_at_common_values(search, options)
        for side in ("module", "other"):
            opening.open_calls(search, side)
            opening.open_all(search, options, side)
        is_kept = pairs.confirm(search, computes_the_same=not has_cut)
        pairs.cut_at_common_values(search, options)
        pairs.fewer_paired_outputs(search)
        pairs.without_unused_parameters(search)
        if not pairs.is_entangled(search.best):
            simplifying.fewer_devices(search)
            simplifying.smaller_dimensions(search)
        is_kept = pairs.confirm(search) and is_kept
        if is_kept and (size_of(search.best), search.best.devices) == before:
            break
    if counted(search.best.module) > _SMALL and pairs.first_finding(search, options, may_be_entangled=True):
        pairs.without_unused_parameters(search)
        pairs.confirm(search)


def _found(first: Case, search: Search, options: Options, start: float, *, is_complete: bool) -> Minified:
    case, oracle = search.best, search.oracle
    if case.inputs is None:
        with suppress(HloError):
            case = attrs.evolve(case, inputs=[random_inputs(case.module, options.seed)])
    again = attrs.evolve(case, module=parse(format_module(case.module)))
    try:
        is_confirmed = oracle.holds(again)
        expected = _result(oracle, again, options)
    except (HloError, KeyboardInterrupt):
        is_confirmed, expected = False, None
    return Minified(
        module=case.module,
        inputs=case.inputs,
        other=case.other,
        expected=expected,
        failure=oracle.words(search.best),
        instruction_count=counted(case.module),
        instruction_count_before=counted(first.module),
        trial_count=search.tried,
        step_count=search.accepted,
        seconds=time.perf_counter() - start,
        is_complete=is_complete,
        is_confirmed=is_confirmed,
        outcomes=dict(oracle.counts) if isinstance(oracle, Check) else {},
        notes=oracle.notes(search.best),
        command=tuple(_command(case, oracle, options)),
    )


def _result(oracle: Oracle, case: Case, options: Options) -> Value | None:
    if not isinstance(oracle, Check):
        return oracle.expected(case)
    with suppress(HloError):
        return Nan(options).expected(case)
    return None


def _command(case: Case, oracle: Oracle, options: Options) -> Iterator[str]:
    """What shows the failure in the folder of its files."""
    if isinstance(oracle, Check):
        yield from oracle.words_on("module.hlo")
        return
    if isinstance(oracle, DiffersFrom):
        yield from ("hloexec", "diff", "other.hlo", "module.hlo")
    elif isinstance(oracle, Nan):
        yield from ("hloexec", "nan", "module.hlo")
    else:
        yield from ("hloexec", "run", "module.hlo", "--against")
        yield (
            "expected.npz" if not isinstance(oracle, Against) or oracle.counterpart is None else oracle.counterpart.name
        )
    for name, _ in input_files(case):
        yield from ("--inputs", name)
    if options.numerics.name != "reference":
        yield from ("--numerics", options.numerics.name)
