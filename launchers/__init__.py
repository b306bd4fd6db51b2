"""How a command gets onto a node, how a group is launched, and batch-script templates."""
