"""Mutants that do the same as what they were made from, each with the reason."""

EQUIVALENT: dict[tuple[str, str], str] = {}
"""(module, mistake) → why nobody can notice it."""
