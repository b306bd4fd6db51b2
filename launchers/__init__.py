"""How a command gets onto a node, and batch-script templates."""
