"""The documentation site: ``make docs`` builds it, without network, into out/docs."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import pilot  # noqa: E402  # the path comes first

project = "pilot"
author = "the pilot developers"
version = release = pilot.__version__

# The source folder is the repository's root: README and ARCHITECTURE are pages like those of docs/.
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "examples/ported/README.md"]
exclude_patterns = ["out/**", "build/**", ".venv/**"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinxcontrib.mermaid",
]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
os.environ.setdefault("COLUMNS", "80")  # help texts are as wide as on a terminal

html_theme = "furo"
html_title = f"pilot {release}"
html_show_sourcelink = False
