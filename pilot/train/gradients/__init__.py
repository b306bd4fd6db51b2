"""How gradients get into the buckets that are summed, and back."""
