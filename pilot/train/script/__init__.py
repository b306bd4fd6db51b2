"""Runs a script as ``__main__``, records the packages that it imports, and ends it in one line by our errors."""
