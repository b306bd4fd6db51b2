"""The command line: each command parses, calls, and prints the answer."""
