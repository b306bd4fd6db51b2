"""A step: its batches, sums and optimizers; what is compared and refused there, and undone if it is void."""
