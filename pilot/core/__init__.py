"""The decision core: pure, deterministic, standard library only (no clock, no IO, no randomness)."""
