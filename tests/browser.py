"""A page in a real browser, if one is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TIMEOUT_S = 120.0

needs_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")


def shown(page: Path, profile: Path) -> str:
    """The page's text after its scripts have run; ``profile``: an empty folder for the browser."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"--user-data-dir={profile}"]
    command = [str(BROWSER), *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True).stdout
