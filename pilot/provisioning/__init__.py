"""Pilot jobs: how many to keep, submission through Parsl, and what the batch scheduler says of them."""
