"""The programs on a node: the agent, its guardian, the fork server; workers and rank processes are its children."""
