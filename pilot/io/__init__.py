"""What crosses processes: wire messages and their framing, connection file, journal, run directory, site files."""
