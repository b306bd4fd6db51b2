"""Traces of idle nodes: format, statistics, synthesis, import from scheduler logs, recording."""
