"""Moves gradients into the buckets that are summed over the ranks, and back."""
