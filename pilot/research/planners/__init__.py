"""Planners of other papers: Huawei's and FLEET's. ``pilot.planners`` finds them by name."""
