"""Hostile input as from strangers, damaged disks and typos, generated from a seed (``make fuzz``).

One target per kind of file, packet or option. Each input is tried in a child process with a limit on time and memory,
and its outcome is counted: accepted, or refused in one line. Anything else is a failure.
"""
