"""Small modules written for sizes by name: each is the same program at any sizes, so that shrinking the large one has to
give the small one, instruction by instruction and constant by constant.
"""

from tests.shrinking.hand_made import factors, others, parts, positions  # noqa: F401
from tests.shrinking.hand_made.making import MODULES, HandMade

__all__ = ["MODULES", "HandMade"]
