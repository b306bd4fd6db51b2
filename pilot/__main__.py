"""``python -m pilot`` is the same as ``pilot``."""

from pilot.cli.main import main

main()
