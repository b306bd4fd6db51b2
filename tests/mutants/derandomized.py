"""Hypothesis draws the same examples for every mutant: ``pytest -p tests.mutants.derandomized``."""

from hypothesis import settings

settings.register_profile("mutants", derandomize=True, database=None, deadline=None)
settings.load_profile("mutants")
