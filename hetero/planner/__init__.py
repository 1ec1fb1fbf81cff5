"""Planning: placement, partitions, transfers, the plan, explaining it."""

from hetero.planner.plan import Plan
from hetero.planner.planner import plan_model

__all__ = ["Plan", "plan_model"]
