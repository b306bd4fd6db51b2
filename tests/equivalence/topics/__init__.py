"""The rows, one file per topic; :mod:`tests.equivalence.table` finds each ``TOPIC``."""
