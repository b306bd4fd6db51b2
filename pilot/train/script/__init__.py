"""Which packages a script imports, and how one of our errors ends it in one line."""
