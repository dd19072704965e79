"""Which dimensions shrink together.

`products` refines what is known of products of dimensions, `offsets` finds the part of each size that stays, and
`groups` joins the dimensions that shrink by one factor.
"""

from hloexec.tools.shrinking.grouping.groups import Group, Groups, groups_of

__all__ = ["Group", "Groups", "groups_of"]
