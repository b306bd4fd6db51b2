"""Benchmarks, never tests: ``make bench`` runs them all and prints JSON; each module also runs alone."""
