"""One trainer: its phases, its workers and groups, and its next commands."""
