"""A step: its batches, sums and optimizers; its comparisons and refusals, and its rollback if it is void."""
