"""Measurements, never tests: ``make bench`` runs all and prints JSON; each module runs alone, too."""
