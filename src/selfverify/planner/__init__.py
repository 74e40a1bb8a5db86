"""What a run will take, before it is started: memory, tokens, time, without loading weights."""

from selfverify.planner.report import Plan, make_plan
from selfverify.planner.shapes import Lengths

__all__ = ["Lengths", "Plan", "make_plan"]
