"""Which scripts train on several ranks as they do alone, and which are refused: one row each."""
