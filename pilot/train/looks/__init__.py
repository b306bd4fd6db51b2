"""Looks at what a script keeps besides the state, of which it is told."""
