"""Words that are keys of many records and mean the same in all of them."""

from __future__ import annotations

from collections.abc import Mapping

WORDS: Mapping[str, str] = {
    "file": "The file that was given.",
    "folder": "The folder that was written or read.",
    "module": "The module's name.",
    "numerics": "The numerics policy.",
    "seconds": "How long it took.",
    "computation": "The name of the computation.",
    "instruction": "The name of the instruction.",
    "opcode": "The opcode.",
    "iteration": "The iteration of the innermost loop, from 0.",
    "device": "The number of the device.",
    "devices": "The numbers of the devices.",
    "hlo": "The instruction as HLO text.",
    "op_name": "The name that a framework gave it.",
    "source": "The lines of source it comes from, the innermost call first.",
    "number": "Its number, from 0.",
    "name": "Its name.",
    "kind": "Of which kind it is.",
    "shape": "The shape, as HLO text.",
    "element_type": "The element type that it has.",
    "byte_size": "How many bytes it takes.",
    "index": "The place in a tuple; of an element, in its array.",
    "minimum": "The smallest finite element; None where none is finite.",
    "maximum": "The largest finite element; None where none is finite.",
    "mean": "The mean of the finite elements.",
    "standard_deviation": "The standard deviation of the finite elements.",
    "nan_count": "How many elements are NaN.",
    "infinity_count": "How many elements are infinite.",
    "hash": "A hash of the elements' bytes in logical order.",
    "element_count": "How many elements there are.",
    "verdict": "What it comes to.",
    "comparison": "How far the results are apart.",
    "tolerance": "What is tolerated.",
    "reason": "Why, or what it is, in words.",
    "notes": "What else there is to say.",
}
