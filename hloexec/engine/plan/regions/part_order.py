"""The order in which a region's instructions run, chosen so that few of their values are in the cache at a time.

Modules often list instructions long before they are used: the nine coefficients of a polynomial, each a select, and
then its nine steps. Here the operands of an instruction are computed immediately before it, and first the one whose
computation needs the most memory beyond its result (Sethi and Ullman's rule for registers, by bytes). An instruction
whose operands are there, and die with it, runs at once if it makes no more bytes than they take: in a round of threefry
the sum of two words comes before the rotation of one of them, which may then overwrite that word.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hloexec.engine.plan.steps import Step


def in_order_of_use(steps: Sequence[Step], outputs: Collection[int], row_bytes: Mapping[int, int]) -> list[int]:
    """The numbers of the steps in the order in which to run them; `row_bytes` are those of a row of each result.

    Steps come after those whose results they take. A step whose result nothing needs keeps its place among the last.
    """
    maker = {step.result: number for number, step in enumerate(steps)}
    operands = [list(dict.fromkeys(maker[slot] for slot in step.operands if slot in maker)) for step in steps]
    made = [row_bytes[step.result] for step in steps]
    _most_demanding_first(operands, made)
    roots = [number for number, step in enumerate(steps) if step.result in outputs]
    order = _Order(operands, made, roots)
    for root in (*roots, *range(len(steps))):
        stack = [(root, iter(operands[root]))]
        while stack:
            number, rest = stack[-1]
            missing = next((operand for operand in rest if operand not in order.found), None)
            if missing is not None:
                stack.append((missing, iter(operands[missing])))
            else:
                stack.pop()
                order.run(number)
    return list(order.found)


def _most_demanding_first(operands: Sequence[list[int]], made: Sequence[int]) -> None:
    """Sort the operands of each step by what their computation takes beyond what it leaves, were nothing computed."""
    most: list[int] = []
    for number, makers in enumerate(operands):
        makers.sort(key=lambda operand: made[operand] - most[operand])
        before, taken = 0, 0
        for operand in makers:
            taken = max(taken, before + most[operand])
            before += made[operand]
        most.append(max(taken, before + made[number]))


class _Order:
    """Steps that have run, with those that can follow without taking more memory."""

    def __init__(self, operands: Sequence[Sequence[int]], made: Sequence[int], outputs: Collection[int]) -> None:
        self.found: dict[int, None] = {}
        self._operands = operands
        self._made = made
        self._users: list[list[int]] = [[] for _ in operands]
        for number, makers in enumerate(operands):
            for operand in makers:
                self._users[operand].append(number)
        self._waiting = [len(users) for users in self._users]
        """How many of a step's users have not run; an output has one more, outside."""
        for number in outputs:
            self._waiting[number] += 1

    def run(self, number: int) -> None:
        """Let a step run, unless it has, and after it all that free as much as they make."""
        ready = [number]
        while ready:
            number = ready.pop()
            if number in self.found:
                continue
            self.found[number] = None
            ready += filter(self._frees_enough, self._users[number])
            for operand in self._operands[number]:
                self._waiting[operand] -= 1
                if self._waiting[operand] == 1:
                    ready += filter(self._frees_enough, self._users[operand])

    def _frees_enough(self, number: int) -> bool:
        if number in self.found or not all(operand in self.found for operand in self._operands[number]):
            return False
        freed = sum(self._made[operand] for operand in self._operands[number] if self._waiting[operand] == 1)
        return freed >= self._made[number]
