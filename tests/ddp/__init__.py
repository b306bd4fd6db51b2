"""Scripts for torchrun in a pool."""
