"""``pilot doctor``: checks of a host and a site. Each check actually does what a pool will do later."""
