"""The version of this package.

A script beside a folder named ``pilot`` gets that folder as the package, without what ``pilot/__init__.py`` defines.
This module is found from there, too.
"""

__version__ = "0.1.0"
