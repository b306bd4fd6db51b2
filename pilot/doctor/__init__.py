"""``pilot doctor``: checks of a host and a site, each of which really does what will be done later."""
