"""Planning: placement, partitions, transfers, the plan, explaining it.

Nothing is imported here: a child executor needs the plan and its wire form, and none of what makes plans.
"""
