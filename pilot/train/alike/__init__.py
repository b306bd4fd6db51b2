"""Values that must be the same on all ranks, or after a resume, and their comparison."""
