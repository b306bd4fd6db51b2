"""Commands for replays and traces."""
