"""The pairs in ``examples/ported``: what changes in each, and whether it trains on through a kill."""
