"""The rows, a file for each topic: its ``TOPIC`` is found by :mod:`tests.equivalence.table`."""
