"""This host and its files: processes, limits, sandboxes, and files that are complete or absent."""
