"""The research wing: traces, the simulator and the planners of other papers. Live code does not import it."""
