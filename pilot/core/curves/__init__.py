"""Scaling curves: measurements, the model between them, and profiling."""
