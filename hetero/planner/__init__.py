"""Planning: placement, partitions, transfers, the plan and its explanation."""
