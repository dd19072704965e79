"""Reports of `hloexec explain`: the verdict, the policies that were tried, the instructions, and the next command."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from hloexec.analysis.numerics.comparison import LeafComparison
from hloexec.core.ir import Module
from hloexec.core.places import split_name
from hloexec.core.wording import count_text, number_text, plural
from hloexec.report.layout import Command, Parts, listed, next_steps
from hloexec.report.registry import Figures, Linker, Report
from hloexec.tools.explaining.findings import Explained, Explanation, InstructionExplanation, Trial
from hloexec.tools.watching.recording import Ranked

_MOST_BARS = 12

_STYLES = {
    Explained.EQUAL: "bold green",
    Explained.ROUNDING: "bold cyan",
    Explained.POLICY: "bold green",
    Explained.NOT_DECIDED: "bold yellow",
    Explained.NONE: "bold red",
}
_MOST_NAMES = 6


def explanation_view(explanation: Explanation, top: int, command: Command) -> RenderableType:
    """Everything `hloexec explain` says."""
    parts: Parts = [_verdict(explanation)]
    parts += [*explanation.left_open, *_remarks(explanation)]
    if len(explanation.trials) > 1:
        parts.append(_trials(explanation, top))
    if explanation.checked_instructions:
        parts.append(_instructions(explanation, top))
    if explanation.verdict is Explained.NONE:
        parts += _where(explanation)
        steps = [command("diff", "AFTER")]
        if any(
            leaf.measured is not None and any(leaf.measured.nans + leaf.measured.infinities)
            for leaf in explanation.leaves
        ):
            steps.append(command("nan"))
        parts.append(next_steps(*steps))
    elif explanation.verdict is Explained.POLICY:
        parts.append(next_steps(command("run", "--numerics", explanation.best.name)))
    return Group(*parts)


def _verdict(explanation: Explanation) -> Text:
    style = _STYLES[explanation.verdict]
    if explanation.verdict is Explained.POLICY:
        text = Text.assemble((_best_text(explanation), style), " explains it: ", _left(explanation.best))
    elif explanation.verdict is Explained.NONE:
        text = Text.assemble(
            (explanation.verdict.value, style), f": {_policy_text(explanation.best)} comes nearest, but "
        )
        text.append(_left(explanation.best))
    elif explanation.verdict is Explained.NOT_DECIDED:
        text = Text.assemble((explanation.verdict.value, style), ": what rounding does not explain is left open")
    else:
        text = Text.assemble((explanation.verdict.value, style), f", {_left(explanation.best)}")
    return text


def _best_text(explanation: Explanation) -> str:
    """The best policy in few words; where it is another one for all but a few instructions, that one, but for these."""
    for whole in explanation.alike:
        untold = [entry.instruction for entry in explanation.untold if entry.policy == whole.name]
        having = [policy for _, policy in explanation.best.policy.overrides]
        if 0 < len(untold) < len(having) and all(policy == whole.policy for policy in having):
            return f"{whole.name} for all but {_instructions_text(untold)}"
    return _policy_text(explanation.best)


def _policy_text(trial: Trial) -> str:
    """A policy in few words."""
    names = trial.policy.overrides
    if not names:
        return trial.name
    by_policy: dict[str, list[str]] = {}
    for name, policy in names:
        by_policy.setdefault(policy.name, []).append(name)
    default = trial.name.partition(",")[0]
    texts = [f"{policy} for {_instructions_text(instructions)}" for policy, instructions in by_policy.items()]
    return ", ".join([*([default] if default != "reference" else []), *texts])


def _instructions_text(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(f"%{split_name(name)[1]}" for name in names[:_MOST_NAMES]) + more


def _left(trial: Trial) -> str:
    if trial.equal_share == 1.0:
        return "all elements have the expected bits"
    bits = (
        ""
        if trial.policy.name == "reference" or trial.bits < 0.05
        else f"the difference is {number_text(2**trial.bits, 2)} times smaller, "
    )
    off = ""
    if trial.mismatches:
        off = f"{plural(trial.mismatches, 'element')} off by more than rounding explains, "
    ratio = (
        ""
        if trial.spread_ratio is None
        else f"what is left is {number_text(trial.spread_ratio, 2)} times what rounding alone leaves, "
    )
    return f"{bits}{off}{ratio}{100 * trial.equal_share:.1f} % of the elements have the expected bits"


def _remarks(explanation: Explanation) -> list[str]:
    lines = []
    if explanation.alike:
        names = ", ".join(map(_policy_text, explanation.alike[:_MOST_NAMES]))
        lines.append(f"the values cannot tell it from {names}")
    for policy in dict.fromkeys(untold.policy for untold in explanation.untold):
        names = _instructions_text([entry.instruction for entry in explanation.untold if entry.policy == policy])
        lines.append(f"the values cannot tell whether {policy} holds for {names}")
    if explanation.undecided:
        names = ", ".join(policy.name for policy in explanation.undecided)
        lines.append(f"rounding hides whether these hold besides: {names}")
    if explanation.best.effect is not None and explanation.best.effect_error is not None:
        lines.append(
            f"of its effect {explanation.best.effect:.3g} ± {explanation.best.effect_error:.1g} is there (1: all of it)"
        )
    if not explanation.is_complete:
        lines.append(
            f"the search was cut after {plural(explanation.runs, 'run')}: --runs gives it more, as does --budget"
        )
    return lines


def _trials(explanation: Explanation, top: int) -> RenderableType:
    alike = {trial.policy for trial in explanation.alike}

    def cells(trial: Trial) -> list[str]:
        return [
            _policy_text(trial),
            _bits_text(trial),
            number_text(trial.remaining, 3),
            f"{100 * trial.equal_share:.1f} %",
            "∞" if math.isinf(trial.max_ulps) else number_text(trial.max_ulps, 3),
            "–" if trial.mismatches is None else count_text(trial.mismatches),
            _remark(trial, is_best=trial.policy == explanation.best.policy, is_alike=trial.policy in alike),
        ]

    remark = f"{plural(explanation.runs, 'run')}, the nearest first"
    figures = ("bits", "remaining", "equal", "max ULP", "off")
    return listed(
        "policies", remark, list(map(cells, explanation.trials)), "policy", top=top, figures=figures, remarks=("",)
    )


def _bits_text(trial: Trial, infinite: str = "∞") -> str:
    return infinite if math.isinf(trial.bits) else f"{trial.bits if abs(trial.bits) >= 0.05 else 0.0:.1f}"


def _remark(trial: Trial, *, is_best: bool, is_alike: bool) -> str:
    if not trial.has_effect and trial.policy.name != "reference":
        return "changes nothing here"
    if is_best and trial.is_explained:
        return "explains it"
    if is_alike:
        return "as well"
    return "" if trial.is_explained is None else "explains it, but the values exclude it" if trial.is_explained else ""


def _instructions(explanation: Explanation, top: int) -> RenderableType:
    checked = plural(explanation.checked_instructions, "instruction")
    if not explanation.instructions:
        return Group("", f"rounding alone explains each of {checked} from its own operands")
    rows = [
        (
            f"%{each.name}",
            _explained_by(each),
            _bits_text(each.best),
            f"{100 * each.best.equal_share:.1f} %",
            *each.source[:1],
        )
        for each in explanation.instructions
    ]
    parts: Parts = []
    first = explanation.first_unexplained
    if first is not None:
        parts += ["", Text.assemble((f"%{first.name}", "bold red"), " is the first that no policy explains:")]
        parts.append(f"  {first.hlo}")
    remark = f"of {checked}, those that rounding alone does not explain"
    names, figures = ("instruction", "explained by"), ("bits", "equal")
    parts.append(listed("instructions", remark, rows, *names, top=top, figures=figures, remarks=("source",)))
    return Group(*parts)


def _explained_by(explanation: InstructionExplanation) -> str:
    if explanation.verdict is Explained.NONE:
        return "none of them" if explanation.is_complete else "none of them, as far as the search went"
    return " or ".join(trial.name.rpartition("=")[2] for trial in (explanation.best, *explanation.alike)[:4])


def _where(explanation: Explanation) -> list[str]:
    """Where to look, if nothing explains it."""
    worst = max(explanation.leaves, key=_severity, default=None)
    if worst is None or worst.measured is None or not worst.measured.worst:
        return []
    element = worst.measured.worst[0]
    place = f" at {list(element.index)}" if element.index else ""
    return [
        "",
        f"furthest off is {'the result' if worst.label == 'value' else f'output {worst.label}'}{place}: "
        f"{element.actual!r}, expected {element.expected!r}",
        "with the module that the other side ran, hloexec diff finds the instruction; with the values of its "
        "instructions, --values",
    ]


def _severity(leaf: LeafComparison) -> float:
    return leaf.measured.worst[0].severity if leaf.measured is not None and leaf.measured.worst else 0.0


def _ranking(explanation: Explanation, module: Module) -> Iterator[Ranked]:
    homes: dict[str, list[str]] = {}
    for computation in module:
        for instruction in computation:
            homes.setdefault(instruction.name, []).append(computation.name)
    names = [(entry.name, entry.verdict.value) for entry in explanation.instructions]
    names += [(name, f"explained by {policy.name}") for name, policy in explanation.best.policy.overrides]
    for name, why in names:
        stated, last = split_name(name)
        places = [stated] if stated else homes.get(last, [])
        if len(places) == 1:
            first = explanation.first_unexplained
            yield Ranked((places[0], last), why, is_bad=first is not None and first.name == name)


def _figures(explanation: Explanation, _: Linker) -> Figures:
    from hloexec.report.html.figures import error_maps
    from hloexec.report.html.plots import bars

    trials = [trial for trial in explanation.trials if trial.policy.name != "reference"][:_MOST_BARS]
    largest = max((trial.bits for trial in trials if math.isfinite(trial.bits)), default=1.0)
    rows = [
        (
            trial.name,
            trial.bits if math.isfinite(trial.bits) else 1.15 * max(largest, 1.0),
            _bits_text(trial, "all of them"),
        )
        for trial in trials
    ]
    yield bars("Bits that each policy explains", rows, "bits explained")
    yield from error_maps(explanation.leaves)


REPORTS = {Explanation: Report(explanation_view, _figures, _ranking)}
