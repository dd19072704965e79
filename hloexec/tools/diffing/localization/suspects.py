"""What may be to blame for a difference."""

from __future__ import annotations

from hloexec.core.structs import frozen
from hloexec.tools.diffing.findings import InstructionRun
from hloexec.tools.diffing.graph import Node
from hloexec.tools.diffing.localization.relations import NodePair


@frozen(eq=False)
class Suspect:
    """An instruction that may be to blame."""

    pair: NodePair
    reason: str = ""
    trial: NodePair | None = None
    """What to put right to see whether the results come right, where it is not the pair itself."""
    region: tuple[Node, ...] = ()
    """What was computed since values that are right, where it is more than the one instruction."""
    is_more_precise: bool = False
    """Whether it is right, and has only not been rounded as `before` rounds it."""
    is_less_precise: bool = False
    """Whether it only rounds to fewer bits than `before` has, and nothing else does there."""
    is_rounding: bool = False
    """Whether it rounds to fewer bits than `before` has."""
    has_wrong_operands: bool = False
    """Whether some of its operands are wrong themselves."""
    decision: NodePair | None = None
    """What decided how a loop or a conditional ran, if it is to blame for that."""
    is_certain: bool = False
    """Whether nothing else can be to blame."""
    is_proven: bool = False
    """Whether it is to blame, or what else its region lists: rounding is not."""
    place: InstructionRun | None = None
    """What is to blame where it computes no value of its own: a conditional, or what hands on the values of a loop."""
    is_restructured: bool = False
    """Whether it was found among steps that do not correspond."""
    is_end: bool = False
    """Whether it may be any of the steps before it as well, too many to list."""
    is_repair: bool = False
    """Whether a change of it was found that makes the value right."""
