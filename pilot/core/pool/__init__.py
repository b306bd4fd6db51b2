"""The pool: nodes that are held, those that leave, and which of them failed."""
