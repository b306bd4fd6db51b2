"""Requests of the command line, for pools that run and pools that ended."""
