"""HDF5 checkpoints: written as one file or in parts, verified, published by rename."""
