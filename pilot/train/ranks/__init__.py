"""The ranks that train together: an elastic group, or a script alone."""
