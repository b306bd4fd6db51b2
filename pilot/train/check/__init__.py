"""``pilot check``: run a script undisturbed and in scenarios with failures, and compare the trained values."""
