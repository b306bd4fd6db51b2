"""The coordinator's journal and restarts, measured curves for later pools, and the removal of old files."""
