"""Scaling curves: what is measured of a trainer, the model between measurements, and profiling."""
