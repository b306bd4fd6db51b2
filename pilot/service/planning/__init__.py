"""Processes that answer the core: the planner, and the sampler of studies; and how many pilots are wanted."""
