"""Which scripts train on several ranks what they train alone, and which are refused: one row for each."""
