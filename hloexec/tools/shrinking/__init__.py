"""Making a module smaller: the same instructions on smaller arrays.

`dimensions` numbers all dimensions and relates them, `grouping` finds those that shrink together, `solving` decides by
how much, `rewriting` makes the module, `fitting` sees to what its integers are read as, and `running` does it all.
"""

from hloexec.tools.shrinking.devices.arrangements import AxisChange
from hloexec.tools.shrinking.fitting import FittedOperand
from hloexec.tools.shrinking.positions import ConstantChange
from hloexec.tools.shrinking.rewriting import HoldingSize, KeptSize, Shrinkage, SizeChange
from hloexec.tools.shrinking.running import shrink

__all__ = [
    "AxisChange",
    "ConstantChange",
    "FittedOperand",
    "HoldingSize",
    "KeptSize",
    "Shrinkage",
    "SizeChange",
    "shrink",
]
