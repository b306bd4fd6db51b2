"""HDF5 checkpoints: written in parts or whole, verified, published by rename."""
