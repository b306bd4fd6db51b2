"""One file per machine; see _template.py."""
