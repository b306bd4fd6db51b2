"""One trainer: its phases, its workers and groups, and what it needs next."""
