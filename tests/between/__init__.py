"""Seeded plays of the data plane: nodes with networks of their own die, stop, are cut off, come and go."""
