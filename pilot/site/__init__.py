"""A site: everything that differs between machines."""
