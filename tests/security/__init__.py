"""Attacks, each of which once worked; what must not happen is counted."""
