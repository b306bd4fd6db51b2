"""The coordinator at work: the server, the core with its journal, effects, solver process, autoscaler."""
