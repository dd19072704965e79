"""The order in which a region's instructions run, chosen so that few of their values are in the cache at a time.

Modules often list instructions long before they are used: the nine coefficients of a polynomial, each a select, and
then its nine steps. Here the operands of an instruction are computed immediately before it, and first the one whose
computation needs the most memory beyond its result (Sethi and Ullman's rule for registers, by bytes).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hloexec.plan.steps import Step

__all__ = ["in_order_of_use"]


def in_order_of_use(steps: Sequence[Step], outputs: Collection[int], row_bytes: Mapping[int, int]) -> list[int]:
    """The numbers of the steps in the order in which to run them; `row_bytes` are those of a row of each result.

    Steps come after those whose results they take. A step whose result nothing needs keeps its place among the last.
    """
    maker = {step.result: number for number, step in enumerate(steps)}
    operands = [list(dict.fromkeys(maker[slot] for slot in step.operands if slot in maker)) for step in steps]
    left = [row_bytes[step.result] for step in steps]
    most: list[int] = []
    """For each step, what its computation takes, were nothing computed before."""
    for number, makers in enumerate(operands):
        makers.sort(key=lambda operand: left[operand] - most[operand])
        before, taken = 0, 0
        for operand in makers:
            taken = max(taken, before + most[operand])
            before += left[operand]
        most.append(max(taken, before + left[number]))
    order: dict[int, None] = {}
    wanted = [*(number for number, step in enumerate(steps) if step.result in outputs), *range(len(steps))]
    for root in wanted:
        stack = [(root, iter(operands[root]))]
        while stack:
            number, rest = stack[-1]
            missing = next((operand for operand in rest if operand not in order), None)
            if missing is not None:
                stack.append((missing, iter(operands[missing])))
            else:
                stack.pop()
                order[number] = None
    return list(order)
