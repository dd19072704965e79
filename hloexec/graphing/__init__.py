"""Graphs of modules to look at: of a computation or of what is around one instruction, coloured by error, time or
bytes, as Graphviz's DOT, as SVG, and as JSON for Model Explorer.

    found = hloexec.graph(module, around="divide.7", colours=hloexec.graphing.error_colours(hloexec.shadow(module, inputs)))
    found.save("divide.svg")
"""

from hloexec.graphing.colours import Colours, Step, quantity
from hloexec.graphing.flow import Edge
from hloexec.graphing.graphs import Cluster, Graph, Node, graph
from hloexec.graphing.measures import byte_colours, error_colours, time_colours

__all__ = [
    "Cluster",
    "Colours",
    "Edge",
    "Graph",
    "Node",
    "Step",
    "byte_colours",
    "error_colours",
    "graph",
    "quantity",
    "time_colours",
]
