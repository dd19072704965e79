"""Facts that follow the data flow of a module, through tuples, calls, fusions, loops and conditionals."""

from hloexec.analysis.dataflow.forward import Fact, ForwardAnalysis

__all__ = ["Fact", "ForwardAnalysis"]
