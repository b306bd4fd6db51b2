"""``pilot doctor``: checks of a host and a site. Each check really does what a pool will do later."""
