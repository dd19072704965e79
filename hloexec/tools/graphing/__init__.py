"""Graphs of modules to look at: of a computation or of what is around one instruction, coloured by error, time or
bytes, as Graphviz's DOT, as SVG, and as JSON for Model Explorer.

    colours = hloexec.graphing.error_colours(hloexec.shadow(module, inputs))
    hloexec.graph(module, around="divide.7", colours=colours).save("divide.svg")
"""

from hloexec.tools.graphing.flow import Colours, Edge, Step, quantity
from hloexec.tools.graphing.graphs import Cluster, Coloured, Graph, Node, graph
from hloexec.tools.graphing.measures import byte_colours, error_colours, read_colours, time_colours

__all__ = [
    "Cluster",
    "Coloured",
    "Colours",
    "Edge",
    "Graph",
    "Node",
    "Step",
    "byte_colours",
    "error_colours",
    "graph",
    "quantity",
    "read_colours",
    "time_colours",
]
