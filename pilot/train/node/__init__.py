"""The training processes of one node: which group they are in, how they compute together."""
