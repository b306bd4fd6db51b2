"""``pilot check``: a script is run for real, undisturbed and on courses, and what it trains is compared."""
