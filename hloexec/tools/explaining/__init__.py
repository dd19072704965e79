"""Explaining expected results: which numerics policy, of the whole module or of some instructions, gives them."""

from hloexec.tools.explaining.findings import Explained, Explanation, InstructionExplanation, Trial, Untold
from hloexec.tools.explaining.running import explain

__all__ = ["Explained", "Explanation", "InstructionExplanation", "Trial", "Untold", "explain"]
