"""Plans: the problem that a planner gets, and which nodes follow from its counts."""
