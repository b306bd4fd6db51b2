"""Seldom-synchronised training, against plain arithmetic of several nodes in one process."""
