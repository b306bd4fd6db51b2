"""Reads the script: its code, its variables, what they hold; ends it in one line."""
