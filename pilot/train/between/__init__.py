"""Process groups between nodes, in the training processes: they sum gradients and send states, in one generation."""
