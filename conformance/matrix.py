"""Runs every cell on XLA:CPU and on hloexec, and says what came of it.

Examples of one element type share modules, since compiling a module costs XLA far more than one more instruction. A
module that XLA refuses is halved until the example that it refuses stands alone. XLA lives in processes of its own.
"""

from __future__ import annotations

import enum
import re
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import attrs
import numpy as np

import hloexec
from conformance.cell import Accumulated, Array, Example, Normwise, module_text
from conformance.cells import GENERATORS
from conformance.checking import Outcome, check_result
from conformance.known import known_difference
from conformance.worker import Worker, XlaRefused
from hloexec.core.values import TOKEN

_BATCH = 40
"""Examples per module."""


class Status(enum.Enum):
    """What came of an example, from the least to the most worrying; a cell has that of its worst."""

    REFUSED = "–"
    """No program: XLA's and hloexec's verifiers agree in that."""
    TEXT = "◇"
    """Read, verified and printed alike; it needs devices or a library, and is not run here."""
    PASS = "✓"
    XLA_CANNOT = "○"
    """XLA:CPU cannot run it, or not all of it; hloexec can."""
    KNOWN = "≠"
    """They differ for a known reason, and hloexec is right by the specification."""
    FAIL = "✗"


_ORDER = list(Status)


@attrs.frozen(eq=False)
class Finding:
    """What came of one example."""

    example: Example
    status: Status
    message: str = ""
    worst: float = 0.0
    xla_worst: float = 0.0


@attrs.define(eq=False)
class Cell:
    """What came of one opcode with one element type."""

    opcode: str
    element_type: str
    findings: list[Finding] = attrs.Factory(list)

    @property
    def status(self) -> Status:
        return max((finding.status for finding in self.findings), key=_ORDER.index)

    def first(self, status: Status) -> Finding:
        return next(finding for finding in self.findings if finding.status is status)


def examples_of(opcode: str, element_type: str, count: int, seed: int) -> list[Example]:
    """The examples of one cell: the same ones whatever other cells are asked for."""
    generator = np.random.default_rng([seed, zlib.crc32(f"{opcode} {element_type}".encode())])
    assert opcode in GENERATORS, f"conformance/cells has no generator for {opcode}"
    return list(GENERATORS[opcode](opcode, element_type, generator, count))


def run_matrix(
    opcodes: Sequence[str],
    element_types: Sequence[str],
    *,
    examples: int = 3,
    seed: int = 0,
    workers: int = 2,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Cell]:
    """Every cell of the opcodes and element types that has examples."""
    batches: list[list[Example]] = []
    for name in element_types:
        drawn = [example for opcode in opcodes for example in examples_of(opcode, name, examples, seed)]
        # Programs that need several modules' worth of compile time go first, alone ones last.
        batches += [drawn[start : start + _BATCH] for start in range(0, len(drawn), _BATCH)]
    idle: SimpleQueue[Worker] = SimpleQueue()
    pool = [Worker() for _ in range(workers)]
    for worker in pool:
        idle.put(worker)
    total, findings, done = sum(map(len, batches)), [], 0

    def run(batch: list[Example]) -> list[Finding]:
        worker = idle.get()
        try:
            return _run_batch(worker, batch)
        finally:
            idle.put(worker)

    try:
        with ThreadPoolExecutor(workers) as threads:
            for batch, found in zip(batches, threads.map(run, batches), strict=True):
                findings += found
                done += len(batch)
                progress(done, total)
    finally:
        for worker in pool:
            worker.close()
    return _cells(findings)


def _cells(findings: Iterable[Finding]) -> list[Cell]:
    cells: dict[tuple[str, str], Cell] = {}
    for finding in findings:
        key = (finding.example.opcode, finding.example.element_type)
        cells.setdefault(key, Cell(*key)).findings.append(finding)
    return list(cells.values())


def _run_batch(worker: Worker, batch: list[Example]) -> list[Finding]:
    findings: dict[int, Finding] = {}
    running = []
    for number, example in enumerate(batch):
        finding = _legality(worker, example)
        if finding is None:
            running.append(number)
        else:
            findings[number] = finding
    programs = [batch[number] for number in running]
    xla = _results(worker, programs, lambda example: [example.operands])
    measured = [number for number, example in enumerate(programs) if isinstance(example.check, Accumulated | Normwise)]
    measured = [number for number in measured if _is_inexact(programs[number])]
    widened = [_widened(programs[number]) for number in measured]
    wide = dict(zip(measured, _results(worker, widened, _with_magnitudes), strict=True))
    for position, number in enumerate(running):
        findings[number] = _checked(batch[number], xla[position], wide.get(position))
    return [findings[number] for number in range(len(batch))]


def _legality(worker: Worker, example: Example) -> Finding | None:
    """A finding where the example is no program to one of the two; None where both take it."""
    text = module_text([example])
    refused = _refused_by_hloexec(text)
    its_refusal = _refused_by_xla(worker, text, example)
    if refused and its_refusal:
        return Finding(example, Status.REFUSED, refused)
    if refused:
        try:
            worker.run(text, example.operands)
        except XlaRefused as error:
            return Finding(example, Status.REFUSED, f"{refused} XLA: {error}")
        return _difference(example, Outcome((), message=f"hloexec refuses what XLA runs: {refused}"))
    if its_refusal and example.runs:
        return _difference(example, Outcome((), message=f"hloexec takes what XLA refuses: {its_refusal}"))
    if not example.runs:
        return _parsed_alike(worker, example, text)
    return None


def _refused_by_hloexec(text: str) -> str:
    try:
        hloexec.verify(hloexec.parse(text))
    except hloexec.HloError as error:
        return str(error).strip().splitlines()[-1].strip() if isinstance(error, hloexec.ParseError) else error.message
    return ""


def _refused_by_xla(worker: Worker, text: str, example: Example) -> str:
    """What XLA's shape rule has against the instruction; nothing where it has no rule."""
    name = re.escape(f"x0_r = {example.result} ")
    if example.opcode == "scaled-dot":
        # XLA's parser infers its shape from operands 0 and 2, lhs and the scale of lhs.
        return ""
    try:
        worker.parse(re.sub(f"{name}", lambda _: "x0_r = ", text, count=1))
    except XlaRefused as error:
        message = str(error)
        if any(words in message for words in _NO_RULE):
            return ""
        return " ".join(message.partition("error: ")[2].split("\n")[0].split()) or message
    return ""


_NO_RULE = ("cannot infer shape for opcode", "Unknown operation for unary shape inference")


def _parsed_alike(worker: Worker, example: Example, text: str) -> Finding:
    """Both verifiers take it, and what hloexec prints is to XLA the same program."""
    try:
        worker.parse(hloexec.format(hloexec.parse(text)))
    except (XlaRefused, hloexec.HloError) as error:
        return _difference(example, Outcome((), message=f"hloexec's text is none to XLA: {error}"))
    return Finding(example, Status.TEXT)


Answer = list[list[Array]] | XlaRefused
"""An example's leaves for each list of inputs, or what XLA said."""


def _results(
    worker: Worker, examples: Sequence[Example], inputs_of: Callable[[Example], list[Sequence[Array]]]
) -> list[Answer]:
    """Each example's results on XLA, in as few modules as XLA's refusals allow."""
    if not examples:
        return []
    if any(_ONE_BIT.search(module_text([example])) for example in examples):
        # Its arrays do not survive the way to XLA:CPU and back: they arrive as pred.
        sent = [example for example in examples if not _ONE_BIT.search(module_text([example]))]
        answers = iter(_results(worker, sent, inputs_of))
        refused = XlaRefused("jaxlib has no arrays of one-bit integers")
        return [refused if _ONE_BIT.search(module_text([example])) else next(answers) for example in examples]
    sets = [inputs_of(example) for example in examples]
    most = max(map(len, sets))
    whole = [[value for each in sets for value in each[min(turn, len(each) - 1)]] for turn in range(most)]
    try:
        results = worker.run(module_text(examples), *whole)
    except XlaRefused as error:
        if len(examples) == 1:
            return [error]
        middle = len(examples) // 2
        return [
            *_results(worker, examples[:middle], inputs_of),
            *_results(worker, examples[middle:], inputs_of),
        ]
    answers: list[Answer] = [[] for _ in examples]
    for leaves in results:
        position = 0
        for answer, example in zip(answers, examples, strict=True):
            count = _leaf_count(example.compared)
            answer.append(leaves[position : position + count])  # type: ignore[union-attr]
            position += count
    return answers


_ONE_BIT = re.compile(r"\b[su]1\[")


def _leaf_count(shape: str) -> int:
    """The number of arrays in a shape; tokens are none."""
    return len(re.findall(r"(?<!\w)(?!token)[a-z]\w*\[", shape))


_FLOATING = re.compile(r"\b(?:bf16|f16|f32|f8e\w+|f4e2m1fn)\[")


def _is_inexact(example: Example) -> bool:
    return any(operand.dtype.kind not in "biu" or operand.dtype.name in _NARROW for operand in example.operands)


_NARROW: frozenset[str] = frozenset()


def _widened(example: Example) -> Example:
    """The same program in f64, c128."""

    def wide(text: str) -> str:
        return _FLOATING.sub("f64[", text).replace("c64[", "c128[")

    return attrs.evolve(
        example,
        result=wide(example.result),
        instruction=wide(example.instruction),
        operands=tuple(map(_in_double, example.operands)),
        before=tuple(map(wide, example.before)),
        after=tuple(map(wide, example.after)),
        final=wide(example.final),
        computations=wide(example.computations),
    )


def _in_double(operand: Array) -> Array:
    from hloexec.core.dtypes import element_type_of

    entry = element_type_of(operand.dtype)
    if entry.is_complex:
        return operand.astype(np.complex128)
    return operand.astype(np.float64) if entry.is_floating else operand


def _with_magnitudes(example: Example) -> list[Sequence[Array]]:
    """The operands, and for sums their absolute values."""
    if isinstance(example.check, Normwise):
        return [example.operands]
    return [
        example.operands,
        [np.abs(x).astype(x.dtype) if x.dtype.kind in "fc" else x for x in example.operands],
    ]


def _checked(example: Example, answer: Answer, wide: Answer | None) -> Finding:
    try:
        ours = _on_hloexec(example)
    except Exception as error:  # a bare exception is a failure, too, and no reason to stop
        kind = "" if isinstance(error, hloexec.HloError) else f"{type(error).__name__}: "
        return _difference(example, Outcome((), message=f"hloexec: {kind}{error}"))
    xla = None if isinstance(answer, XlaRefused) else answer[0]
    exact = None if wide is None or isinstance(wide, XlaRefused) else wide
    outcome = check_result(
        example,
        ours,
        xla,
        None if exact is None else exact[0],
        None if exact is None or len(exact) < 2 else exact[1],
    )
    if not outcome.is_right:
        return _difference(example, outcome, ours, xla)
    if any(mask.any() for mask in outcome.xla_wrong):
        return _difference(example, outcome, ours, xla)
    worst = (outcome.worst, outcome.xla_worst)
    if xla is None:
        return Finding(example, Status.XLA_CANNOT, str(answer), *worst)
    return Finding(example, Status.PASS, "", *worst)


def _on_hloexec(example: Example) -> list[Array]:
    """The leaves of hloexec's result; inputs lie in memory in odd ways, and must be left alone."""
    module = hloexec.parse(module_text([example]))
    inputs = [_restrided(value, position) for position, value in enumerate(example.operands)]
    before = [value.tobytes() for value in inputs]
    placeholders = [TOKEN for _ in example.placeholder_operands]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hloexec.HloWarning)
        stack, leaves = [hloexec.run(module, *inputs, *placeholders, verify=False, check=True)], []
    while stack:
        value = stack.pop()
        if isinstance(value, tuple):
            stack.extend(reversed(value))
        elif isinstance(value, np.ndarray):
            leaves.append(value)
    if before != [value.tobytes() for value in inputs]:
        raise AssertionError("an operand was changed")
    return leaves


def _restrided(array: Array, manner: int) -> Array:
    """The same values in other places of memory: as they are, Fortran order, backwards, or inside a larger array."""
    if manner % 4 == 0 or array.ndim == 0:
        return array
    if manner % 4 == 1:
        return np.asfortranarray(array)
    if manner % 4 == 2:
        return np.flip(np.flip(array).copy())
    window = np.zeros([size + 1 for size in array.shape], array.dtype)[tuple(map(slice, array.shape))]
    window[...] = array
    return window


def _difference(
    example: Example, outcome: Outcome, ours: Sequence[Array] = (), xla: Sequence[Array] | None = None
) -> Finding:
    worst = (outcome.worst, outcome.xla_worst)
    known = known_difference(example, outcome, ours, xla)
    if known is not None:
        return Finding(example, Status.KNOWN, known, *worst)
    return Finding(example, Status.FAIL, outcome.message or _shown(example, outcome, ours, xla), *worst)


def _shown(example: Example, outcome: Outcome, ours: Sequence[Array], xla: Sequence[Array] | None) -> str:
    """The first wrong element: operands, where they have the result's shape, and both results."""
    right = outcome.is_right
    for leaf, mask in enumerate(outcome.xla_wrong if right else outcome.wrong):
        if not mask.any():
            continue
        index = tuple(int(i) for i in np.argwhere(mask)[0]) if mask.ndim else ()
        operands = [operand[index] for operand in example.operands if operand.shape == mask.shape]
        theirs = "nothing" if xla is None else repr(xla[leaf][index])
        side = "XLA's is out of bounds" if right else "wrong"
        count = f"{int(mask.sum())} of {mask.size}"
        own = f"operands {operands}, hloexec {ours[leaf][index]!r}"
        return f"{side} in {count} elements; at {list(index)}: {own}, XLA {theirs}"
    return "different"
