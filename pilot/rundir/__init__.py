"""A pool's files: run directory, journal, trainer folders, marks beside logs."""
