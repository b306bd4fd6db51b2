"""The ranks that train together: an elastic group, a script alone, or the two of ``pilot check``."""
