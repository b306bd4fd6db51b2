"""Pilot jobs: how many to keep, submission through Parsl, and their states in the batch scheduler."""
