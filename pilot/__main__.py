"""``python -m pilot`` is the same as ``pilot``."""

from pilot.cli.start import main

main()
