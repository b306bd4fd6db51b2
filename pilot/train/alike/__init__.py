"""What must be the same on all ranks, or after a resume, and how that is compared."""
